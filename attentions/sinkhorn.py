"""Sparse Sinkhorn attention (Tay et al. 2020a): attention to a block of tokens and to a block of sorted tokens.

Shapes: B batch, H heads, N tokens, E width of a head, J blocks, b tokens of a block, T new tokens.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import by_length
from attentions.kernels.key_summaries import block_means
from attentions.kernels.numerics import mask_value, upcast
from attentions.kernels.token_cache import append_tokens, empty_cache, padding_last
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive, PositiveFloat

QUERIES_AT_ONCE = 64
"""Tokens that are read at once in decoding."""


@register_attention("sinkhorn", patterns="NS CS", complexity="n^2", paper="Tay et al. 2020a")
class SinkhornAttention(Attention):
    """Compute softmax(q_i [S K; K_own]^T / sqrt(E)) [S V; V_own] with the keys of the own block and sorted keys.

    Section 3 of the paper. Row a of S mixes the blocks token by token, with weights from products of the mean query of
    block a and the mean keys of the other blocks, divided by ``temperature``. In NS, rows and columns are normalized in
    turn, so S approaches a permutation; blocks have sizes as equal as ``block_size`` allows, and missing tokens of the
    last block are zeros. In CS, block a sorts the blocks before it, by the mean of all queries up to its first one.
    Only rows are normalized, since columns would include later blocks. The first block attends to itself.

    The paper sorts with a network for a fixed number of blocks and Gumbel noise; means, as in the public code, work for
    any length. Time is N b + (N / b)^2 E b. Decoding stores the queries, keys and values of all tokens.

    Args:
        block_size: tokens b per block.
        iterations: number of normalizations of rows and columns.
        temperature: divisor of the scores, above 0.
    """

    claims = Claims(softmax_limit=softmax_if(block_size=NUM_TOKENS))
    requires_right_padding = True

    def __init__(
        self,
        *,
        block_size: Positive = 64,
        iterations: Positive = 8,
        temperature: PositiveFloat = 0.75,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.block_size, self.iterations, self.temperature = block_size, iterations, temperature

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the scores [..., T, J] of summaries [..., T, E] and [..., J, E]."""
        return queries @ keys.mT * self.scale / self.temperature

    def permutation(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return S for blocks that all see each other, by Sinkhorn's alternating normalization."""
        logits = self.scores(queries, keys)
        for _ in range(self.iterations):
            logits = logits - logits.logsumexp(dim=-1, keepdim=True)
            logits = logits - logits.logsumexp(dim=-2, keepdim=True)
        return logits.exp()

    def past(self, queries: Tensor, keys: Tensor, block: Tensor) -> Tensor:
        """Return rows of S for targets in ``block`` [..., T] over earlier blocks; the first block has none."""
        earlier = torch.arange(keys.shape[-2], device=keys.device) < block.unsqueeze(-1)
        logits = self.scores(queries, keys).masked_fill(~earlier, mask_value(queries.dtype))
        return logits.softmax(dim=-1).masked_fill(~earlier, 0.0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        mask = None if self.pattern is Pattern.CS else padding.key
        return by_length(self.attend_unpadded, (query, key, value), mask)

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, device = query.shape[2], query.device
        count = -(-length // self.block_size)
        size = self.block_size if self.pattern is Pattern.CS else -(-length // count)
        position = torch.arange(count * size, device=device).unflatten(0, (count, size))
        with torch.autocast(device.type, enabled=False):
            if self.pattern is Pattern.CS:
                begin = position[:, 0]
                summary = upcast(query).cumsum(dim=2)[:, :, begin] / (begin + 1).unsqueeze(1)
                order = self.past(summary, _means(key, size, length), torch.arange(count, device=device))
                near = position[0] <= position[0].unsqueeze(1)
                seen = torch.cat([(begin > 0)[:, None, None].expand(-1, size, size), near.expand(count, -1, -1)], dim=2)
            else:
                order = self.permutation(_means(query, size, length), _means(key, size, length))
                seen = torch.cat([torch.ones_like(position, dtype=torch.bool), position < length], dim=1).unsqueeze(1)
        q, k, v = (_blocks(x, size).flatten(0, 1) for x in (query, key, value))
        order = order.to(k.dtype).flatten(0, 1)
        keys, values = (torch.cat([_mixed(order, x), x], dim=2) for x in (k, v))
        hides = self.pattern is Pattern.CS or count * size > length
        output = F.scaled_dot_product_attention(q, keys, values, seen if hides else None, self.weight_dropout)
        return output.flatten(1, 2)[:, :length].unflatten(0, query.shape[:2])

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, size = query.shape[1], self.block_size
        if self.pattern is Pattern.NS:
            size = -(-length // -(-length // size))
        blocks = [slice(begin, min(begin + size, length)) for begin in range(0, length, size)]
        queries, keys = (torch.stack([x[:, block].mean(dim=1) for block in blocks], dim=1) for x in (query, key))
        if self.pattern is Pattern.NS:
            order = self.permutation(queries, keys)
        outputs = []
        for a, block in enumerate(blocks):
            own_key, own_value, causal = key[:, block], value[:, block], self.pattern is Pattern.CS
            if causal:
                summary = query[:, : block.start + 1].mean(dim=1, keepdim=True)
                weights = self.scores(summary, keys[:, :a]).softmax(dim=-1) if a else query.new_zeros(len(query), 1, 0)
            else:
                weights = order[:, a : a + 1]
            mixed = []
            for x in (key, value):
                total = x.new_zeros(len(x), size if weights.shape[2] else 0, self.head_dim)
                for c in range(weights.shape[2]):
                    block_c = x[:, blocks[c]]
                    total = total + F.pad(weights[:, :, c, None] * block_c, (0, 0, 0, size - block_c.shape[1]))
                mixed.append(total)
            for i in range(block.stop - block.start):
                seen = i + 1 if causal else size
                logits = query[:, block][:, i : i + 1] @ torch.cat([mixed[0], own_key[:, :seen]], dim=1).mT
                weights_i = (logits * self.scale).softmax(dim=-1)
                outputs.append(weights_i @ torch.cat([mixed[1], own_value[:, :seen]], dim=1))
        return torch.cat(outputs, dim=1)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        shape = (self.num_heads, self.head_dim)
        state = empty_cache(batch_size, like, query=shape, key=shape, value=shape)
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        position = state["length"].unsqueeze(1) + torch.arange(query.shape[2], device=query.device)
        new = padding_last(
            append_tokens(state, padding.key, query=query, key=key, value=value), "query", "key", "value"
        )
        new["length"] = state["length"] + lengths(key, padding.key)
        pieces = zip(query.split(QUERIES_AT_ONCE, dim=2), position.split(QUERIES_AT_ONCE, dim=1), strict=True)
        with torch.autocast(query.device.type, enabled=False):
            return torch.cat([self.read(q, at, new) for q, at in pieces], dim=2), new

    def read(self, query: Tensor, position: Tensor, state: DecodeState) -> Tensor:
        """Decode queries [B, H, T, E] at ``position`` [B, T] from the state."""
        size = self.block_size
        keys, values, sums = upcast(state["key"]), upcast(state["value"]), upcast(state["query"]).cumsum(dim=2)
        last = keys.shape[2] - 1
        block = position // size
        begin = (block * size).clamp(max=last)[:, None, :, None].expand(-1, self.num_heads, -1, 1)
        summary = sums.gather(2, begin.expand(-1, -1, -1, self.head_dim)) / (begin + 1)
        count = keys.shape[2] // size
        order = self.past(summary, block_means(keys, size), block.unsqueeze(1))
        token = begin + torch.arange(size, device=query.device)  # [B, H, T, b]
        seen = torch.cat([(begin > 0).expand_as(token), token <= position[:, None, :, None]], dim=3)
        blocks = []
        for x in (keys, values):
            mixed = order @ x[:, :, : count * size].unflatten(2, (count, size)).flatten(3)
            index = token.clamp(max=last).flatten(2).unsqueeze(3).expand(-1, -1, -1, self.head_dim)
            near = x.gather(2, index).unflatten(2, token.shape[2:])
            blocks.append(torch.cat([mixed.unflatten(3, (size, -1)), near], dim=3))
        logits = (blocks[0] @ upcast(query).unsqueeze(4)).squeeze(4) * self.scale
        weights = logits.masked_fill(~seen, mask_value(logits.dtype)).softmax(dim=-1)
        weights = F.dropout(weights, self.weight_dropout)
        return (weights.unsqueeze(3) @ blocks[1]).squeeze(3).to(query.dtype)


def _blocks(x: Tensor, size: int) -> Tensor:
    """Split [B, H, N, E] into blocks [B, H, J, b, E], with zeros after the last token."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))


def _means(x: Tensor, size: int, length: int) -> Tensor:
    """Return the mean of the tokens of each block, [B, H, J, E]."""
    total = _blocks(upcast(x), size).sum(dim=3)
    count = (length - torch.arange(total.shape[2], device=x.device) * size).clamp(max=size)
    return total / count.unsqueeze(1)


def _mixed(order: Tensor, blocks: Tensor) -> Tensor:
    """Multiply rows of S [G, J, J] with blocks [G, J, b, E]."""
    return (order @ blocks.flatten(2)).unflatten(2, blocks.shape[2:])
