"""Kimi Delta Attention (Kimi Team 2025): a delta rule with one decay per feature."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent, projection
from attentions.kernels.delta_rule import SPAN_ROUNDING, kda, kda_decay
from attentions.kernels.norms import unit
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import Form
from attentions.ssd import step_map
from cab import ParamGroupOverride, register_attention
from cab.attention import SizeArguments
from cab.claims import Claims

LEAST_LOG_DECAY = -5.0
"""Of the bounded gate, whose decays of 16 tokens have finite inverses in float32."""


@register_attention("kda", patterns="CS", complexity="n", paper="Kimi Team 2025")
class KDAAttention(Recurrent):
    """Compute S_t = (I - b_t k_t k_t^T) diag(a_t) S_{t-1} + b_t k_t (x) v_t and o_t = q_t S_t / sqrt(K).

    Kimi Linear, arXiv:2510.26692. q, k and v pass short convolutions and silu, q and k are divided by their norms,
    b = sigmoid(x W) per head, and a_t = exp(-A softplus(x W_1 W_2 + c)) per feature, with A per head. An RMS norm per
    head, the factor sigmoid(x G_1 G_2 + d) and ``out_proj`` follow. W_1 and G_1 are as wide as a head.

    The initialization is that of flash-linear-attention (attentions/defaults.csv). A and c have no weight decay.

    With ``decay=bounded``, a_t = exp(-5 sigmoid(A (x W_1 W_2 + c))), and A is 1 at the start (Kimi-K3, GLM-5).

    Args:
        decay: ``softplus``, as published, or ``bounded``.
        negative_eigenvalues: whether b is in 0 to 2 instead of 0 to 1.
        short_convolution: kernel size of the short convolutions; 4 as published, 0 for none.
    """

    operation = kda
    decays = "feature"
    activates_heads = True
    gate_activation = "sigmoid"
    claims = Claims(noncausal_rounding=SPAN_ROUNDING)

    def __init__(
        self,
        *,
        decay: Literal["softplus", "bounded"] = "softplus",
        negative_eigenvalues: bool = False,
        short_convolution: int = 4,
        **common: Unpack[SizeArguments],
    ) -> None:
        super().__init__(short_convolution=short_convolution, gain=None, out_gain=None, **common)
        self.decay = decay
        self.largest_strength = 2.0 if negative_eigenvalues else 1.0
        keys, values = self.num_heads * self.key_width, self.num_heads * self.value_width
        self.strength_proj = projection(self.embed_dim, self.num_heads, None)
        self.decay_map = nn.Sequential(
            projection(self.embed_dim, self.value_width, None), step_map(self.value_width, keys)
        )
        self.gate_map = nn.Sequential(
            projection(self.embed_dim, self.value_width, None), nn.Linear(self.value_width, values)
        )
        rate = torch.empty(self.num_heads, 1, 1).uniform_(1.0, 16.0)
        self.log_rate = nn.Parameter(rate.log() if decay == "softplus" else torch.zeros_like(rate))

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {name: ParamGroupOverride(weight_decay=0.0) for name in ("log_rate", "decay_map.1.bias")}

    def query_side_inputs(self, query: Tensor) -> dict[str, Tensor]:
        return {"gate": self.gate_map(query)}

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key), "step": self.decay_map(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        query, key = unit(query), unit(key)
        step = self.split_heads(extras["step"])
        if self.decay == "softplus":
            log_decay = kda_decay(step, self.log_rate)
        else:
            log_decay = LEAST_LOG_DECAY * (upcast(self.log_rate).exp() * upcast(step)).sigmoid()
        strength = self.largest_strength * self.split_heads(extras["strength"]).sigmoid()
        return RecurrenceInputs(query * self.key_width**-0.5, key, value, log_decay, strength)

    def update(self, terms: RecurrenceInputs, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        query, key, value, log_decay, strength = terms
        return form(query, key, value, strength, log_decay, memory)

    def write(self, now: RecurrenceInputs, memory: Tensor) -> Tensor:
        """Compute S_t from S_{t-1} [B, H, K, V] and the terms of one token."""
        assert now.log_decay is not None
        assert now.strength is not None
        memory = memory * now.log_decay.exp().unsqueeze(-1)
        missing = now.value - torch.einsum("bhk,bhkv->bhv", now.key, memory)
        return memory + (now.strength * now.key).unsqueeze(-1) * missing.unsqueeze(-2)
