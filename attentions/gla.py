"""Gated linear attention (Yang et al. 2024): a memory each of whose features forgets at a rate of the token's own."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Recurrent, Terms, check_positive, xavier_linear
from cab import Pattern, register_attention


@register_attention("gla", patterns="CS", complexity="n", paper="Yang et al. 2024")
class GatedLinearAttention(Recurrent):
    """o_t = q_t S_t / sqrt(K), S_t = diag(a_t) S_{t-1} + k_t (x) v_t, a_t = sigmoid(x_t W_1 W_2 + b)^(1/tau)
    (GLA, Eq. 3 and section 4.4); then an RMS norm of each head and a gate, silu(x W_g) * norm(o), and out_proj.

    Args:
        key_expansion: width of queries and keys relative to the model's; 1/2 as published.
        gate_rank: width between W_1 and W_2.
        gate_temperature: tau.
        conv_size: taps of short convolutions with silu before q, k and v; none as published.

    Raises:
        ValueError: for options that are not positive.
    """

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        key_expansion: float = 0.5,
        gate_rank: int = 16,
        gate_temperature: float = 16.0,
        conv_size: int = 0,
    ) -> None:
        super().__init__(
            pattern=pattern,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=dropout,
            key_expansion=key_expansion,
            gate=True,
            conv_size=conv_size,
        )
        check_positive(gate_rank=gate_rank, gate_temperature=gate_temperature)
        self.gate_temperature = gate_temperature
        self.decay_map = nn.Sequential(
            xavier_linear(embed_dim, gate_rank, bias=False), xavier_linear(gate_rank, num_heads * self.key_width)
        )

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"decay": self.decay_map(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> Terms:
        if self.conv_size:
            query, key, value = F.silu(query), F.silu(key), F.silu(value)
        log_decay = F.logsigmoid(self.split_heads(extras["decay"])) / self.gate_temperature
        return Terms(query * self.key_width**-0.5, key, value, log_decay)
