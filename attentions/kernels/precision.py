"""In which precision sums over many tokens are formed, and what stands for the weight of nothing."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """``dtype``, or float32 where that is more."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """``x`` in float32 at least."""
    return x.to(wide_dtype(x.dtype))


def no_weight(dtype: torch.dtype = torch.float32) -> float:
    """Logarithm of the weight of nothing; finite, so that sums of a few and differences are numbers."""
    return max(-1e30, torch.finfo(dtype).min / 4)
