"""HGRN2 (Qin et al. 2024): gated linear attention whose keys are what its forget gates leave."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Recurrent, Terms
from cab import LayerPosition, Pattern, register_attention
from cab.attention import SINGLE_LAYER


@register_attention("hgrn2", patterns="CS", complexity="n", paper="Qin et al. 2024")
class HGRN2Attention(Recurrent):
    """o_t = silu(q_t) S_t, S_t = diag(f_t) S_{t-1} + (1 - f_t) (x) v_t, f = l + (1 - l) sigmoid(k)  (HGRN2, Eq. 7).

    k_proj gives the forget gates; then an RMS norm over all heads, and out_proj. The published heads are 128 wide;
    here a head has its slot's width, and its memory the square of that.

    l is a learnt lower bound for each feature, which grows from layer to layer: here layer i of L begins at i / L, as
    the published ones do, and learns its own; published bounds are cumulative sums of one softmax over all layers,
    which no layer alone can form. The first layer has none.

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
        self.bound: nn.Parameter | None = None
        if layer_position.index:
            first = torch.full((num_heads, 1, self.key_width), layer_position.index / layer_position.num_layers)
            self.bound = nn.Parameter(first.logit())

    def terms(self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, _position: Tensor) -> Terms:
        log_forget, written = F.logsigmoid(key), (-key).sigmoid()
        if self.bound is not None:
            bound = self.bound.to(key.dtype)
            log_forget = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + log_forget)
            written = written * (-bound).sigmoid()
        return Terms(F.silu(query), written, value, log_forget)
