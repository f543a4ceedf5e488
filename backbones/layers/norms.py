"""Normalization layers, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

NormKind = Literal["layer", "simplerms"]
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "simplerms": partial(nn.RMSNorm, eps=1e-16, elementwise_affine=False),
}
"""``simplerms`` (Qin et al. 2022) is x / rms(x), without weights; it adds 1e-8 to the root."""


def make_norm(kind: NormKind, width: int) -> nn.Module:
    """Return the norm called ``kind``."""
    return NORMS[kind](width)
