"""Blocks of consecutive keys: their means, and which of them a target takes.

Shapes: B batch, H heads, n targets, M keys, E width of a head, J blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.attention import DecodeState


def block_means(x: Tensor, size: int) -> Tensor:
    """Means of whole blocks of ``size`` tokens, [B, H, M, E] to [B, H, M // size, E]."""
    return x[:, :, : x.shape[2] // size * size].unflatten(2, (-1, size)).mean(dim=3)


def expand_blocks(taken: Tensor, size: int, num_keys: int) -> Tensor:
    """From blocks [..., J] to keys [..., num_keys]."""
    return taken.repeat_interleave(size, dim=-1)[..., :num_keys]


def largest(scores: Tensor, count: int) -> Tensor:
    """Which of the last dimension are among the ``count`` largest, and above -inf: bool like ``scores``."""
    index = scores.topk(min(count, scores.shape[-1]), dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, index, True) & (scores > -torch.inf)


def later(position: Tensor, num_keys: int) -> Tensor:
    """Which keys stand after targets at ``position`` [B or 1, n]: bool [B or 1, 1, n, num_keys]."""
    return (torch.arange(num_keys, device=position.device) > position.unsqueeze(-1)).unsqueeze(1)


def in_order(state: DecodeState, *names: str) -> DecodeState:
    """A cache of tokens with the hidden ones moved to its end, so that a token's place is its position."""
    order = state["hidden"].to(torch.uint8).argsort(dim=1, stable=True)

    def moved(x: Tensor) -> Tensor:
        return x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))

    return {**state, "hidden": state["hidden"].gather(1, order), **{name: moved(state[name]) for name in names}}


def to_blocks(num_keys: int, size: int) -> int:
    """Blocks that hold that many keys, the last perhaps in part."""
    return -(-num_keys // size)


def pad_blocks(x: Tensor, num_blocks: int, value: float) -> Tensor:
    """Scores [..., J'] with ``value`` for the blocks up to ``num_blocks``."""
    return F.pad(x, (0, num_blocks - x.shape[-1]), value=value)
