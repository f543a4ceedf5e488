"""Gated linear attention (Yang et al. 2024): a recurrent state with one data-dependent decay per feature."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.options import check_positive
from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent, projection, xavier_linear
from cab import register_attention
from cab.attention import CommonArguments

GAIN = 2**-2.5
"""Xavier gain of all maps in flash-linear-attention at the time of the paper."""


@register_attention("gla", patterns="CS", complexity="n", paper="Yang et al. 2024")
class GatedLinearAttention(Recurrent):
    """Compute o_t = q_t S_t / sqrt(K) with S_t = diag(a_t) S_{t-1} + k_t (x) v_t.

    GLA, Eq. 3 and section 4.4: a_t = sigmoid(x_t W_1 W_2 + b)^(1/tau). An RMS norm per head and a gate follow, silu(x
    W_g) * norm(o), and then ``out_proj``. All maps start Xavier uniform with gain 2^-2.5, as in the layer of the paper.

    Args:
        key_expansion: width of queries and keys relative to ``embed_dim``; 1/2 in the paper.
        gate_rank: width between W_1 and W_2.
        gate_temperature: tau.
        conv_size: kernel size of short convolutions of q, k and v, followed by silu; 0, as published, for none.
    """

    def __init__(
        self,
        *,
        key_expansion: float = 0.5,
        gate_rank: int = 16,
        gate_temperature: float = 16.0,
        conv_size: int = 0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(
            key_expansion=key_expansion, gate=True, conv_size=conv_size, gain=GAIN, out_gain=GAIN, **common
        )
        check_positive(gate_rank=gate_rank, gate_temperature=gate_temperature)
        self.gate_temperature = gate_temperature
        self.decay_map = nn.Sequential(
            projection(self.embed_dim, gate_rank, GAIN),
            xavier_linear(gate_rank, self.num_heads * self.key_width, gain=GAIN),
        )

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"decay": self.decay_map(key)}

    def recurrence_inputs(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor
    ) -> RecurrenceInputs:
        if self.conv_size:
            query, key, value = F.silu(query), F.silu(key), F.silu(value)
        log_decay = F.logsigmoid(self.split_heads(extras["decay"])) / self.gate_temperature
        return RecurrenceInputs(query * self.key_width**-0.5, key, value, log_decay)
