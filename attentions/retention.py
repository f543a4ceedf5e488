"""Retention (Sun et al. 2023) and Lightning attention (Qin et al. 2023): one fixed decay per head."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent, projection
from attentions.kernels.layers import alibi_slopes, rotary
from attentions.kernels.numerics import accumulation_dtype
from cab import LayerPosition, UserError, register_attention
from cab.attention import SINGLE_LAYER, ConvolutionArguments
from cab.claims import Claims


@register_attention("retention", patterns="CS", complexity="n", paper="Sun et al. 2023")
class RetentionAttention(Recurrent):
    """Compute o_t = q_t S_t with S_t = gamma_h S_{t-1} + k_t (x) v_t and gamma_h = 1 - 2^(-5 - h).

    RetNet, Eq. 5 to 8. q / sqrt(K) and k are rotated by their position: pair i of K / 2 by t 10000^(-i / (K/2 - 1)), as
    in torchscale. (Pairs are the features i and i + K/2; torchscale pairs neighbors.) o_t is divided by the square root
    of the sum of its decays, gamma_h^0 to gamma_h^t. An RMS norm per head without weights and a gate follow, silu(x
    W_g) * norm(o), and then ``out_proj``. Values have twice the width ``embed_dim``; the paper narrows the feed-forward
    layers to compensate.

    The initialization is torchscale's. Its parallel form also divides each score by the sum of the absolute scores of
    its row, at least 1: the norm cancels this factor up to its epsilon, and its recurrent form does not have it.
    """

    norm_eps = 1e-6
    claims = Claims(parameter_budget=0.25)  # 8 D^2 per layer, as published: 23.1% of GPT-2

    def __init__(self, **common: Unpack[ConvolutionArguments]) -> None:
        super().__init__(
            value_expansion=2.0, gate=True, gain=2 ** (-2.5), out_gain=2 ** (-1), norm_has_weight=False, **common
        )
        if self.key_width % 2:
            raise UserError(f"embed_dim / num_heads must be even for rotary embeddings, got {self.key_width}")

    def terms(self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, position: Tensor) -> RecurrenceInputs:
        """Rotate queries and keys and scale the queries; the log decays are [1, H, N]."""
        rates = 1e4 ** -torch.linspace(0, 1, self.key_width // 2, dtype=torch.float64, device=query.device)
        angle = position[:, None, :, None] * rates
        cos, sin = angle.cos().to(query.dtype), angle.sin().to(query.dtype)
        query, key = (rotary(x, cos, sin, by_halves=True) for x in (query * self.key_width**-0.5, key))
        heads = torch.arange(self.num_heads, device=query.device, dtype=torch.float64)
        log_decay = torch.log1p(-(2.0 ** (-5.0 - heads))).view(1, -1, 1)
        total = torch.expm1(log_decay * (position[:, None] + 1)) / torch.expm1(log_decay)  # [B or 1, H, N]
        query = query * total.rsqrt().to(query.dtype).unsqueeze(-1)
        return RecurrenceInputs(
            query, key, value, log_decay.to(accumulation_dtype(query.dtype)).expand(1, -1, query.shape[2])
        )


@register_attention("lightning", patterns="CS", complexity="n", paper="Qin et al. 2023")
class LightningAttention(Recurrent):
    """Compute o_t = q_t S_t with S_t = lambda_h S_{t-1} + k_t (x) v_t, where silu is applied to q and k.

    "Various Lengths, Constant Speed" (Qin et al. 2024), Eq. 10 and 11; TransNormerLLM, Eq. 2. Head h = 0, ..., H - 1 of
    layer l = 0, ..., L - 1 has lambda_h = exp(-(8 h / H) (1 - l / L)): the first head does not forget. An RMS norm over
    all heads without weights and a gate of full width follow, norm(o) * (x W_u), and then ``out_proj``.

    The first layer encodes positions (LRPE): q and k become [q cos(theta t), q sin(theta t)] and likewise for k, with a
    learned theta per feature that starts at 10000^(-2 i / D) for feature i of all D.

    Args:
        variant: ``paper`` as above. ``repository`` is ``examples/module/tnl_attn.py`` of
            OpenNLPLab/lightning-attention: decays exp(-s_h (1 - l / (L - 1) + 1e-5)) with ALiBi's slopes s_h, as in the
            TransNormerLLM checkpoints, silu also of v, a layer norm, a sigmoid gate of rank ``embed_dim / num_heads``
            and no LRPE.
    """

    normalizes_heads_jointly = True
    norm_eps = 1e-6

    def __init__(
        self,
        *,
        layer_position: LayerPosition = SINGLE_LAYER,
        variant: Literal["paper", "repository"] = "paper",
        **common: Unpack[ConvolutionArguments],
    ) -> None:
        super().__init__(gate=variant == "paper", norm_has_weight=False, **common)
        self.variant = variant
        index, num_layers = layer_position.index, layer_position.num_layers
        self.rate = 1 - (index / num_layers if variant == "paper" else index / max(num_layers - 1, 1) - 1e-5)
        self.theta: nn.Parameter | None = None
        if variant == "repository":
            widths = ((self.embed_dim, self.head_dim), (self.head_dim, self.embed_dim))
            self.gate_map = nn.Sequential(*(projection(*width, 1.0) for width in widths))
            self.layer_norm = nn.LayerNorm(self.embed_dim)
        elif layer_position.index == 0:
            feature = torch.arange(self.embed_dim).view(self.num_heads, 1, -1)
            self.theta = nn.Parameter(10_000 ** (-2 * feature / self.embed_dim))

    @property
    def memory_width(self) -> int:
        return self.key_width if self.theta is None else 2 * self.key_width

    def query_side_inputs(self, query: Tensor) -> dict[str, Tensor]:
        return {"gate": self.gate_map(query)} if self.variant == "repository" else super().query_side_inputs(query)

    def terms(self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, position: Tensor) -> RecurrenceInputs:
        """Apply silu and encode positions; the log decays are [1, H, N]."""
        query, key = F.silu(query), F.silu(key)
        if self.variant == "repository":
            value = F.silu(value)
        if self.theta is not None:
            angle = self.theta.double() * position[:, None, :, None]
            turns = torch.stack([f(angle).to(query.dtype) for f in (torch.cos, torch.sin)], dim=-2)
            query, key = ((x.unsqueeze(-2) * turns).flatten(-2) for x in (query, key))
        heads = torch.arange(self.num_heads, device=query.device, dtype=torch.float64)
        slopes = 8 / self.num_heads * heads if self.variant == "paper" else alibi_slopes(heads)
        log_decay = (-self.rate * slopes).to(accumulation_dtype(query.dtype))
        return RecurrenceInputs(query, key, value, log_decay.view(1, -1, 1).expand(1, -1, query.shape[2]))

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        gate = self.split_heads(extras["gate"])
        if self.variant != "repository":
            return self.normalize(output) * gate
        weight, bias = (x.to(output.dtype) for x in (self.layer_norm.weight, self.layer_norm.bias))
        normed = F.layer_norm(self.merge_heads(output), (self.embed_dim,), weight, bias, self.layer_norm.eps)
        return self.split_heads(normed) * gate.sigmoid()
