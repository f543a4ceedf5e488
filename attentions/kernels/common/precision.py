"""Accumulation dtype of sums over many tokens, and the logit of a hidden key."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return ``dtype``, or float32 if that is wider."""
    return torch.promote_types(dtype, torch.float32)


def upcast(x: Tensor) -> Tensor:
    """Return ``x`` in float32 or wider."""
    return x.to(accumulation_dtype(x.dtype))


def neg_inf(dtype: torch.dtype = torch.float32) -> float:
    """Return the logit of a hidden key. It is finite, so that sums and differences of a few of them are not NaN."""
    return max(-1e30, torch.finfo(dtype).min / 4)
