"""Comba (Hu et al. 2025): a gated delta rule with a scaled feedback, and a query corrected by the key."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from attentions.bases.recurrent import Extras, RecurrenceInputs, projection
from attentions.deltanet import GatedDeltaNetAttention
from attentions.kernels.delta_rule import SPAN_ROUNDING, comba
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import Form
from cab import ParamGroupOverride, register_attention
from cab.attention import SizeArguments
from cab.claims import Claims


@register_attention("comba", patterns="CS", complexity="n", paper="Hu et al. 2025")
class CombaAttention(GatedDeltaNetAttention):
    """Compute S_t = (a_t - c b_t k_t k_t^T) S_{t-1} + b_t k_t (x) v_t and o_t = q_t S_t / sqrt(K).

    Comba, arXiv:2506.02475: the transition is a scalar plus a matrix of rank one, so the feedback k_t S_{t-1} is read
    before the decay, as in both kernels of flash-linear-attention (its `naive_recurrent_comba` reads it after). c =
    sigmoid(C) and D have one number per head. q = unit(silu(q) - D c silu(k)); without D, k is unit(silu(k)). All else
    is that of `gated_deltanet`, except that b has no bias and the gate after the norm is sigmoid(x W_g).

    The initialization is that of flash-linear-attention (attentions/defaults.csv), whose layer also divides c k by its
    norm, so that c has no effect on the feedback there. A, b_a and D have no weight decay.

    Args:
        correction: initial D; 1 as published for 1.3B parameters, 0.02 for 340M.
        short_convolution: kernel size of the short convolutions; 4 as published, 0 for none.
    """

    operation = comba
    gate_activation = "sigmoid"
    claims = Claims(parameter_budget=0.15, noncausal_rounding=SPAN_ROUNDING)

    def __init__(self, *, correction: float = 1.0, short_convolution: int = 4, **common: Unpack[SizeArguments]) -> None:
        super().__init__(short_convolution=short_convolution, **common)
        self.strength_proj = projection(self.embed_dim, self.num_heads, None)
        self.feedback = nn.Parameter(torch.ones(self.num_heads, 1, 1))
        self.correction = nn.Parameter(torch.full((self.num_heads, 1, 1), correction))

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return super().param_group_overrides() | {"correction": ParamGroupOverride(weight_decay=0.0)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, position: Tensor) -> RecurrenceInputs:
        corrected = query - self.correction.to(key.dtype) * self.scaled(key)
        return super().terms(corrected, key, value, extras, position)

    def scaled(self, key: Tensor) -> Tensor:
        """Compute c k [B, H, N, K]."""
        return upcast(self.feedback).sigmoid().to(key.dtype) * key

    def update(self, terms: RecurrenceInputs, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        query, key, value, log_decay, strength = terms
        return form(query, key, value, self.scaled(key), strength, log_decay, memory)

    def write(self, now: RecurrenceInputs, memory: Tensor) -> Tensor:
        """Compute S_t from S_{t-1} [B, H, K, V] and the terms of one token."""
        assert now.log_decay is not None
        assert now.strength is not None
        read = torch.einsum("bhk,bhkv->bhv", self.scaled(now.key.unsqueeze(2)).squeeze(2), memory)
        written = now.strength[..., None, None] * now.key.unsqueeze(-1) * (now.value - read).unsqueeze(-2)
        return now.log_decay.exp()[..., None, None] * memory + written
