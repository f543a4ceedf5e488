"""DeltaNet and Gated DeltaNet (Yang et al. 2024, 2025): a memory that corrects what it holds for a key."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Recurrent, Terms, xavier_linear
from attentions.kernels import fla_kernels
from attentions.kernels.delta_rule import delta_rule
from attentions.kernels.feature_maps import unit
from attentions.kernels.fla_kernels import Form
from attentions.ssd import step_map
from cab import ParamGroupOverride, Pattern, register_attention


class DeltaRule(Recurrent):
    """S_t = a_t S_{t-1} + b_t k_t (x) (v_t - a_t k_t S_{t-1}): the terms have a strength b."""

    forms = (delta_rule, fla_kernels.delta_rule)

    def update(self, terms: Terms, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        assert terms.strength is not None
        return form(terms.query, terms.key, terms.value, terms.strength, terms.log_decay, memory)

    def write(self, now: Terms, memory: Tensor) -> Tensor:
        assert now.strength is not None
        if now.log_decay is not None:
            memory = memory * now.log_decay.exp()[..., None, None]
        missing = now.value - torch.einsum("bhk,bhkv->bhv", now.key, memory)
        return memory + now.strength[..., None, None] * now.key.unsqueeze(-1) * missing.unsqueeze(-2)


@register_attention("deltanet", patterns="CS", complexity="n", paper="Yang et al. 2024b")
class DeltaNetAttention(DeltaRule):
    """S_t = S_{t-1} + b_t k_t (x) (v_t - k_t S_{t-1}), o_t = q_t S_t / sqrt(K)  (DeltaNet, Eq. 1 and section 3).

    q, k, v pass silu, q and k are divided by their norms, b = sigmoid(x W); then an RMS norm of each head, and
    out_proj.

    Args:
        negative_eigenvalues: b in 0 to 2 in place of 0 to 1, with which a memory can change its sign.
        conv_size: taps of short convolutions before the silu of q, k and v; published with 4, here without.
    """

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        negative_eigenvalues: bool = False,
        conv_size: int = 0,
    ) -> None:
        super().__init__(
            pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, conv_size=conv_size
        )
        self.largest_strength = 2.0 if negative_eigenvalues else 1.0
        self.strength_proj = xavier_linear(embed_dim, num_heads, bias=False)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> Terms:
        query, key = unit(F.silu(query)), unit(F.silu(key))
        strength = self.largest_strength * extras["strength"].sigmoid().transpose(1, 2)
        return Terms(query * self.key_width**-0.5, key, F.silu(value), strength=strength)


@register_attention("gated_deltanet", patterns="CS", complexity="n", paper="Yang et al. 2025")
class GatedDeltaNetAttention(DeltaRule):
    """S_t = a_t S_{t-1} + b_t k_t (x) (v_t - a_t k_t S_{t-1}), o_t = q_t S_t / sqrt(K)  (Gated DeltaNet, Eq. 10).

    As `deltanet`, with a_t = exp(-A softplus(x W_a + b_a)), A and b_a a number each for a head, and a gate: silu(x
    W_g) * norm(o). A starts uniform in 0 to 16, the softplus between 0.001 and 0.1; neither has weight decay.

    Args:
        key_expansion: width of queries and keys relative to the model's; 3/4 as published.
        value_expansion: width of values relative to the keys; 2 as published.
        negative_eigenvalues: b in 0 to 2 in place of 0 to 1.
        conv_size: taps of short convolutions before the silu of q, k and v; published with 4, here without.

    Raises:
        ValueError: for an expansion that is not positive.
    """

    parameter_budget = 0.15

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        key_expansion: float = 0.75,
        value_expansion: float = 2.0,
        negative_eigenvalues: bool = False,
        conv_size: int = 0,
    ) -> None:
        super().__init__(
            pattern=pattern,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=dropout,
            key_expansion=key_expansion,
            value_expansion=key_expansion * value_expansion,
            gate=True,
            conv_size=conv_size,
        )
        self.largest_strength = 2.0 if negative_eigenvalues else 1.0
        self.strength_proj = xavier_linear(embed_dim, num_heads, bias=False)
        self.log_rate = nn.Parameter(torch.empty(num_heads).uniform_(1e-3, 16.0).log())
        self.step_proj = step_map(embed_dim, num_heads)

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {name: ParamGroupOverride(weight_decay=0.0) for name in ("log_rate", "step_proj.bias")}

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key), "step": self.step_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> Terms:
        query, key = unit(F.silu(query)), unit(F.silu(key))
        step = F.softplus(extras["step"].transpose(1, 2).contiguous())  # a gradient laid out as a compiler expects
        log_decay = -self.log_rate.to(step.dtype).exp().unsqueeze(-1) * step
        strength = self.largest_strength * extras["strength"].transpose(1, 2).sigmoid()
        return Terms(query * self.key_width**-0.5, key, F.silu(value), log_decay, strength)
