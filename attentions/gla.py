"""Gated linear attention (Yang et al. 2024) and HGRN2 (Qin et al. 2024): one data-dependent decay per feature."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent, projection, xavier_linear
from attentions.kernels.chunks import Heads
from attentions.kernels.numerics import upcast
from cab import LayerPosition, register_attention
from cab.attention import SINGLE_LAYER, ConvolutionArguments
from cab.registry.options import Positive

GAIN = 2**-2.5
"""Xavier gain of all maps in flash-linear-attention at the time of the paper."""

TEMPERATURE = 16.0
"""Divides the logarithms of the decays."""


@register_attention("gla", patterns="CS", complexity="n", paper="Yang et al. 2024")
class GatedLinearAttention(Recurrent):
    """Compute o_t = q_t S_t / sqrt(K) with S_t = diag(a_t) S_{t-1} + k_t (x) v_t.

    GLA, Eq. 3 and section 4.4: a_t = sigmoid(x_t W_1 W_2 + b)^(1/16). Queries and keys have half of the width
    ``embed_dim``. An RMS norm per head and a gate follow, silu(x W_g) * norm(o), and then ``out_proj``. All maps start
    Xavier uniform with gain 2^-2.5, as in the layer of the paper.

    Args:
        gate_rank: width between W_1 and W_2.
        short_convolution: kernel size of short convolutions of q, k and v, followed by silu; 0, as published, for none.
    """

    activates_heads = True
    decays = "feature"

    def __init__(
        self,
        *,
        gate_rank: Positive = 16,
        **common: Unpack[ConvolutionArguments],
    ) -> None:
        super().__init__(key_expansion=0.5, gate=True, gain=GAIN, out_gain=GAIN, **common)
        self.decay_map = nn.Sequential(
            projection(self.embed_dim, gate_rank, GAIN),
            xavier_linear(gate_rank, self.num_heads * self.key_width, gain=GAIN),
        )

    def activated(self, heads: Heads) -> Heads:
        """Return heads as they are: silu follows the short convolutions only."""
        return heads

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"decay_logit": self.decay_map(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        log_decay = F.logsigmoid(upcast(self.split_heads(extras["decay_logit"]))) / TEMPERATURE
        return RecurrenceInputs(query * self.key_width**-0.5, key, value, log_decay)


@register_attention("hgrn2", patterns="CS", complexity="n", paper="Qin et al. 2024")
class HGRN2Attention(Recurrent):
    """Compute o_t = silu(q_t) S_t with S_t = diag(f_t) S_{t-1} + (1 - f_t) (x) v_t and f = l + (1 - l) sigmoid(k).

    HGRN2, Eq. 7. ``k_proj`` computes the forget gates. An RMS norm over all heads and ``out_proj`` follow. Published
    heads are 128 wide; here the width per head is ``embed_dim / num_heads``.

    l is a learned lower bound per feature that grows from layer to layer. Layer i of L starts at i / L, as published,
    and learns its own bound. The published bounds are cumulative sums of one softmax over all layers, which a single
    layer cannot compute. The first layer has no bound.
    """

    normalizes_heads_jointly = True
    decays = "feature"

    def __init__(self, *, layer_position: LayerPosition = SINGLE_LAYER, **common: Unpack[ConvolutionArguments]) -> None:
        super().__init__(**common)
        self.bound: nn.Parameter | None = None
        if layer_position.index:
            bound = torch.full((self.num_heads, 1, self.key_width), layer_position.index / layer_position.num_layers)
            self.bound = nn.Parameter(bound.logit())

    def terms(self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, _position: Tensor) -> RecurrenceInputs:
        log_forget, written = F.logsigmoid(upcast(key)), (-key).sigmoid()
        if self.bound is not None:
            bound = self.bound.to(log_forget.dtype)
            log_forget = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + log_forget)
            written = written * (-bound).sigmoid()
        return RecurrenceInputs(F.silu(query), written, value, log_forget)
