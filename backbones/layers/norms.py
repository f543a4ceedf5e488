"""Normalization layers, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from cab import UserError

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "simplerms": partial(nn.RMSNorm, eps=1e-16, elementwise_affine=False),
}
"""``simplerms`` (Qin et al. 2022) is x / rms(x), without weights; it adds 1e-8 to the root."""


def make_norm(kind: str, width: int) -> nn.Module:
    """Return the norm called ``kind``; raise UserError for an unknown name."""
    if kind not in NORMS:
        raise UserError(f"unknown norm '{kind}': choose one of {', '.join(NORMS)}")
    return NORMS[kind](width)
