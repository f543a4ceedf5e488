"""Gated DeltaProduct (Siems et al. 2025): several steps of the gated delta rule per token."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent, projection
from attentions.kernels.delta_rule import delta_product
from attentions.kernels.linear_attention import unit
from attentions.kernels.recurrence import Form
from attentions.ssd import step_map
from cab import ParamGroupOverride, register_attention
from cab.attention import SizeArguments
from cab.claims import Claims
from cab.convolution import ShortConvolution
from cab.registry.options import Positive


@register_attention("deltaproduct", patterns="CS", complexity="n", paper="Siems et al. 2025")
class DeltaProductAttention(Recurrent):
    """Compute S_t = a_t S_{t-1}, S_t += b_ti k_ti (x) (v_ti - k_ti S_t) for i = 1 .. n, and o_t = q_t S_t / sqrt(K).

    Gated DeltaProduct, arXiv:2502.10297: n keys k_ti, values v_ti and write strengths b_ti = 2 sigmoid(x W_i) per
    token. All else is that of `gated_deltanet`: short convolutions and silu, unit queries and keys, decays
    a_t = exp(-A softplus(x W_a + b_a)) per head, and silu(x W_g) * norm(o).

    The initialization is that of flash-linear-attention (attentions/defaults.csv). A and b_a have no weight decay.
    Queries have 3/4 of the width ``embed_dim``, values twice as much as the keys.

    Args:
        num_factors: n, the steps per token.
        negative_eigenvalues: whether b is in 0 to 2 instead of 0 to 1.
        short_convolution: kernel size of the short convolutions; 4 as published, 0 for none.
    """

    operation = delta_product
    claims = Claims(parameter_budget=0.3)  # 8.25 D^2 per layer with two factors, as published

    def __init__(
        self,
        *,
        num_factors: Positive = 2,
        negative_eigenvalues: bool = True,
        short_convolution: int = 4,
        **common: Unpack[SizeArguments],
    ) -> None:
        super().__init__(
            key_expansion=0.75,
            value_expansion=1.5,
            gate=True,
            short_convolution=short_convolution,
            gain=None,
            out_gain=None,
            **common,
        )
        self.num_factors = num_factors
        self.largest_strength = 2.0 if negative_eigenvalues else 1.0
        key, value = num_factors * self.key_width, num_factors * self.value_width
        self.k_proj = projection(self.embed_dim, self.num_heads * key, None)
        self.v_proj = projection(self.embed_dim, self.num_heads * value, None)
        if self.convolutions is not None:
            for name, width in (("key", key), ("value", value)):
                self.convolutions[name] = ShortConvolution(self.num_heads, width, short_convolution)
        self.strength_proj = projection(self.embed_dim, self.num_heads * num_factors, None)
        self.log_rate = nn.Parameter(torch.empty(self.num_heads, 1).uniform_(1e-3, 16.0).log())
        self.step_proj = step_map(self.embed_dim, self.num_heads)

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {name: ParamGroupOverride(weight_decay=0.0) for name in ("log_rate", "step_proj.bias")}

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key), "step": self.step_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        """Compute the terms with all keys [B, H, N, n K], values [B, H, N, n V] and strengths [B, H, N, n]."""
        query, key = unit(F.silu(query)), unit(F.silu(key).unflatten(-1, (self.num_factors, -1))).flatten(-2)
        # Contiguous: the compiler assumes that layout of the gradient.
        step = F.softplus(extras["step"].transpose(1, 2).contiguous())
        log_decay = -self.log_rate.to(step.dtype).exp() * step
        strength = self.largest_strength * self.split_heads(extras["strength"]).sigmoid()
        return RecurrenceInputs(query * self.key_width**-0.5, key, F.silu(value), log_decay, strength)

    def update(self, terms: RecurrenceInputs, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Compute a delta rule with n keys per token."""
        query, key, value, log_decay, strength = terms
        assert strength is not None
        key, value = (x.unflatten(-1, (self.num_factors, -1)).flatten(2, 3) for x in (key, value))
        return form(query, key, value, strength.flatten(2), log_decay, memory)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **extras: Tensor) -> Tensor:
        """Compute the recurrence of convolved heads of one row step by step, [H, n, ...] to [H, n, V]."""
        extras = {name: x[None] for name, x in extras.items()}
        terms = self.terms(query[None], key[None], value[None], extras, torch.arange(query.shape[1]))
        memory = value.new_zeros(1, self.num_heads, self.key_width, self.value_width)
        outputs = []
        for t in range(query.shape[1]):
            q, k, v, g, b = (x[:, :, t] for x in terms if x is not None)
            memory = memory * g.exp()[..., None, None]
            for k_i, v_i, b_i in zip(*(x.chunk(self.num_factors, dim=-1) for x in (k, v, b)), strict=True):
                missing = v_i - torch.einsum("bhk,bhkv->bhv", k_i, memory)
                memory = memory + (b_i * k_i).unsqueeze(-1) * missing.unsqueeze(-2)
            outputs.append(torch.einsum("bhk,bhkv->bhv", q, memory))
        return self.finish(torch.stack(outputs, dim=2), value[None], extras)[0]
