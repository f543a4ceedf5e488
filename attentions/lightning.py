"""Lightning attention (Qin et al. 2023): linear attention with fixed decays, slower in later layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Recurrent, Terms, xavier_linear
from cab import LayerPosition, Pattern, register_attention
from cab.attention import SINGLE_LAYER


@register_attention("lightning", patterns="CS", complexity="n", paper="Qin et al. 2023")
class LightningAttention(Recurrent):
    """o_t = q_t S_t, S_t = e^{-s} S_{t-1} + k_t (x) v_t with silu of q, k and v  (TransNormerLLM, section 3).

    Then an RMS norm over all heads and a sigmoid gate of low rank: sigmoid(x W_1 W_2) * norm(o), and out_proj. Layer
    l of L has s = 2^(-8 (h + 1) / H) (1 - l / (L - 1) + 1e-5), ALiBi's slopes: the last layer hardly forgets. That is
    what the authors' repository does; a later package has (8 / H) h (1 - l / L), whose first head never forgets. A
    layer alone in its network is a first one.

    Args:
        conv_size: taps of short convolutions before q, k and v; none as published.
    """

    normalised_together = True

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        layer_position: LayerPosition = SINGLE_LAYER,
        conv_size: int = 0,
    ) -> None:
        super().__init__(
            pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, conv_size=conv_size
        )
        self.slowing = 1.0 - layer_position.index / max(layer_position.num_layers - 1, 1) + 1e-5
        self.gate_map = nn.Sequential(
            xavier_linear(embed_dim, self.head_dim, bias=False), xavier_linear(self.head_dim, embed_dim, bias=False)
        )

    def query_side_inputs(self, query: Tensor) -> dict[str, Tensor]:
        return {"gate": self.gate_map(query)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, _position: Tensor) -> Terms:
        heads = torch.arange(1, self.num_heads + 1, device=query.device, dtype=query.dtype)
        log_decay = -self.slowing * 2.0 ** (-8.0 * heads / self.num_heads)
        log_decay = log_decay.view(1, -1, 1).expand(1, -1, query.shape[2])
        return Terms(F.silu(query), F.silu(key), F.silu(value), log_decay)

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        return self.normalise(output) * self.split_heads(extras["gate"]).sigmoid()
