"""Attention over subsets of the keys, a few heads at a time, recomputed in the backward pass.

Gathered keys, logits and weights exist for a few heads at a time. The gradient is that of autograd.

Shapes: B rows, H heads, N queries, E width of a head, h heads of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attentions.kernels.common.checkpointing import recompute
from attentions.kernels.common.precision import upcast

CPU_LIMIT, DEVICE_LIMIT = 2**21, 2**27
"""Largest number of elements that a chunk of more than one head computes."""


def chunk_size(cost: int, device: torch.device) -> int:
    """Return how many items fit in a chunk if each computes ``cost`` elements, at least one."""
    return max(1, (CPU_LIMIT if device.type == "cpu" else DEVICE_LIMIT) // max(cost, 1))


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
    size = chunk_size(cost, heads[0].device)
    shared = [x.split(size) for x in per_head]
    rows = []
    with torch.autocast(heads[0].device.type, enabled=False):
        for row in zip(*(x.unbind() for x in heads), strict=True):
            chunks = zip(*(x.split(size) for x in row), *shared, strict=True)
            rows.append(torch.cat([recompute_upcast(function, chunk, dropout) for chunk in chunks]))
    return torch.stack(rows)


def recompute_upcast(function: Callable[..., Tensor], chunk: Sequence[Tensor], dropout: float = 0.0) -> Tensor:
    """Recompute ``function(*chunk)`` in float32 or wider, and return it in the dtype of the first input."""

    def compute(*x: Tensor) -> Tensor:
        return function(*(upcast(part) if part.is_floating_point() else part for part in x)).to(chunk[0].dtype)

    output: Tensor = recompute(compute, *chunk, draws=dropout > 0.0)
    return output
