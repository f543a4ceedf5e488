"""Rotary positions (Su et al. 2021): pairs of coordinates turn by an angle that grows with the position.

Shapes: B batch, H heads, N tokens, E width, even.
"""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10_000.0


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Rotate coordinates 2c and 2c + 1 of ``x`` [B, H, N, E] by position * 10000^(-2c / E), in float32 or wider.

    ``position`` is [B or 1, N]; the product of two turned vectors depends on the difference of their positions.
    """
    width = x.shape[-1]
    frequency = BASE ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angle = position.double()[:, None, :, None] * frequency  # a float32 angle is off by 1e-4 after thousands of tokens
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
