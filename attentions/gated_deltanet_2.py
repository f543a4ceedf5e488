"""Gated DeltaNet-2 (Hatamizadeh et al. 2026): a delta rule that erases and writes with a gate per feature each."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.bases.recurrent import Extras, RecurrenceInputs, projection
from attentions.kda import KDAAttention
from attentions.kernels.delta_rule import SPAN_ROUNDING, gated_delta_rule_2
from cab import register_attention
from cab.attention import SizeArguments
from cab.claims import Claims


@register_attention("gated_deltanet_2", patterns="CS", complexity="n", paper="Hatamizadeh et al. 2026")
class GatedDeltaNet2Attention(KDAAttention):
    """Compute S_t = (I - k_t (b_t * k_t)^T) diag(a_t) S_{t-1} + k_t (x) (w_t * v_t) and o_t = q_t S_t / sqrt(K).

    Gated DeltaNet-2, arXiv:2605.22791. As `kda`, with b = sigmoid(x W_b) per feature of a key and w = sigmoid(x W_w)
    per feature of a value.

    Args:
        negative_eigenvalues: whether b is in 0 to 2 instead of 0 to 1; w stays in 0 to 1.
        short_convolution: kernel size of the short convolutions; 4 as published, 0 for none.
    """

    operation = gated_delta_rule_2
    claims = Claims(
        parameter_budget=0.2,  # 6 D^2 and the low-rank maps per layer, as published
        noncausal_rounding=SPAN_ROUNDING,
    )

    def __init__(
        self, *, negative_eigenvalues: bool = False, short_convolution: int = 4, **common: Unpack[SizeArguments]
    ) -> None:
        super().__init__(negative_eigenvalues=negative_eigenvalues, short_convolution=short_convolution, **common)
        # instead of KDA's, which has one strength per head
        self.strength_proj = projection(self.embed_dim, self.num_heads * self.key_width, None)
        self.write_proj = projection(self.embed_dim, self.num_heads * self.value_width, None)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {**super().key_side_inputs(key), "write": self.write_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, position: Tensor) -> RecurrenceInputs:
        terms = super().terms(query, key, value, extras, position)
        return terms._replace(value=terms.value * self.split_heads(extras["write"]).sigmoid())

    def write(self, now: RecurrenceInputs, memory: Tensor) -> Tensor:
        """Compute S_t from S_{t-1} [B, H, K, V] and the terms of one token."""
        assert now.log_decay is not None
        assert now.strength is not None
        memory = memory * now.log_decay.exp().unsqueeze(-1)
        missing = now.value - torch.einsum("bhk,bhkv->bhv", now.strength * now.key, memory)
        return memory + now.key.unsqueeze(-1) * missing.unsqueeze(-2)
