"""State space duality, the layer of Mamba-2 (Dao and Gu 2024)."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent
from attentions.kernels.norms import gated_skip
from attentions.kernels.numerics import upcast
from cab import ParamGroupOverride, register_attention
from cab.attention import SizeArguments
from cab.claims import Claims
from cab.registry.options import Positive

STEP_MIN, STEP_MAX = 1e-3, 1e-1
"""Range of softplus(b) at initialization, uniform in the logarithm."""


@register_attention("ssd", patterns="CS", complexity="n", paper="Dao and Gu 2024")
class SSDAttention(Recurrent):
    """Compute h_t = e^{-dt_t A} h_{t-1} + B_t (x) dt_t x_t and y_t = C_t h_t + D x_t.

    Mamba-2, Eq. 1 and section 7: C = silu(q) and B = silu(k), shared by all heads; x = silu(v), twice as wide
    as ``embed_dim``; dt = softplus(u W + b); A and b have one number per head. A gate and an RMS norm over all heads
    follow, norm(y * silu(u W_z)), and then ``out_proj``. Before silu, q, k and v pass short convolutions with a bias.

    The initialization is that of state-spaces/mamba (attentions/defaults.csv). A, D and b have no weight decay.

    Args:
        state_size: width of B and C, the state size per feature; 128 in the released models.
        short_convolution: kernel size of the short convolutions; 4 in the paper, 0 for none.
    """

    activates_heads = True
    normalizes_heads_jointly = True
    claims = Claims(parameter_budget=0.15)  # 6 D^2 per layer, as published: 13.7% of GPT-2

    def __init__(
        self,
        *,
        state_size: Positive = 128,
        short_convolution: int = 4,
        **common: Unpack[SizeArguments],
    ) -> None:
        super().__init__(
            key_width=state_size,
            value_expansion=2.0,
            gate=True,
            short_convolution=short_convolution,
            conv_bias=True,
            gain=None,
            out_gain=None,
            shares_keys=True,
            **common,
        )
        self.log_rate = nn.Parameter(torch.empty(self.num_heads).uniform_(1.0, 16.0).log())
        self.skip = nn.Parameter(torch.ones(self.num_heads))
        self.step_proj = step_map(self.embed_dim, self.num_heads)

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {name: ParamGroupOverride(weight_decay=0.0) for name in ("log_rate", "skip", "step_proj.bias")}

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"step": self.step_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        """Compute C, B, dt x and the log decays -dt A."""
        # Contiguous: the compiler assumes that layout of the gradient.
        step = F.softplus(upcast(extras["step"]).transpose(1, 2).contiguous())
        log_decay = -self.log_rate.to(step.dtype).exp().unsqueeze(-1) * step
        if value.dtype.itemsize == 2:  # a backend in 16 bit, which has a key per head: narrower here than the values
            key = (key.transpose(1, 2) * step.mT.contiguous().unsqueeze(-1).to(key.dtype)).transpose(1, 2)
            return RecurrenceInputs(query, key, value, log_decay)
        return RecurrenceInputs(query, key, value * step.unsqueeze(-1).to(value.dtype), log_decay)

    def finish(self, output: Tensor, value: Tensor, extras: Extras) -> Tensor:
        return gated_skip(
            output, self.skip.view(1, -1, 1, 1), value, extras["gate"], self.norm_weight, eps=self.norm_eps
        )


def step_map(embed_dim: int, num_heads: int) -> nn.Linear:
    """Create the map to the logits of the step, initialized as in Mamba-2.

    The weights start as those of ``nn.Linear``. The bias starts at values whose softplus is between STEP_MIN and
    STEP_MAX.
    """
    linear = nn.Linear(embed_dim, num_heads)
    step = torch.empty(num_heads).uniform_(math.log(STEP_MIN), math.log(STEP_MAX)).exp()
    with torch.no_grad():
        linear.bias.copy_(step.expm1().log())
    return linear
