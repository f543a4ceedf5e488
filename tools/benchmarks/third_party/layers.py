"""Recurrent layers: Mamba-2 of transformers, and those of flash-linear-attention, whose kernels need a GPU.

Sizes of the latter are close to those of our layers, but not equal: they are compared by time and memory only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn
from wrappers import Whole


def layer(module: str, name: str, embed_dim: int, num_heads: int, **options: Any) -> nn.Module:
    """Build a layer; options of the width of a head are fractions of ``embed_dim / num_heads``."""
    sizes = {key: int(value * embed_dim / num_heads) for key, value in options.items() if isinstance(value, float)}
    kind = getattr(import_module(f"fla.layers.{module}"), name)
    return Whole(kind(hidden_size=embed_dim, layer_idx=0, **{"num_heads": num_heads} | options | sizes))


def of(module: str, name: str, **options: Any) -> Callable[[int, int], nn.Module]:
    """Return a builder of a layer."""
    return lambda embed_dim, num_heads: layer(module, name, embed_dim, num_heads, **options)


def mamba2(embed_dim: int, num_heads: int, state_size: int, short_convolution: int) -> nn.Module:
    """Build Mamba-2 of transformers in blocks of 64, which takes a quarter of time and memory of its default 256."""
    package = import_module("transformers.models.mamba2")
    config = package.Mamba2Config(
        hidden_size=embed_dim,
        num_heads=num_heads,
        head_dim=2 * embed_dim // num_heads,
        expand=2,
        state_size=state_size,
        n_groups=1,
        conv_kernel=short_convolution or 1,
        chunk_size=64,
        num_hidden_layers=1,
    )
    return Whole(package.modeling_mamba2.Mamba2Mixer(config, layer_idx=0))


heads = partial(of, head_dim=1.0)
wide_values = partial(of, head_dim=0.75, expand_v=2)

gla = of("gla", "GatedLinearAttention")
hgrn2 = of("hgrn2", "HGRN2Attention", expand_ratio=1.0)
retention = of("multiscale_retention", "MultiScaleRetention")
lightning = of("simple_gla", "SimpleGatedLinearAttention", expand_k=1, expand_v=1)
deltanet = of("delta_net", "DeltaNet")
gated_deltanet = wide_values("gated_deltanet", "GatedDeltaNet")
deltaproduct = wide_values("gated_deltaproduct", "GatedDeltaProduct")
comba = wide_values("comba", "Comba")
rwkv6 = of("rwkv6", "RWKV6Attention", expand_k=1, expand_v=1)
rwkv7 = of("rwkv7", "RWKV7Attention", head_dim=None, num_hidden_layers=12)
kda = heads("kda", "KimiDeltaAttention")
gated_deltanet_2 = heads("gdn2", "GatedDeltaNet2")
forgetting = of("forgetting_attn", "ForgettingAttention")
