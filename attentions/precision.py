"""In which precision sums over many tokens are formed."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """``x`` in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
