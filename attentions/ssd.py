"""State space duality, the layer of Mamba-2 (Dao and Gu 2024)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Recurrent, Terms, check_positive, xavier_linear
from cab import ParamGroupOverride, Pattern, register_attention

STEP_MIN, STEP_MAX = 1e-3, 1e-1
"""Range of the first steps dt, whose logarithms are uniform."""


@register_attention("ssd", patterns="CS", complexity="n", paper="Dao and Gu 2024")
class SSDAttention(Recurrent):
    """h_t = e^{-dt_t A} h_{t-1} + B_t (x) dt_t x_t, y_t = C_t h_t + D x_t  (Mamba-2, Eq. 1 and section 7).

    C = silu(q), B = silu(k), shared by all heads; x = silu(v); dt = softplus(W u + b) and A a number each for a head.
    Then the gate and an RMS norm over all heads, norm(y * silu(u W_z)), and out_proj. A starts uniform in 1 to 16;
    A, D and b have no weight decay.

    Args:
        state_size: width of B and C, the state's for each feature.
        value_expansion: width of x relative to the model's; 2 as published.
        conv_size: taps of short convolutions before the silu of q, k and v; published with 4, here without.

    Raises:
        ValueError: for options that are not positive.
    """

    normalised_together = True
    parameter_budget = 0.25

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        state_size: int = 64,
        value_expansion: float = 2.0,
        conv_size: int = 0,
    ) -> None:
        check_positive(state_size=state_size)
        super().__init__(
            pattern=pattern,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=dropout,
            key_width=state_size,
            value_expansion=value_expansion,
            gate=True,
            conv_size=conv_size,
            shares_keys=True,
        )
        self.log_rate = nn.Parameter(torch.empty(num_heads).uniform_(1.0, 16.0).log())
        self.skip = nn.Parameter(torch.ones(num_heads))
        self.step_proj = step_map(embed_dim, num_heads)

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {name: ParamGroupOverride(weight_decay=0.0) for name in ("log_rate", "skip", "step_proj.bias")}

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"step": self.step_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> Terms:
        step = F.softplus(extras["step"].transpose(1, 2).contiguous())  # a gradient laid out as a compiler expects
        log_decay = -self.log_rate.to(step.dtype).exp().unsqueeze(-1) * step
        return Terms(F.silu(query), F.silu(key), F.silu(value) * step.unsqueeze(-1), log_decay)

    def finish(self, output: Tensor, value: Tensor, extras: Extras) -> Tensor:
        output = output + self.skip.to(output.dtype).view(-1, 1, 1) * F.silu(value)
        return self.normalise(output * F.silu(self.split_heads(extras["gate"])))


def step_map(embed_dim: int, num_heads: int) -> nn.Linear:
    """x to the logits of softplus, which begins between STEP_MIN and STEP_MAX by its bias."""
    linear = xavier_linear(embed_dim, num_heads)
    step = torch.empty(num_heads).uniform_(math.log(STEP_MIN), math.log(STEP_MAX)).exp()
    with torch.no_grad():
        linear.bias.copy_(step.expm1().log())
    return linear
