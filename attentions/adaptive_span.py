"""Adaptive attention span (Sukhbaatar et al. 2019): each head learns how far back it attends.

Shapes: B batch, H heads, N tokens, E width of a head, S max_span, R ramp.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.sparse import SparseAttention
from attentions.kernels.numerics import mask_value
from attentions.kernels.window_attention import Distances, Window, window_attention
from cab import PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments
from cab.claims import Claims, softmax_if

SPAN_LOSS = 5e-7
"""Weight of the mean span in the loss, as released."""


@register_attention("adaptive_span", patterns="NS CS", complexity="n", paper="Sukhbaatar et al. 2019")
class AdaptiveSpanAttention(SparseAttention):
    """Compute sum_j m(x) exp(s_ij) v_j / sum_j m(x) exp(s_ij) with x = i - j.

    Eq. 4 to 6 of the paper. The soft mask m(x) = min(max((R + z - x) / R, 0), 1) is 1 for tokens nearer than the span z
    of the head and falls to 0 over a ramp of R tokens. The logits are s_ij = q_i (k_j + p_x) / sqrt(E), where all heads
    share the embeddings p of the distances. As published (``include_self=False``), a token does not attend to itself,
    and the first token of a sequence gets zero. The released spans are one token longer than the paper's, which are
    used here. Pattern NS, which the paper does not define, measures x to both sides.

    The learned parameter is ``reach`` = (z + R) / S per head. After each step z is clamped to [0, S]; the loss
    increases by 5e-7 times the mean of z over the heads. Time is N times the longest span. Decoding stores
    the keys and values within the longest span.

    Args:
        max_span: largest span S, in tokens.
        ramp: length R of the ramp, in tokens.
        include_self: whether a token attends to itself.
        position: ``learned`` for embeddings of the distances, ``none`` to leave them out.
    """

    has_constant_size_state = True
    claims = Claims(softmax_limit=softmax_if(max_span=10**9, ramp=10**9, position="none"))

    def __init__(
        self,
        *,
        max_span: int = 8192,
        ramp: int = 32,
        include_self: bool = True,
        position: Literal["learned", "none"] = "learned",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if ramp < 1 or max_span < ramp:
            raise UserError(
                f"ramp must be at least 1 and max_span at least ramp, got ramp {ramp} and max_span {max_span}"
            )
        if not include_self and self.pattern is Pattern.NS:
            raise UserError("include_self=false is supported only in pattern CS; set include_self=true")
        self.max_span, self.ramp, self.include_self = max_span, ramp, include_self
        # Half a token is added to a span of 0, since m has no derivative at whole tokens.
        self.reach = nn.Parameter(torch.full((self.num_heads,), (ramp + 0.5) / max_span))
        self.position = nn.Parameter(torch.randn(max_span, self.head_dim)) if position == "learned" else None

    def spans(self) -> Tensor:
        """Return z of each head, [H]."""
        return self.reach * self.max_span - self.ramp

    def longest(self) -> int:
        """Return the number of tokens to one side that any head can attend to, including the token itself."""
        return int(self.receptive_field())

    def receptive_field(self) -> Tensor:
        """Return :meth:`longest` on the device of the spans, without waiting for its value."""
        return (self.spans().detach().max().ceil() + self.ramp).clamp(1, self.max_span).long()

    def mask(self, distance: Tensor) -> Tensor:
        """Return the soft mask m [..., H, T, S] of distances [..., T, S]."""
        mask = ((self.ramp + self.spans().view(-1, 1, 1) - distance) / self.ramp).clamp(0.0, 1.0)
        return torch.where(distance == 0, float(self.include_self), mask)

    def update_buffers(self, **_steps: Tensor) -> None:
        least = self.ramp / self.max_span
        self.reach.clamp_(least, 1.0 + least)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        self.add_loss(SPAN_LOSS * self.spans().mean())
        self.accumulate_statistics(steps=torch.ones(1, device=query.device))
        return super().attend(query, key, value, padding)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        (window, distances), dropout = self.window(query.shape[2]), self.weight_dropout
        output = window_attention(
            query, key, value, window, distances=distances, key_padding_mask=hidden, dropout=dropout
        )
        if self.include_self:
            return output
        sees_none = (distances.biases <= mask_value(distances.biases.dtype)).all(dim=1)
        output = output.masked_fill(sees_none[:, None, None], 0.0)
        return torch.cat([torch.zeros_like(output[:, :, :1]), output[:, :, 1:]], dim=2)

    def window(self, length: int) -> tuple[Window, Distances]:
        """Return the window of the longest span in a sequence of ``length`` tokens, and the biases of its distances."""
        left = min(self.longest(), length) - 1
        right = left if self.pattern is Pattern.NS else 0
        distance = torch.arange(left, -right - 1, -1, device=self.reach.device).abs()
        embeddings = self.reach.new_zeros(left + 1, self.head_dim) if self.position is None else self.position
        mask = self.mask(distance[None])[:, 0]
        biases = mask.where(mask > 0.0, 1.0).log().masked_fill(mask == 0.0, mask_value(mask.dtype))
        embedded = embeddings[distance].expand(self.num_heads, -1, -1)
        return Window(left, right), Distances(embedded, biases)

    def weights_at(self, query: Tensor, key: Tensor, distance: Tensor) -> Tensor:
        """Return the weights of pairs at distances [..., T, S]; in CS, those of later keys are zero."""
        x = distance.abs()
        inside = x < self.max_span
        if self.pattern is Pattern.CS:
            inside = inside & (distance >= 0)
        logits = query @ key.mT
        if self.position is not None:
            by_distance = query @ self.position.mT
            logits = logits + by_distance.gather(-1, x.clamp(max=self.max_span - 1).expand(logits.shape))
        mask = self.mask(x) * inside
        logits = (logits * self.scale).masked_fill(mask == 0.0, mask_value(logits.dtype))
        weights = mask * (logits - logits.amax(dim=-1, keepdim=True).detach()).exp()
        return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        position = torch.arange(query.shape[1], device=query.device)
        return self.weights_at(query, key, position[:, None] - position) @ value

    def kept_width(self) -> int:
        return self.longest()

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        return key >= length - self.receptive_field()

    def read(self, query: Tensor, key: Tensor, value: Tensor, query_position: Tensor, position: Tensor) -> Tensor:
        distance = (query_position[:, None, :, None] - position[:, None, None]).masked_fill(
            position[:, None, None] < 0, -1
        )
        return F.dropout(self.weights_at(query, key, distance), self.dropout, self.training) @ value
