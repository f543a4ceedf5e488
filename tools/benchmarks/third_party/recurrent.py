"""Third-party kernels of causal methods with gates, decays and strengths.

Kernels of flash-linear-attention inside our layers, which compute projections, gates, decays and norms. Its naive
implementations run on any device; on a GPU, users of the package run other kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from wrappers import Whole, require_multiple

from cab.attention import Attention
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.build import make_attention
from cab.spec import Spec

Make = Callable[..., nn.Module]

Layer = Any
"""One of our layers, whose kernel is replaced."""

CHUNK, LINEAR_CHUNK, BASED_CHUNK = 32, 64, 256
"""Block lengths of the package, for kernels that require multiples."""


class InOurLayer(nn.Module):
    """``kernel(layer, q, k, v, extras)`` on heads [B, H, N, E] instead of the layer's ``attend``."""

    q_proj = k_proj = v_proj = True

    def __init__(self, layer: Layer, kernel: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self.kernel = kernel

    def forward(self, query: Tensor) -> Tensor:
        heads, extras = self.inputs(query)
        with torch.autocast(query.device.type, enabled=False):
            heads = [x.float() for x in heads]
            output = self.kernel(self.layer, *heads, {name: x.float() for name, x in extras.items()})
        return self.layer.out_proj(self.layer.merge_heads(output.to(query.dtype)))

    def inputs(self, x: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return q, k and v, and additional quantities computed from the layer's input."""
        layer = self.layer
        if hasattr(layer, "mixed"):  # token shift
            heads, extras = layer.inputs(x, F.pad(x[:, :-1], (0, 0, 1, 0)))
            return list(heads), extras
        return list(layer.project(x, x, x)), {**layer.query_side_inputs(x), **layer.key_side_inputs(x)}


def in_our_layer(name: str, kernel: Callable[..., Tensor]) -> Make:
    """Return a builder of the attention ``name`` with another kernel."""

    def make(pattern: Pattern, embed_dim: int, num_heads: int, **options: Any) -> nn.Module:
        spec = Spec(name, options)
        layer: Layer = make_attention(spec, pattern, embed_dim=embed_dim, num_heads=num_heads)
        if hasattr(layer, "mixed"):
            layer.mixed_by_spans = layer.mixed  # avoid the slower, memory-saving path
        return InOurLayer(layer, kernel)

    return make


def recurrence(kernel: Callable[[Layer, Any], Tensor]) -> Callable[..., Tensor]:
    """Return the forward pass of our recurrent layer around ``kernel(layer, terms)``, for all tokens at once."""

    def whole(layer: Layer, query: Tensor, key: Tensor, value: Tensor, extras: dict[str, Tensor]) -> Tensor:
        heads, _ = Attention.convolve(layer, (query, key, value), None)
        position = torch.arange(query.shape[2], device=query.device).unsqueeze(0)
        output = kernel(layer, layer.terms(*heads, extras, position))
        return layer.finish(output, heads[2], extras)

    return whole


def fla(path: str) -> Any:
    """Return a function of the package, by module and name."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"fla.ops.{module}"), name)


def tokens_first(*tensors: Tensor) -> list[Tensor]:
    """Transpose [B, H, N, ...] to [B, N, H, ...]."""
    return [x.transpose(1, 2) for x in tensors]


# --- decaying states, with a rate per head or feature --------------------------------------------------------


def decay_of_heads(form: str, _layer: Layer, terms: Any) -> Tensor:
    """Compute decays per head; a query and key shared by all heads are expanded."""
    batch, heads, length, _ = terms.value.shape
    query, key = (x.expand(batch, heads, -1, -1) for x in (terms.query, terms.key))
    decay = terms.log_decay.expand(batch, heads, length)
    output, _ = fla(f"simple_gla.naive.naive_{form}_simple_gla")(
        *tokens_first(query, key, terms.value, decay), scale=1.0
    )
    return output.transpose(1, 2)


def retention(_layer: Layer, terms: Any) -> Tensor:
    """Compute retention in parallel."""
    return fla("retention.naive.naive_retention")(terms.query * terms.query.shape[-1] ** 0.5, terms.key, terms.value)


def decay_of_features(_layer: Layer, terms: Any) -> Tensor:
    """Compute decays per feature."""
    query = terms.query * terms.query.shape[-1] ** 0.5
    inputs = tokens_first(query, terms.key, terms.value, terms.log_decay)
    return fla("gla.naive.naive_recurrent_gla")(*inputs)[0].transpose(1, 2)


def rwkv6(form: str, layer: Layer, terms: Any) -> Tensor:
    """Compute RWKV-6."""
    inputs = terms.query, terms.key, terms.value, terms.log_decay, layer.bonus[:, 0]
    if form == "chunk":
        require_multiple(terms.query.shape[2], CHUNK)
        if torch.is_grad_enabled():
            raise UserError("the backward pass is not supported (in-place operations)")
        return fla("rwkv6.chunk_naive.naive_chunk_rwkv6")(*inputs)
    return fla("rwkv6.recurrent_naive.naive_recurrent_rwkv6")(*inputs, scale=1.0)[0]


# --- states with error correction -----------------------------------------------------------------------------


def delta_rule(form: str, _layer: Layer, terms: Any) -> Tensor:
    """Compute the delta rule."""
    if form == "chunkwise":
        require_multiple(terms.query.shape[2], CHUNK)
    query = terms.query * terms.query.shape[-1] ** 0.5
    return fla(f"delta_rule.naive.delta_rule_{form}")(query, terms.key, terms.value, terms.strength)[0]


def gated_delta_rule(form: str, _layer: Layer, terms: Any) -> Tensor:
    """Compute the gated delta rule."""
    inputs = tokens_first(terms.query, terms.key, terms.value)
    extras = {"beta": terms.strength.transpose(1, 2), "g": terms.log_decay.transpose(1, 2)}
    return fla(f"gated_delta_rule.naive.naive_{form}_gated_delta_rule")(*inputs, **extras, scale=1.0)[0].transpose(1, 2)


def rwkv7(form: str, layer: Layer, terms: Any) -> Tensor:
    """Compute a decay and a rank-one correction."""
    if form == "chunkwise":
        require_multiple(terms.query.shape[2], CHUNK)
    query, key, value, decay, rate = terms
    removal = F.normalize(key * layer.removed, dim=-1)
    key = key * (1 + (rate - 1) * layer.replaced)
    scaled = query * query.shape[-1] ** 0.5
    kernel = fla(f"generalized_delta_rule.dplr.naive.dplr_{form}")
    output = kernel(scaled, key, value, -removal, rate * removal, decay)[0]
    return layer.layer_norm(output) + (query * layer.bonus * key).sum(dim=-1, keepdim=True) * value


# --- other methods --------------------------------------------------------------------------------------------


def based(form: str, _layer: Layer, query: Tensor, key: Tensor, value: Tensor, _extras: dict[str, Tensor]) -> Tensor:
    """Compute Based."""
    if form == "chunk":
        require_multiple(query.shape[2], BASED_CHUNK)
    return fla(f"based.naive.naive_{form}_based")(query, key, value)


def linear(layer: Layer, query: Tensor, key: Tensor, value: Tensor, _extras: dict[str, Tensor]) -> Tensor:
    """Compute linear attention."""
    require_multiple(query.shape[2], LINEAR_CHUNK)
    if layer.kernel != "elu1":
        raise UserError(f"kernel={layer.kernel} is not supported (incorrect denominator)")
    inputs = tokens_first(F.elu(query) + 1, F.elu(key) + 1, value)
    return fla("linear_attn.naive.naive_chunk_linear_attn")(*inputs, normalize=True).transpose(1, 2)


def forgetting(_layer: Layer, query: Tensor, key: Tensor, value: Tensor, extras: dict[str, Tensor]) -> Tensor:
    """Compute forgetting attention."""
    inputs = tokens_first(query, key, value, extras["kept"])
    return fla("forgetting_attn.naive.naive_forgetting_attn")(*inputs).transpose(1, 2)


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


def with_recurrence(attention: str, kernel: Callable[..., Tensor], *form: str) -> Make:
    """Return a builder of a recurrent attention with another kernel, in one of its forms."""
    return in_our_layer(attention, recurrence(partial(kernel, *form)))


retention_parallel = with_recurrence("retention", retention)
retention_chunk = with_recurrence("retention", decay_of_heads, "chunk")
retention_recurrent = with_recurrence("retention", decay_of_heads, "recurrent")
lightning_chunk = with_recurrence("lightning", decay_of_heads, "chunk")
lightning_recurrent = with_recurrence("lightning", decay_of_heads, "recurrent")
ssd_chunk = with_recurrence("ssd", decay_of_heads, "chunk")
ssd_recurrent = with_recurrence("ssd", decay_of_heads, "recurrent")
gla_recurrent = with_recurrence("gla", decay_of_features)
hgrn2_recurrent = with_recurrence("hgrn2", decay_of_features)
rwkv6_chunk = with_recurrence("rwkv6", rwkv6, "chunk")
rwkv6_recurrent = with_recurrence("rwkv6", rwkv6, "recurrent")
deltanet_chunk = with_recurrence("deltanet", delta_rule, "chunkwise")
deltanet_recurrent = with_recurrence("deltanet", delta_rule, "recurrence")
gated_deltanet_chunk = with_recurrence("gated_deltanet", gated_delta_rule, "chunk")
gated_deltanet_recurrent = with_recurrence("gated_deltanet", gated_delta_rule, "recurrent")
rwkv7_chunk = with_recurrence("rwkv7", rwkv7, "chunkwise")
rwkv7_recurrent = with_recurrence("rwkv7", rwkv7, "recurrence")
based_parallel = in_our_layer("based", partial(based, "parallel"))
based_chunk = in_our_layer("based", partial(based, "chunk"))
linear_chunk = in_our_layer("linear", linear)
forgetting_parallel = in_our_layer("forgetting", forgetting)
