"""The delta rule: DeltaNet and Gated DeltaNet (Yang et al. 2024, 2025), and DPFP (Schlag et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import LinearizedAttention, PositionInfo, mask_fill
from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent, projection, xavier_linear
from attentions.kernels.chunks import Heads
from attentions.kernels.delta_rule import delta_rule
from attentions.kernels.linear_attention import KERNELS
from attentions.kernels.norms import unit
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import Form
from attentions.ssd import step_map
from cab import DecodeState, ParamGroupOverride, Pattern, register_attention
from cab.attention import CommonArguments, Decoded, SizeArguments
from cab.claims import Claims
from cab.kernels import Operation
from cab.padding import lengths
from cab.registry.options import Positive

GAIN = 2**-2.5
"""Xavier gain of all maps of DeltaNet."""


class DeltaRule(Recurrent):
    """Recurrence S_t = a_t S_{t-1} + b_t k_t (x) (v_t - a_t k_t S_{t-1}), where b is ``Terms.strength``."""

    operation: ClassVar[Operation[..., tuple[Tensor, Tensor]]] = delta_rule

    def update(self, terms: RecurrenceInputs, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        assert terms.strength is not None
        return form(terms.query, terms.key, terms.value, terms.strength, terms.log_decay, memory)

    def write(self, now: RecurrenceInputs, memory: Tensor) -> Tensor:
        """Compute S_t from S_{t-1} [B, H, K, V] and the terms of one token."""
        assert now.strength is not None
        if now.log_decay is not None:
            memory = memory * now.log_decay.exp()[..., None, None]
        missing = now.value - torch.einsum("bhk,bhkv->bhv", now.key, memory)
        return memory + now.strength[..., None, None] * now.key.unsqueeze(-1) * missing.unsqueeze(-2)


@register_attention("deltanet", patterns="CS", complexity="n", paper="Yang et al. 2024b")
class DeltaNetAttention(DeltaRule):
    """Compute S_t = S_{t-1} + b_t k_t (x) (v_t - k_t S_{t-1}) and o_t = q_t S_t / sqrt(K).

    DeltaNet, Eq. 1 and section 3. q, k and v pass short convolutions and silu, q and k are divided by their norms, and
    b = sigmoid(x W). An RMS norm per head and ``out_proj`` follow. All maps start Xavier uniform with gain 2^-2.5, as
    in flash-linear-attention at the time of the paper.

    Args:
        negative_eigenvalues: whether b is in 0 to 2 instead of 0 to 1, so that a transition can be negative.
        short_convolution: kernel size of the short convolutions; 4 in the paper, 0 for none.
    """

    activates_heads = True
    decays = "nothing"

    def __init__(
        self, *, negative_eigenvalues: bool = False, short_convolution: int = 4, **common: Unpack[SizeArguments]
    ) -> None:
        super().__init__(short_convolution=short_convolution, gain=GAIN, out_gain=GAIN, **common)
        self.largest_strength = 2.0 if negative_eigenvalues else 1.0
        self.strength_proj = projection(self.embed_dim, self.num_heads, GAIN)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        query, key = unit(query), unit(key)
        strength = self.largest_strength * extras["strength"].sigmoid().transpose(1, 2)
        return RecurrenceInputs(query * self.key_width**-0.5, key, value, strength=strength)


@register_attention("gated_deltanet", patterns="CS", complexity="n", paper="Yang et al. 2025")
class GatedDeltaNetAttention(DeltaRule):
    """Compute S_t = a_t S_{t-1} + b_t k_t (x) (v_t - a_t k_t S_{t-1}) and o_t = q_t S_t / sqrt(K).

    Gated DeltaNet, Eq. 10. As `deltanet`, with b = sigmoid(x W + c), a_t = exp(-A softplus(x W_a + b_a)) and a gate
    after the norm, silu(x W_g) * norm(o). A and b_a have one number per head.

    The initialization is that of NVlabs/GatedDeltaNet, which trained the paper's models (attentions/defaults.csv). A
    and b_a have no weight decay.

    Queries and keys have 3/4 of the width ``embed_dim``, values twice as much as the keys.

    Args:
        negative_eigenvalues: whether b is in 0 to 2 instead of 0 to 1.
        short_convolution: kernel size of the short convolutions; 4 in the paper, 0 for none.
    """

    activates_heads = True
    claims = Claims(parameter_budget=0.15)  # 5.25 D^2 per layer, as published: 11.8% of GPT-2

    def __init__(
        self,
        *,
        negative_eigenvalues: bool = False,
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
        self.largest_strength = 2.0 if negative_eigenvalues else 1.0
        self.strength_proj = nn.Linear(self.embed_dim, self.num_heads)
        nn.init.zeros_(self.strength_proj.bias)
        self.log_rate = nn.Parameter(torch.empty(self.num_heads).uniform_(1e-3, 16.0).log())
        self.step_proj = step_map(self.embed_dim, self.num_heads)

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {name: ParamGroupOverride(weight_decay=0.0) for name in ("log_rate", "step_proj.bias")}

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key), "step": self.step_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        query, key = unit(query), unit(key)
        # Contiguous: the compiler assumes that layout of the gradient.
        step = F.softplus(upcast(extras["step"]).transpose(1, 2).contiguous())
        log_decay = -self.log_rate.to(step.dtype).exp().unsqueeze(-1) * step
        strength = self.largest_strength * extras["strength"].transpose(1, 2).sigmoid()
        return RecurrenceInputs(query * self.key_width**-0.5, key, value, log_decay, strength)


@register_attention("dpfp", patterns="NS CS NC CC", complexity="n", paper="Schlag et al. 2021")
class DPFPAttention(LinearizedAttention):
    """Compute features x~ * roll(x~, i) for i = 1 .. nu, with x~ = [relu(x), relu(-x)] (fast weights, Eq. 37).

    CS has the delta rule, the method: W_t = W_{t-1} + b_t phi(k_t) (x) (v_t - phi(k_t) W_{t-1}), o_t = phi(q_t) W_t
    (Eq. 24), b = sigmoid(x W_b), where phi is divided by its sum + 1e-6 and nothing else is normalized. The other
    patterns, which have no order, have the sum: phi(q) (phi(k)^T v) / phi(q) . sum phi(k).

    Args:
        nu: products of each feature.
    """

    feature_map = KERNELS["identity"]

    def __init__(self, *, nu: Positive = 1, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.has_delta_rule = self.pattern is Pattern.CS
        self.nu = nu
        if self.has_delta_rule:
            self.strength_proj = xavier_linear(self.embed_dim, self.num_heads, bias=False)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"strength": self.strength_proj(key)} if self.has_delta_rule else {}

    def prepare(self, x: Tensor) -> Tensor:
        """Compute phi(x) [..., 2 E nu]."""
        both = torch.cat([x.relu(), (-x).relu()], dim=-1)
        return torch.cat([both * both.roll(i, dims=-1) for i in range(1, self.nu + 1)], dim=-1)

    def features(self, x: Tensor, where: PositionInfo) -> Tensor:
        features = super().features(x, where)
        return features / (features.sum(dim=-1, keepdim=True) + 1e-6) if self.has_delta_rule else features

    def decode_chunk(self, heads: Heads, padding: Tensor | None, state: DecodeState, extras: Extras) -> Decoded:
        if not self.has_delta_rule:
            return super().decode_chunk(heads, padding, state, extras)
        query, key, value = heads
        queries, keys = (self.features(x, PositionInfo()) for x in (query, key))
        memory = state.get("sums")
        if memory is None:
            memory = query.new_zeros(*query.shape[:2], keys.shape[-1], value.shape[-1])
        strength = extras["strength"].sigmoid().transpose(1, 2)
        output, memory = delta_rule(queries, mask_fill(keys, padding), value, strength, None, memory)
        count = lengths(query, padding)
        return output, {"sums": memory, "length": state["length"] + count if "length" in state else count}

    def reference(self, query: Tensor, key: Tensor, value: Tensor, strength: Tensor | None = None) -> Tensor:
        queries, keys = self.features(query, PositionInfo()), self.features(key, PositionInfo())
        if strength is None:
            return self.normalize(queries @ keys.mT) @ value
        memory, outputs = value.new_zeros(len(keys), keys.shape[-1], value.shape[-1]), []
        for t in range(keys.shape[1]):
            now = keys[:, t, None]
            missing = value[:, t, None] - now @ memory
            memory = memory + strength[t].sigmoid()[:, None, None] * now.mT @ missing
            outputs.append(queries[:, t, None] @ memory)
        return torch.cat(outputs, dim=1)
