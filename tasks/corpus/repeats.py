"""Losses of tokens that end a bigram of the preceding context, and of all others (Arora et al. 2024)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from tasks.corpus.tokens import perplexity


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
