"""Means over the part of a batch that a mask selects."""

from __future__ import annotations

from torch import Tensor


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of ``x`` [B, N, ...] where ``mask`` [B, N] is True, or 0 if it is nowhere.

    ``x[mask].mean()`` would make the host wait for a GPU, since the mask determines a shape.
    """
    mask = mask.view(*mask.shape, *(1,) * (x.dim() - mask.dim())).expand_as(x)
    return x.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
