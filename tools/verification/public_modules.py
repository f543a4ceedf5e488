"""Modules of public packages whose constructors have other arguments: factories for `cab verify`."""

from __future__ import annotations

from minGRU_pytorch import minGRU
from torch import nn


def min_gru(embed_dim: int) -> nn.Module:
    """Return the layer of minGRU-pytorch, which is causal."""
    return minGRU(embed_dim)
