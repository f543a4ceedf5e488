"""Attention over subsets of the keys, a few heads at a time and formed anew in the backward pass.

What a method forms for a few heads (gathered keys, logits, weights) is then in memory for these alone, and its
gradient is autograd's.

Shapes: B rows, H heads, N queries, E width of a head, h heads of a piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attentions.kernels.precision import no_weight, wide
from cab.padding import lengths

ON_CPU, ELSEWHERE = 2**21, 2**27
"""Numbers that a piece forms, at most, if it has more than one head."""


def at_once(cost: int, device: torch.device) -> int:
    """How many of what forms ``cost`` numbers each, at least one."""
    return max(1, (ON_CPU if device.type == "cpu" else ELSEWHERE) // max(cost, 1))


def in_pieces(
    function: Callable[..., Tensor],
    heads: Sequence[Tensor],
    per_head: Sequence[Tensor] = (),
    *,
    cost: int,
    dropout: float = 0.0,
) -> Tensor:
    """``function(*heads, *per_head)`` of a few heads of one row at a time, in float32 at least.

    Args:
        function: [h, N, E] of each of ``heads``, [h, ...] of each of ``per_head``, to [h, N, E].
        heads: [B, H, N, E] each.
        per_head: [H, ...] each, the same for all rows.
        cost: numbers that one head forms.
        dropout: whether the function draws random numbers: not 0.
    """
    size = at_once(cost, heads[0].device)
    shared = [x.split(size) for x in per_head]
    rows = []
    with torch.autocast(heads[0].device.type, enabled=False):
        for row in zip(*(x.unbind() for x in heads), strict=True):
            pieces = zip(*(x.split(size) for x in row), *shared, strict=True)
            rows.append(torch.cat([formed_anew(function, piece, dropout) for piece in pieces]))
    return torch.stack(rows)


def formed_anew(function: Callable[..., Tensor], piece: Sequence[Tensor], dropout: float = 0.0) -> Tensor:
    """``function(*piece)`` in float32 at least, in the type of the first input; what it forms is not kept."""

    def compute(*x: Tensor) -> Tensor:
        return function(*(wide(part) if part.is_floating_point() else part for part in x)).to(piece[0].dtype)

    if not torch.is_grad_enabled():
        return compute(*piece)
    return checkpoint(compute, *piece, use_reentrant=False, preserve_rng_state=dropout > 0.0)


def weighted(logits: Tensor, hidden: Tensor | None, dropout: float) -> Tensor:
    """Weights over the last dimension of ``logits``, none where ``hidden``; equal ones where all is hidden."""
    if hidden is not None:
        logits = logits.masked_fill(hidden, no_weight(logits.dtype))
    return F.dropout(logits.softmax(dim=-1), dropout)


def each_length(function: Callable[..., Tensor], heads: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """``function(*heads)`` of rows of equal length together, without their padding, which is on the right.

    For what depends on the length of a row. ``heads`` are [B, ..., N, E] and ``mask`` [B, N]; padded outputs are zero.
    """
    if mask is None:
        return function(*heads)
    counts, full = lengths(heads[0], mask), mask.shape[1]
    outputs, rows = [], []
    for length in counts.unique().tolist():
        of_length = (counts == length).nonzero()[:, 0]
        found = [x[of_length][..., :length, :] for x in heads]
        output = function(*found) if length else found[0]
        outputs.append(F.pad(output, (0, 0, 0, full - length)))
        rows.append(of_length)
    return torch.cat(outputs)[torch.cat(rows).argsort()]
