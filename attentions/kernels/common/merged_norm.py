"""Norms of a token over all of its heads at once.

Shapes: B batch, H heads, N tokens, E width of a head, D = H E.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cab import UserError


class SimpleRMSNorm(nn.Module):
    """Compute x / (rms(x) + 1e-8) without a weight; epsilon is outside of the root, as released for TransNormer."""

    def forward(self, x: Tensor) -> Tensor:
        rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return x / (rms + 1e-8)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "simplerms": lambda _width: SimpleRMSNorm(),
    "rms": lambda width: nn.RMSNorm(width, eps=1e-8),
    "layer": lambda width: nn.LayerNorm(width, bias=False),  # nothing stays nothing
    "none": lambda _width: nn.Identity(),
}


class MergedNorm(nn.Module):
    """Apply the norm ``kind`` over the width D of a token to [B, H, N, E]; raise UserError for an unknown one."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        if kind not in NORMS:
            raise UserError(f"norm must be one of {', '.join(NORMS)}, got '{kind}'")
        self.norm = NORMS[kind](width)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.norm, nn.Identity):
            return x
        merged = self.norm(x.transpose(1, 2).flatten(2))
        return merged.unflatten(2, (x.shape[1], -1)).transpose(1, 2)
