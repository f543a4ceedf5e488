"""Long sequences some tokens at a time, so that what is formed of them stays in a processor's cache.

Shapes: B rows, H heads, G rows times heads, N tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attentions.kernels.precision import wide_dtype

ON_CPU, ELSEWHERE = 2**12, 2**18
"""Tokens in memory at once, counted once for every row and head; elsewhere a launch costs more than memory."""

MULTIPLE = 64


def groups_at_once(num_tokens: int, device: torch.device) -> int:
    """How many groups of ``num_tokens`` each, at least one."""
    return max(1, (ON_CPU if device.type == "cpu" else ELSEWHERE) // max(num_tokens, 1))


def tokens_at_once(num_groups: int, device: torch.device) -> int:
    """Tokens of a piece, of ``num_groups`` rows times heads: a multiple of 64."""
    return max(1, groups_at_once(num_groups, device) // MULTIPLE) * MULTIPLE


def pieces(x: Tensor) -> Iterator[slice]:
    """Slices of the second last dimension of ``x`` [..., N, E]."""
    size = tokens_at_once(x.shape[:-2].numel(), x.device)
    return (slice(start, start + size) for start in range(0, x.shape[-2], size))


def of_block(x: Tensor, block: slice) -> Tensor:
    """Some tokens of [B, H, N, E] as [G, tokens, E]."""
    return x[:, :, block].flatten(0, 1)


class BlockSum:
    """A sum over blocks whose slices begin and end ever later, in float32 at least and in memory not cleared first."""

    def __init__(self, like: Tensor) -> None:
        self.total = torch.empty_like(like, dtype=wide_dtype(like.dtype))
        self.end = 0
        """Where the memory begins that holds nothing yet."""

    def add(self, where: slice, part: Tensor) -> None:
        """Add ``part`` [G, tokens, E] at ``where`` in [B, H, N, E]."""
        part = part.unflatten(0, self.total.shape[:2])
        seen = max(min(self.end, where.stop) - where.start, 0)
        self.total[:, :, self.end : where.start] = 0
        self.total[:, :, where.start : where.start + seen] += part[:, :, :seen]
        self.total[:, :, where.start + seen : where.stop] = part[:, :, seen:]
        self.end = max(self.end, where.stop)

    def result(self, dtype: torch.dtype) -> Tensor:
        self.total[:, :, self.end :] = 0
        return self.total.to(dtype)


def dropout_seed(dropout: float) -> Tensor | None:
    """What the random numbers of both passes come from; None without dropout."""
    return torch.randint(2**62, ()) if dropout else None


def dropout_factor(weights: Tensor, dropout: float, seed: Tensor | None, number: int) -> Tensor | None:
    """What dropout multiplies the weights of block ``number`` by, the same in both passes; None without dropout."""
    if seed is None:
        return None
    generator = torch.Generator(weights.device).manual_seed(int(seed) + number)
    return torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=generator).div_(1.0 - dropout)
