"""Negative log-likelihoods of tokens, for vocabularies of any size."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone
from tasks.corpus.tokens import perplexity

LARGE = 2**26
"""Number of logits (256 MiB in float32) above which a backbone that supports it computes losses in chunks."""


def token_losses(backbone: Backbone, vocab_size: int, targets: Tensor, *inputs: Any, **more: Any) -> Any:
    """Return the loss in nats of each of ``targets`` under ``backbone(*inputs, **more)``, in the targets' shape.

    Above :data:`LARGE` logits, the backbone computes the losses itself if it can, without materializing all logits.
    With ``mems``, the backbone also returns the updated memory, and so does this function.
    """
    if targets.numel() * vocab_size > LARGE and backbone.gives_losses:
        return backbone(*inputs, **more, targets=targets)
    output = backbone(*inputs, **more)
    logits, mems = output if "mems" in more else (output, None)
    losses = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="none").view_as(targets)
    return losses if mems is None else (losses, mems)


def mean_or_zero(losses: Tensor) -> Tensor:
    """Return the mean of losses [K]; 0, which has a gradient, without any."""
    return losses.mean() if losses.numel() else losses.sum()


def ends_repeated_bigram(blocks: Tensor) -> Tensor:
    """Return whether each token but the first ends a bigram that occurred earlier in its block.

    Args:
        blocks: tokens [B, N + 1].

    Returns:
        [B, N] bool. Earlier occurrences may overlap the bigram, as in ``a a a``.
    """
    bigrams = blocks[:, :-1] * (int(blocks.max()) + 1) + blocks[:, 1:]
    ordered, places = bigrams.sort(dim=1, stable=True)
    repeated = torch.zeros_like(bigrams, dtype=torch.bool)
    return repeated.scatter_(1, places[:, 1:], ordered[:, 1:] == ordered[:, :-1])


class RepeatScores:
    """Perplexities of tokens that end a repeated bigram, and of all others."""

    names: ClassVar = ("ppl_repeated", "ppl_other")

    def __init__(self) -> None:
        self._sums, self._counts = [0.0, 0.0], [0, 0]

    def add(self, blocks: Tensor, losses: Tensor) -> None:
        """Add blocks [B, N + 1] with the losses of their tokens but the first, [B, N]."""
        repeated = ends_repeated_bigram(blocks)
        for group, chosen in enumerate((repeated, ~repeated)):
            self._sums[group] += losses[chosen].double().sum().item()
            self._counts[group] += int(chosen.sum())

    @property
    def mean(self) -> tuple[float, int]:
        """Mean loss of all tokens, and their number."""
        return sum(self._sums) / sum(self._counts), sum(self._counts)

    def perplexities(self) -> dict[str, float]:
        """Return the perplexity of each group; NaN for a group without tokens."""
        groups = zip(self.names, self._sums, self._counts, strict=True)
        return {name: perplexity(total / count) if count else math.nan for name, total, count in groups}
