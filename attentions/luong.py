"""Global attention with the score functions of Luong et al. (2015).

Shapes: B batch, H heads, N targets, M keys, E width of a head.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from attentions.kernels.chunks import masked, sums_by_targets
from attentions.kernels.numerics import as_factor, attention_weights, upcast
from attentions.kernels.softmax_attention import softmax
from attentions.softmax import VanillaAttention
from cab import register_attention
from cab.attention import CommonArguments
from cab.claims import Claims, softmax_if


@register_attention("luong", patterns="NS CS NC CC", complexity="n^2", paper="Luong et al. 2015")
class LuongAttention(VanillaAttention):
    """Compute softmax over j of score(q_i, k_j), times v_j, per head (Eq. 7 and 8).

    * ``dot``: q k,
    * ``general``: q W_a k, W_a [E, E],
    * ``concat``: v_a tanh(W_a [q; k]), W_a [E, 2 E], v_a [E].

    As published there is no factor 1/sqrt(E). The readout tanh(W_c [context; q]) and input feeding belong to the
    decoder around it. Time is quadratic; the concat score takes E times as many hyperbolic tangents as there are
    pairs, formed for some queries at a time and again in the backward pass.

    Args:
        score: dot, general or concat.
        scaled: whether scores are divided by sqrt(E).
    """

    claims = Claims(softmax_limit=softmax_if(score="dot", scaled=True))

    def __init__(
        self,
        *,
        score: Literal["dot", "general", "concat"] = "general",
        scaled: bool = False,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.score = score
        self.factor = self.scale if scaled else 1.0
        if score != "dot":
            widths = {"general": 1, "concat": 2}[score]
            self.score_weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim, widths * self.head_dim))
            for head in self.score_weight:
                nn.init.xavier_uniform_(head)
        if score == "concat":
            self.score_vector = nn.Parameter(torch.empty(self.num_heads, 1, self.head_dim))
            nn.init.xavier_uniform_(self.score_vector)

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        if self.score == "dot":
            return query @ key.mT * self.factor
        if self.score == "general":
            return query @ self.score_weight @ key.mT * self.factor
        of_query, of_key = self.score_weight.mT.chunk(2, dim=-2)
        sums = (query @ of_query).unsqueeze(-2) + (key @ of_key).unsqueeze(-3)
        return (sums.tanh() * self.score_vector.unsqueeze(-2)).sum(dim=-1) * self.factor

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        if self.score != "concat":
            query = query if self.score == "dot" else query @ self.score_weight.to(query.dtype)
            form = softmax.rounding_to(query.dtype)
            return form(query, key, value, visible, self.weight_dropout, is_causal, scale=self.factor)
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = upcast(query), upcast(key), as_factor(value)

            def weigh(targets: slice, num_keys: int) -> Tensor:
                hidden = masked(targets, num_keys, None, is_causal=is_causal, like=q)
                if visible is not None:
                    hidden = ~(visible if visible.shape[2] == 1 else visible[:, :, targets])
                return attention_weights(self.logits(q[:, :, targets], k[:, :, :num_keys]), hidden, 0.0)

            dropout, cost = self.weight_dropout, self.head_dim
            return sums_by_targets(weigh, q, v, is_causal=is_causal, dropout=dropout, cost=cost).to(query.dtype)
