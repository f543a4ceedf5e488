"""Chunks of long sequences whose intermediate results fit in the processor cache.

Shapes: B rows, H heads, G rows times heads, N tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attentions.kernels.common.precision import accumulation_dtype

CPU_LIMIT, DEVICE_LIMIT = 2**12, 2**18
"""Tokens per chunk, counted once per sequence and head. On a GPU, launches cost more than memory."""

MULTIPLE = 64


def groups_at_once(num_tokens: int, device: torch.device) -> int:
    """Return how many groups of ``num_tokens`` tokens fit in a chunk, at least one."""
    return max(1, (CPU_LIMIT if device.type == "cpu" else DEVICE_LIMIT) // max(num_tokens, 1))


def tokens_at_once(num_groups: int, device: torch.device) -> int:
    """Return the number of tokens per chunk for ``num_groups`` sequences times heads, a multiple of 64."""
    return max(1, groups_at_once(num_groups, device) // MULTIPLE) * MULTIPLE


def chunk_slices(x: Tensor) -> Iterator[slice]:
    """Yield slices of the second last dimension of ``x`` [..., N, E]."""
    size = tokens_at_once(x.shape[:-2].numel(), x.device)
    return (slice(start, start + size) for start in range(0, x.shape[-2], size))


def of_block(x: Tensor, block: slice) -> Tensor:
    """Return the tokens ``block`` of ``x`` [B, H, N, E] as [G, tokens, E]."""
    return x[:, :, block].flatten(0, 1)


class BlockSum:
    """A sum over overlapping blocks in increasing order, in float32 or wider, in memory that is not cleared first."""

    def __init__(self, like: Tensor) -> None:
        self.total = torch.empty_like(like, dtype=accumulation_dtype(like.dtype))
        self.end = 0
        """Start of the memory that is not initialized yet."""

    def add(self, where: slice, part: Tensor) -> None:
        """Add ``part`` [G, tokens, E] to the tokens ``where`` of [B, H, N, E]."""
        part = part.unflatten(0, self.total.shape[:2])
        seen = max(min(self.end, where.stop) - where.start, 0)
        self.total[:, :, self.end : where.start] = 0
        self.total[:, :, where.start : where.start + seen] += part[:, :, :seen]
        self.total[:, :, where.start + seen : where.stop] = part[:, :, seen:]
        self.end = max(self.end, where.stop)

    def result(self, dtype: torch.dtype) -> Tensor:
        """Return the sum in ``dtype``, zero where nothing was added."""
        self.total[:, :, self.end :] = 0
        return self.total.to(dtype)


def dropout_seed(dropout: float) -> Tensor | None:
    """Draw the seed that both passes share; None without dropout."""
    return torch.randint(2**62, ()) if dropout else None


def dropout_factor(weights: Tensor, dropout: float, seed: Tensor | None, number: int) -> Tensor | None:
    """Return the factors of dropout for the weights of block ``number``, equal in both passes; None without dropout."""
    if seed is None:
        return None
    generator = torch.Generator(weights.device).manual_seed(int(seed) + number)
    return torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=generator).div_(1.0 - dropout)
