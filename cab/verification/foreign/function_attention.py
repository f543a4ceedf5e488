"""Attention functions on heads: ``f(query, key, value, causal)``, and attention functions of Hugging Face.

The function is called between linear projections, so it is verified in all patterns, with gradients and parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cab.patterns import Pattern
from cab.verification.foreign.base import ForeignModule

CAUSAL = ("causal", "is_causal")
"""Names of the argument that selects causal attention."""


class FunctionAttention(ForeignModule):
    """A function of query, key and value [B, H, N, E] between linear projections; it knows no padding.

    Args:
        pattern: pattern; the argument ``causal`` or ``is_causal`` of the function is True in CS.
        embed_dim: width.
        num_heads: number of heads.
    """

    function: ClassVar[Callable[..., Any]]
    padding_layouts: tuple[str, ...] = ()

    def __init__(self, *, pattern: Pattern | str, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.pattern = Pattern.parse(pattern)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        key = query if key is None else key
        value = key if value is None else value
        projected = (self.q_proj(query), self.k_proj(key), self.v_proj(value))
        heads = [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected]
        padding = query_padding_mask if key_padding_mask is None else key_padding_mask
        return self.out_proj(self.call(heads[0], heads[1], heads[2], padding).flatten(2))

    def call(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return the outputs [B, N, H, E] of the function for heads [B, H, N, E]."""
        named = inspect.signature(type(self).function).parameters
        causal = {name: self.pattern is Pattern.CS for name in CAUSAL if name in named}
        return type(self).function(query, key, value, **causal).transpose(1, 2)


class HuggingFaceFunction(FunctionAttention):
    """An attention function of transformers' ``AttentionInterface``, with an additive mask as in eager attention."""

    package: ClassVar[str] = "transformers"
    padding_layouts = ("right", "left", "inside")
    is_causal = False
    num_key_value_groups = 1

    def call(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        allowed = query.new_ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
        if self.pattern is Pattern.CS:
            allowed = allowed.tril()
        if padding is not None:
            allowed = allowed & ~padding[:, None, None]
        # Some functions compute the softmax in float32 also for float64 inputs.
        lowest = max(torch.finfo(query.dtype).min, torch.finfo(torch.float32).min)
        mask = torch.zeros_like(allowed, dtype=query.dtype).masked_fill(~allowed, lowest)
        scaling = query.shape[-1] ** -0.5
        outputs, _ = type(self).function(self, query, key, value, mask, dropout=0.0, scaling=scaling, is_causal=False)
        return outputs
