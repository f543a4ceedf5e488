"""Negative log-likelihoods of tokens, for vocabularies of any size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone

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


def sum_of(losses: Tensor) -> tuple[float, int]:
    """Return the sum of losses, in double precision, and their number."""
    return losses.double().sum().item(), losses.numel()


REPEATED_PPL, OTHER_PPL = "ppl_repeated", "ppl_other"
"""Perplexities of tokens that end a repeated bigram, and of all others."""


def repeat_sums(blocks: Tensor, losses: Tensor) -> dict[str, tuple[float, int]]:
    """Return the summed loss and the number of tokens of both groups.

    Args:
        blocks: tokens [B, N + 1].
        losses: losses of all tokens but the first, [B, N].
    """
    repeated = ends_repeated_bigram(blocks)
    groups = {REPEATED_PPL: repeated, OTHER_PPL: ~repeated}
    return {name: sum_of(losses[chosen]) for name, chosen in groups.items()}
