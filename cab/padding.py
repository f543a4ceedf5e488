"""Padding masks, and functions that move the padding of each sequence to its right end.

Masks are bool, True = padding; shapes: B batch, N targets, M keys, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PaddingMasks(NamedTuple):
    """Masks of padded queries [B, N] and padded keys [B, M]; None if nothing is padded."""

    query: Tensor | None = None
    key: Tensor | None = None


def lengths(x: Tensor, mask: Tensor | None) -> Tensor:
    """Count the tokens of each sequence, [B], of heads [B, H, N, E] or inputs [B, N, D] with ``mask`` [B, N]."""
    if mask is None:
        return torch.full((x.shape[0],), x.shape[-2], device=x.device)
    return (~mask).sum(dim=1)


def real_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mask [B, N] of tokens of ``x`` [B, N, D] that are not padding."""
    return x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else ~mask


def union(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the mask of what is padding in either mask."""
    if a is None or b is None:
        return b if a is None else a
    return a | b


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``x`` [B, N, D] with zeros where ``mask`` [B, N] is True."""
    return x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0.0)


def compact_rows(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Move the padding of each sequence to its right end; return sequences, mask and the order [B, N] of their tokens.

    Without a mask, ``x``, None and None are returned.
    """
    if mask is None:
        return x, None, None
    order = mask.to(torch.uint8).argsort(dim=1, stable=True)
    return take_rows(x, order), mask.gather(1, order), order


def restore_rows(x: Tensor, order: Tensor | None) -> Tensor:
    """Undo :func:`compact_rows`."""
    return x if order is None else take_rows(x, order.argsort(dim=1))


def take_rows(x: Tensor, order: Tensor) -> Tensor:
    """Take the positions ``order[b]`` of each sequence b of ``x`` [B, N, D]."""
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def clean_rows(x: Tensor, mask: Tensor | None, *, compacts: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Set padded tokens to zero, and move them to the right end if ``compacts``; return as :func:`compact_rows`."""
    x = without_padding(x, mask)
    return compact_rows(x, mask) if compacts else (x, mask, None)
