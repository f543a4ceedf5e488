"""Registered attentions as attention functions of Hugging Face Transformers.

    from cab import use_in_transformers

    model = AutoModelForCausalLM.from_config(config, attn_implementation=use_in_transformers("linear"))

The model keeps its projections, rotary embeddings and key-value cache; the attention computes outputs from heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cab.attention import Attention
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.build import build_attention

MODULE = "cab_attention"
"""Name of the attention, with its own parameters, in each attention layer of the model."""


class Part(nn.Module):
    """One of three equal parts of the last dimension; replaces a projection.

    Args:
        index: 0, 1 or 2.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x.chunk(3, dim=-1)[self.index]


class Heads(nn.Identity):
    """The merged heads themselves; replaces the last projection.

    Args:
        in_features: width of the merged heads.
    """

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.in_features = in_features


def use_in_transformers(name: str, **options: Any) -> str:
    """Register an attention with transformers and return its name for ``attn_implementation``.

    Parameters of the attention itself are created in the first forward pass: run one before you create the optimizer.
    In cached decoding, the attention is recomputed over all cached keys and values.

    Args:
        name: name of a registered attention, or ``FILE.py:Class``.
        options: options of its constructor.

    Raises:
        UserError: transformers is not installed, or the attention cannot be computed from the heads of queries, keys
            and values alone.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise UserError(f"cannot import transformers ({error}); install it: `pip install transformers`") from error
    check_depends_on_heads(name, options)
    words = "_".join([name, *(f"{option}_{value}" for option, value in options.items())])
    entry = "cab_" + "".join(letter if letter.isalnum() else "_" for letter in words)
    entry = entry.replace("flash", "fl_ash")  # transformers requires a kernel for every name that contains "flash"

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **_unused: Any,
    ) -> tuple[Tensor, None]:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        pattern = Pattern.CS if causal else Pattern.NS
        return attend_heads(module, name, options, pattern, (query, key, value), attention_mask, scaling), None

    AttentionInterface.register(entry, attend)
    AttentionMaskInterface.register(entry, padding_mask)
    return entry


def padding_mask(*, attention_mask: Tensor | None = None, **_unused: Any) -> Tensor | None:
    """Return the mask [B, M] of real keys, from which the attention derives padding; causality is its own."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


def attend_heads(
    module: nn.Module,
    name: str,
    options: Mapping[str, Any],
    pattern: Pattern,
    heads: tuple[Tensor, Tensor, Tensor],
    real: Tensor | None,
    scaling: float | None,
) -> Tensor:
    """Return outputs [B, T, H, E] of the last T tokens, for queries [B, H, T, E] and keys and values [B, G, M, E].

    Args:
        module: attention layer of the model, in which the attention is stored.
        name: name of the attention.
        options: options of the attention.
        pattern: CS or NS.
        heads: queries, keys and values; G divides H.
        real: mask [B, M] of keys that are not padding, or None.
        scaling: factor of query-key products in the model; default: 1 / sqrt(E).
    """
    query, key, value = heads
    _, num_heads, tokens, head_dim = query.shape
    if not hasattr(module, MODULE):
        module.add_module(MODULE, bare_attention(name, options, pattern, num_heads, head_dim).to(query))
    attention = module.get_submodule(MODULE).train(module.training)
    factor = 1.0 if scaling is None else scaling * math.sqrt(head_dim)
    earlier = query.new_zeros(*query.shape[:2], key.shape[2] - tokens, head_dim)
    groups = num_heads // key.shape[1]
    repeated = [x.repeat_interleave(groups, dim=1) for x in (key, value)]
    parts = [torch.cat([earlier, query * factor], dim=2), *repeated]
    inputs = torch.cat([x.transpose(1, 2).flatten(2) for x in parts], dim=-1)
    mask = None if real is None else ~real[:, : inputs.shape[1]].bool()
    output = attention(inputs, query_padding_mask=mask)
    return output[:, -tokens:].unflatten(-1, (num_heads, head_dim))


def bare_attention(name: str, options: Mapping[str, Any], pattern: Pattern, num_heads: int, head_dim: int) -> Attention:
    """Return an attention without projections: inputs are queries, keys and values side by side, [B, N, 3 D]."""
    width = num_heads * head_dim
    attention = build_attention(name, pattern=pattern, embed_dim=width, num_heads=num_heads, **options)
    attention.q_proj, attention.k_proj, attention.v_proj = (Part(index) for index in range(3))  # type: ignore[assignment]
    attention.out_proj = Heads(width)  # type: ignore[assignment]
    attention.embed_dim = 3 * width
    return attention


@torch.no_grad()
def check_depends_on_heads(name: str, options: Mapping[str, Any]) -> None:
    """Raise UserError if an output depends on more than its own query, and the keys and values up to it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            attention = bare_attention(name, options, Pattern.CS, 2, 16).eval()
            inputs = torch.randn(1, 33, 96)
            whole = attention(inputs)[:, -1]
            inputs[:, :-1, :32] = 0.0
            last = attention(inputs)[:, -1]
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"attention '{name}' cannot run in transformers: it computes more than queries, keys and values from "
                f"its inputs ({type(error).__name__}); use it in a backbone of this project"
            ) from error
    if not torch.allclose(whole, last, atol=1e-5):
        raise UserError(
            f"attention '{name}' cannot run in transformers: an output depends on earlier queries, which the key-value "
            "cache does not contain; use it in a backbone of this project"
        )
