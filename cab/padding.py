"""Padding of a batch: which tokens are none, and how rows are freed of it.

Masks are bool, True = padding; shapes: B batch, N targets, M keys, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Padding(NamedTuple):
    """Which queries [B, N] and which keys [B, M] are padding; None where none is."""

    query: Tensor | None = None
    key: Tensor | None = None


def lengths(x: Tensor, mask: Tensor | None) -> Tensor:
    """Real tokens of each row, [B], of heads [B, H, N, E] or inputs [B, N, D] with ``mask`` [B, N]."""
    if mask is None:
        return torch.full((x.shape[0],), x.shape[-2], device=x.device)
    return (~mask).sum(dim=1)


def union(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Padding in either mask."""
    if a is None or b is None:
        return b if a is None else a
    return a | b


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """``x`` [B, N, D] with zeros where ``mask`` [B, N] is True."""
    return x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0.0)


def compact_rows(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Move each row's padding to its right end: rows, mask, and the order [B, N] that was taken."""
    if mask is None:
        return x, None, None
    order = mask.to(torch.uint8).argsort(dim=1, stable=True)
    return take_rows(x, order), mask.gather(1, order), order


def restore_rows(x: Tensor, order: Tensor | None) -> Tensor:
    """The way back of :func:`compact_rows`."""
    return x if order is None else take_rows(x, order.argsort(dim=1))


def take_rows(x: Tensor, order: Tensor) -> Tensor:
    """The positions ``order[b]`` of each row b of ``x`` [B, N, D]."""
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
