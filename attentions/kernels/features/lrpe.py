"""Linearized relative positions (Qin et al. 2023, "Linearized Relative Positional Encoding"): a reflection, then turns.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BASE = 10_000.0


class LinearizedRotary(nn.Module):
    """Compute R(t) (I - 2 u u^T) x at position t; products depend on the difference of positions only.

    u is a random unit vector that stays as it is drawn; R(t) turns coordinates 2i and 2i + 1 by t theta_i, where theta
    is learned and starts as BASE^(-2i / E). Of an odd width the last coordinate does not turn.
    """

    direction: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        pairs = torch.arange(width // 2, dtype=torch.float64)
        self.theta = nn.Parameter((BASE ** (-2 * pairs / width)).to(torch.get_default_dtype()))
        self.register_buffer("direction", nn.functional.normalize(torch.randn(width), dim=0))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Transform ``x`` [B, H, N, E] of tokens at ``position`` [B or 1, N]."""
        u = self.direction.to(x.dtype)
        x = x - 2.0 * (x @ u).unsqueeze(-1) * u
        angle = position.double()[:, None, :, None] * self.theta.double()  # in float32 it is off at late positions
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        turning = 2 * len(self.theta)
        even, odd = x[..., 0:turning:2], x[..., 1:turning:2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
        return turned if turning == x.shape[-1] else torch.cat([turned, x[..., turning:]], dim=-1)
