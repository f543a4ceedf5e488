"""Blocks of consecutive keys: their means, and the blocks that a target selects.

Shapes: B batch, H heads, n targets, M keys, E width of a head, J blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.attention import DecodeState


def block_means(x: Tensor, size: int) -> Tensor:
    """Return the means of whole blocks of ``size`` tokens, [B, H, M, E] to [B, H, M // size, E]."""
    return x[:, :, : x.shape[2] // size * size].unflatten(2, (-1, size)).mean(dim=3)


def expand_blocks(taken: Tensor, size: int, num_keys: int) -> Tensor:
    """Expand a mask of blocks [..., J] to keys [..., num_keys]."""
    return taken.repeat_interleave(size, dim=-1)[..., :num_keys]


def largest(scores: Tensor, count: int) -> Tensor:
    """Return which scores are among the ``count`` largest of the last dimension and above -inf, bool."""
    index = scores.topk(min(count, scores.shape[-1]), dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, index, True) & (scores > -torch.inf)


def later(position: Tensor, num_keys: int) -> Tensor:
    """Return which keys are later than targets at ``position`` [B or 1, n], bool [B or 1, 1, n, num_keys]."""
    return (torch.arange(num_keys, device=position.device) > position.unsqueeze(-1)).unsqueeze(1)


def in_order(state: DecodeState, *names: str) -> DecodeState:
    """Move the hidden tokens of a cache to its end, so that the index of a token is its position."""
    order = state["hidden"].to(torch.uint8).argsort(dim=1, stable=True)

    def moved(x: Tensor) -> Tensor:
        return x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

    return {**state, "hidden": state["hidden"].gather(1, order), **{name: moved(state[name]) for name in names}}


def to_blocks(num_keys: int, size: int) -> int:
    """Return the number of blocks that ``num_keys`` keys fill, the last one perhaps in part."""
    return -(-num_keys // size)


def pad_blocks(x: Tensor, num_blocks: int, value: float) -> Tensor:
    """Pad scores [..., J'] with ``value`` to ``num_blocks`` blocks."""
    return F.pad(x, (0, num_blocks - x.shape[-1]), value=value)
