"""HGRN2 (Qin et al. 2024): gated linear attention whose keys are the complement of its forget gates."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent
from cab import LayerPosition, register_attention
from cab.attention import SINGLE_LAYER, CommonArguments


@register_attention("hgrn2", patterns="CS", complexity="n", paper="Qin et al. 2024")
class HGRN2Attention(Recurrent):
    """Compute o_t = silu(q_t) S_t with S_t = diag(f_t) S_{t-1} + (1 - f_t) (x) v_t and f = l + (1 - l) sigmoid(k).

    HGRN2, Eq. 7. ``k_proj`` computes the forget gates. An RMS norm over all heads and ``out_proj`` follow. Published
    heads are 128 wide; here the width per head is ``embed_dim / num_heads``.

    l is a learned lower bound per feature that grows from layer to layer. Layer i of L starts at i / L, as published,
    and learns its own bound. The published bounds are cumulative sums of one softmax over all layers, which a single
    layer cannot compute. The first layer has no bound.

    Args:
        conv_size: kernel size of short convolutions of q, k and v; 0, as published, for none.
    """

    normalizes_heads_jointly = True

    def __init__(
        self, *, layer_position: LayerPosition = SINGLE_LAYER, conv_size: int = 0, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(conv_size=conv_size, **common)
        self.bound: nn.Parameter | None = None
        if layer_position.index:
            bound = torch.full((self.num_heads, 1, self.key_width), layer_position.index / layer_position.num_layers)
            self.bound = nn.Parameter(bound.logit())

    def recurrence_inputs(
        self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, _position: Tensor
    ) -> RecurrenceInputs:
        log_forget, written = F.logsigmoid(key), (-key).sigmoid()
        if self.bound is not None:
            bound = self.bound.to(key.dtype)
            log_forget = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + log_forget)
            written = written * (-bound).sigmoid()
        return RecurrenceInputs(F.silu(query), written, value, log_forget)
