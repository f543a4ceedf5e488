"""Attention over subsets of the keys, a few heads at a time, recomputed in the backward pass.

Gathered keys, logits and weights exist for a few heads at a time. The gradient is that of autograd.

Shapes: B rows, H heads, N queries, E width of a head, h heads of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.checkpointing import recompute
from attentions.kernels.common.precision import neg_inf, upcast
from cab.padding import lengths

ON_CPU, ELSEWHERE = 2**21, 2**27
"""Largest number of elements that a chunk of more than one head computes."""


def at_once(cost: int, device: torch.device) -> int:
    """Return how many items fit in a chunk if each computes ``cost`` elements, at least one."""
    return max(1, (ON_CPU if device.type == "cpu" else ELSEWHERE) // max(cost, 1))


def in_chunks(
    function: Callable[..., Tensor],
    heads: Sequence[Tensor],
    per_head: Sequence[Tensor] = (),
    *,
    cost: int,
    dropout: float = 0.0,
) -> Tensor:
    """Return ``function(*heads, *per_head)``, computed for a few heads of one sequence at a time in float32 or wider.

    Args:
        function: maps [h, N, E] of each of ``heads`` and [h, ...] of each of ``per_head`` to [h, N, E].
        heads: [B, H, N, E] each.
        per_head: [H, ...] each, shared by all sequences.
        cost: elements that one head computes.
        dropout: above 0 if the function draws random numbers.
    """
    size = at_once(cost, heads[0].device)
    shared = [x.split(size) for x in per_head]
    rows = []
    with torch.autocast(heads[0].device.type, enabled=False):
        for row in zip(*(x.unbind() for x in heads), strict=True):
            pieces = zip(*(x.split(size) for x in row), *shared, strict=True)
            rows.append(torch.cat([recompute_upcast(function, piece, dropout) for piece in pieces]))
    return torch.stack(rows)


def recompute_upcast(function: Callable[..., Tensor], piece: Sequence[Tensor], dropout: float = 0.0) -> Tensor:
    """Recompute ``function(*piece)`` in float32 or wider, and return it in the dtype of the first input."""

    def compute(*x: Tensor) -> Tensor:
        return function(*(upcast(part) if part.is_floating_point() else part for part in x)).to(piece[0].dtype)

    output: Tensor = recompute(compute, *piece, draws=dropout > 0.0)
    return output


def weighted(logits: Tensor, hidden: Tensor | None, dropout: float) -> Tensor:
    """Return the softmax over the last dimension, zero where ``hidden``, or equal weights where all keys are hidden."""
    if hidden is not None:
        logits = logits.masked_fill(hidden, neg_inf(logits.dtype))
    return F.dropout(logits.softmax(dim=-1), dropout)


def each_length(function: Callable[..., Tensor], heads: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Return ``function(*heads)``, called once per sequence length, without the padding on the right.

    This is for methods that depend on the length of a sequence. ``heads`` are [B, ..., N, E] and ``mask`` is [B, N].
    Padded outputs are zero.
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
