"""Funnel attention (Dai et al. 2020): pooled queries over all keys.

Shapes: B batch, H heads, N targets, M keys, E width of a head, f factor, P pooled queries.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import by_length, in_chunks
from attentions.kernels.numerics import attention_weights
from attentions.transformer_xl import RelativeAttention
from cab import PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments
from cab.claims import Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive


@register_attention("funnel", patterns="NS NC", complexity="n^2", paper="Dai et al. 2020")
class FunnelAttention(RelativeAttention):
    """Compute softmax(q~ K^T / sqrt(E)) V with q~ the mean of f queries; each of the f tokens gets the output.

    Section 2.2 of the paper. The paper's network continues with the pooled tokens; in a single layer, every token gets
    the output of its group. The first token is a group of its own, as the paper's [CLS]; the last group may be smaller.
    In NS the logits have relative positions (:class:`RelativeAttention`, two-sided), and a group has the position of
    its first token; pairs with the first token have none, as in the released code. Pattern NC, which the paper does not
    define, has no positions.

    The method is not causal, since a pooled query contains later tokens. Time is quadratic, N M / f.

    Args:
        factor: queries f per group.
        position: ``relative`` (in NS) or ``none``.
    """

    claims = Claims(softmax_limit=softmax_if(factor=1, position="none"))

    def __init__(
        self,
        *,
        factor: Positive = 2,
        position: Literal["relative", "none"] = "relative",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if position == "none" or self.pattern is Pattern.NC:
            self.remove_positions()
        self.factor = factor

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outputs, n, f = [], query.shape[1], self.factor
        for group in [range(1), *(range(i, min(i + f, n)) for i in range(1, n, f))]:
            pooled = query[:, list(group)].mean(dim=1, keepdim=True)
            position = torch.arange(key.shape[1], device=key.device)
            logits = self.pair_logits(pooled, key, group[0] - position[None])
            if self.has_positions:
                content = self.with_content(pooled) @ key.mT * self.scale
                logits = torch.where((position == 0) | (group[0] == 0), content, logits)
            outputs.append((logits.softmax(dim=-1) @ value).expand(-1, len(group), -1))
        return torch.cat(outputs, dim=1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        if self.has_positions:
            return by_length(self.with_positions, (query, key, value), padding.key, masks=True)
        pooled, visible = self.pool(query, lengths(query, padding.query)), None
        if padding.key is not None:
            none = padding.key.all(dim=1, keepdim=True)
            visible = (~padding.key | none)[:, None, None]
        output = F.scaled_dot_product_attention(pooled, key, value, visible, self.weight_dropout)
        if padding.key is not None:
            output = output.masked_fill(none[:, :, None, None], 0.0)
        return self.repeat(output, query.shape[2])

    def pool(self, query: Tensor, count: Tensor) -> Tensor:
        """Average the groups of sequences with ``count`` [B] tokens, [B, H, N, E] to [B, H, P, E]."""
        rest = F.pad(query[:, :, 1:], (0, 0, 0, -(query.shape[2] - 1) % self.factor))
        position = torch.arange(1, rest.shape[2] + 1, device=query.device)
        real = (position < count[:, None]).unflatten(1, (-1, self.factor))[:, None, :, :, None]
        groups = rest.unflatten(2, (-1, self.factor)).where(real, 0.0)
        means = groups.sum(dim=3) / real.sum(dim=3).clamp(min=1)
        return torch.cat([query[:, :, :1], means], dim=2)

    def repeat(self, output: Tensor, length: int) -> Tensor:
        """Give each token the output of its group, [B, H, P, E] to [B, H, N, E]."""
        rest = output[:, :, 1:].repeat_interleave(self.factor, dim=2)
        return torch.cat([output[:, :, :1], rest], dim=2)[:, :, :length]

    def with_positions(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        """Compute NS; padded keys are ``hidden`` [B, N]."""
        length, dropout = query.shape[2], self.weight_dropout
        pooled = self.with_content(self.pool(query, lengths(query, hidden)))
        token = torch.arange(length, device=query.device)
        group = torch.arange(pooled.shape[2], device=query.device)[:, None]
        position = (group * self.factor + 1 - self.factor).clamp(min=0)
        embedded = self.embed(torch.arange(1 - length, length, device=query.device))
        index, is_first = position - token + length - 1, (group == 0) | (token == 0)

        def mean(query: Tensor, key: Tensor, value: Tensor, *more: Tensor) -> Tensor:
            *padding, embedded, biases = more
            by_distance = query @ embedded.mT * self.scale + biases[:, None]
            by_key = by_distance.gather(2, index.expand(len(query), -1, -1)).masked_fill(is_first, 0.0)
            masked = padding[0] if padding else None
            return attention_weights(query @ key.mT * self.scale + by_key, masked, dropout) @ value

        shared = (embedded, self.position_biases(embedded))
        heads = [pooled, key, value]
        if hidden is not None:
            heads.append(hidden[:, None, None].expand(-1, self.num_heads, -1, -1))
        output = in_chunks(mean, heads, shared, cost=6 * index.numel(), dropout=dropout)
        return self.repeat(output, length)
