"""The Compressive Transformer (Rae et al. 2020): a memory of past tokens, and a memory of compressed older ones.

Shapes: B batch, H heads, N tokens, D width, E head dimension, L segment, M memory, c tokens per group, C slots.
"""

from __future__ import annotations

import itertools
from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.sparse import SparseDecoding
from attentions.kernels.chunks import in_chunks
from attentions.kernels.numerics import attention_weights
from attentions.kernels.relative import segment_attention
from attentions.kernels.token_cache import packed
from attentions.transformer_xl import RelativeAttention
from cab import DecodeState, PaddingMasks, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import take_rows
from cab.registry.options import Positive


@register_attention("compressive", patterns="CS", complexity="n", paper="Rae et al. 2020")
class CompressiveAttention(RelativeAttention, SparseDecoding):
    """Compute one softmax over the compressed memory, the memory, and the segment up to the token (section 3).

    The memory contains at least the M tokens before the segment of length L. Older tokens are compressed in groups of
    c, counted from the start of the sequence, by a convolution with kernel and stride c over the inputs of the layer,
    as soon as all tokens of a group have left the memory. The last C groups are attended to. Relative positions
    (:class:`RelativeAttention`) count a group as one token. No gradient flows to the inputs of the memories.

    The convolution is trained by the attention-reconstruction loss alone (section 3.2): the mean squared difference
    between content attention of a segment's queries over the newly compressed groups and over their tokens, with
    queries, keys and values detached. Nothing leaves the memory of a sequence of up to L ceil((M + c) / L) tokens (256
    by default), as in the paper, whose sequences share a memory across batches. There the convolution is unused and
    its gradient is zero or None: train on longer sequences, or choose L and M for the task.

    The time is N (L + M + c + C). Decoding keeps keys and values of the uncompressed tokens and of the last groups, and
    the inputs of an incomplete group: a state of constant size.

    Args:
        segment: L.
        memory: M.
        compressed: C.
        factor: c.
        position: ``relative``, or ``none`` to remove the positions.
    """

    claims = Claims(
        softmax_limit=softmax_if(segment=NUM_TOKENS, position="none"),
        parameter_budget=0.4,  # the convolution, c D^2, and W_R, as published
        has_exact_gradient=False,
    )
    has_constant_size_state = True
    unused_parameters = ("compress.",)

    def __init__(
        self,
        *,
        segment: Positive = 128,
        memory: Positive = 128,
        compressed: Positive = 128,
        factor: Positive = 3,
        position: Literal["relative", "none"] = "relative",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        if position == "none":
            self.remove_positions()
        self.segment, self.memory, self.slots, self.factor = segment, memory, compressed, factor
        tokens = segment + memory + factor - 2
        self.max_kept = tokens + compressed + tokens // factor
        self.compress = nn.Conv1d(self.embed_dim, self.embed_dim, factor, stride=factor)

    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Return the detached inputs, from which the memories are computed."""
        return {"past": x.detach()}

    def groups_before(self, begin: Tensor) -> Tensor:
        """Return how many groups have left the memory of segments that start at ``begin``."""
        return ((begin - self.memory) // self.factor).clamp(min=0)

    def group_counts(self, length: int) -> list[int]:
        """Return :meth:`groups_before` of each segment without waiting for a device."""
        return [max(0, (begin - self.memory) // self.factor) for begin in range(0, length, self.segment)]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, past: Tensor) -> Tensor:
        """Return the outputs [B, H, N, E]. Padding is on the right, where no real token attends."""
        length, device = query.shape[2], query.device
        size, begin = min(self.segment, length), torch.arange(0, length, self.segment, device=device)
        ended = self.groups_before(begin)
        old = self.split_heads(self.k_proj(past)), self.split_heads(self.v_proj(past))
        groups = self.groups(past, self.group_counts(length)[-1])
        slots = groups.detach()
        memory = self.split_heads(self.k_proj(slots)), self.split_heads(self.v_proj(slots))
        # Keys of a segment, from its start backwards: the tokens of the memory, then the groups, last first.
        back = torch.arange(min(self.memory + self.factor - 1, length) + self.slots, device=device)
        raw = (begin - ended * self.factor)[:, None]
        number = ended[:, None] - 1 - (back - raw)
        number = torch.where((number >= 0) & (back - raw < self.slots), number, -1)
        memory_table = torch.where(back < raw, begin[:, None] - 1 - back + slots.shape[1], number).flip(1)
        segment_table = begin[:, None] + torch.arange(size, device=device)
        segment_table = torch.where(segment_table < length, segment_table + slots.shape[1] + length, -1)
        table = torch.cat([memory_table, segment_table], dim=1)
        if self.training and groups.shape[1]:
            self.add_loss(self.reconstruction(query, old, groups, begin, ended), padding)
        embedded = self.embed(torch.arange(table.shape[1] - 1, -1, -1, device=device))
        sources = [torch.cat(pair, dim=2) for pair in zip(memory, old, (key, value), strict=True)]
        query, biases, dropout = self.with_content(query), self.position_biases(embedded), self.weight_dropout
        return segment_attention(query, (sources[0], sources[1]), table, size, embedded, biases, dropout=dropout)

    def groups(self, past: Tensor, count: int) -> Tensor:
        """Return the first groups, compressed: [B, count, D]."""
        if not count:
            return past[:, :0]
        return self.compress(past[:, : count * self.factor].mT).mT

    def reconstruction(
        self, query: Tensor, old: tuple[Tensor, Tensor], groups: Tensor, begin: Tensor, ended: Tensor
    ) -> Tensor:
        """Return the attention-reconstruction loss of each target, [B, N]."""
        length, size, device = query.shape[2], min(self.segment, query.shape[2]), query.device
        already = torch.cat([ended[:1], ended[:-1]])
        most = max(after - before for before, after in itertools.pairwise(self.group_counts(length)))
        weights = self.k_proj.weight.detach(), self.v_proj.weight.detach()
        compressed = [self.split_heads(F.linear(groups, weight.to(groups.dtype))) for weight in weights]
        number = already[:, None] + torch.arange(most, device=device)
        hidden = number >= ended[:, None]
        number = number.masked_fill(hidden, 0)
        token = (number[..., None] * self.factor + torch.arange(self.factor, device=device)).flatten(1)
        hidden_token = hidden.repeat_interleave(self.factor, dim=1)
        none, count = hidden.all(dim=1)[:, None, None], len(begin)

        def difference(query: Tensor, *sources: Tensor) -> Tensor:
            q = F.pad(query * self.scale, (0, 0, 0, size * count - length)).unflatten(1, (count, size))
            means = []
            for (key, value), table, masked in zip(
                (sources[:2], sources[2:]), (token, number), (hidden_token, hidden), strict=True
            ):
                logits = q @ key[:, table].mT
                means.append(attention_weights(logits, masked[:, None], 0.0) @ value[:, table])
            return (means[0] - means[1]).masked_fill(none, 0.0).flatten(1, 2)[:, :length]

        heads = [query.detach(), *(x.detach() for x in old), *compressed]
        error = in_chunks(difference, heads, cost=6 * count * size * token.shape[1])
        return error.square().mean(dim=(1, 3))

    def reference(self, query: Tensor, key: Tensor, value: Tensor, past: Tensor) -> Tensor:
        """Return the outputs [H, n, E], token by token, from the list of the keys that it attends to."""
        outputs, groups = [], self.groups(past[None], len(past) // self.factor)[0].detach()
        slot_key, slot_value, old_key, old_value = (
            self.split_heads(projection(x)[None])[0]
            for x in (groups, past)
            for projection in (self.k_proj, self.v_proj)
        )
        for i in range(query.shape[1]):
            begin = i // self.segment * self.segment
            ended = max(0, (begin - self.memory) // self.factor)
            oldest = max(0, ended - self.slots)
            seen = slice(oldest, ended), slice(ended * self.factor, begin), slice(begin, i + 1)
            keys, values = (
                torch.cat([x[:, tokens] for x, tokens in zip(sources, seen, strict=True)], dim=1)
                for sources in ((slot_key, old_key, key), (slot_value, old_value, value))
            )
            distance = torch.arange(keys.shape[1] - 1, -1, -1, device=query.device)[None]
            logits = self.pair_logits(query[:, i : i + 1], keys, distance)
            outputs.append(logits.softmax(dim=-1) @ values)
        return torch.cat(outputs, dim=1)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return empty keys and values of tokens and groups, and the inputs of the incomplete group."""
        return super().init_decode_state(batch_size, like) | {
            "open": like.new_zeros(batch_size, self.factor - 1, self.embed_dim)
        }

    def decode_piece(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, count: Tensor, **more: Tensor
    ) -> Decoded:
        past = more["past"]
        c, length, new = self.factor, state["length"], torch.arange(key.shape[2], device=key.device)
        total, query_position = length + count, length[:, None] + new
        inputs = packed(state["open"][:, None], length % c, past[:, None])[:, 0]
        groups = self.groups(inputs, inputs.shape[1] // c)
        number = (length // c)[:, None] + torch.arange(groups.shape[1], device=key.device)
        formed = self.split_heads(self.k_proj(groups)), self.split_heads(self.v_proj(groups))
        key = torch.cat([state["key"].to(key.dtype), key, formed[0]], dim=2)
        value = torch.cat([state["value"].to(value.dtype), value, formed[1]], dim=2)
        tokens = query_position.where(new < count[:, None], -1)
        slots = (-2 - number).where(number < (total // c)[:, None], -1)
        position = torch.cat([state["position"], tokens, slots], dim=1)
        output = self.read(query, key, value, query_position, position)
        cache = self.keep(key, value, position, self.required_keys(position, total[:, None]), self.max_kept)
        open_at = ((length % c + count) // c * c)[:, None] + torch.arange(c - 1, device=key.device)
        return output, cache | {"length": total, "open": take_rows(inputs, open_at.clamp(max=inputs.shape[1] - 1))}

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        """Select tokens and groups; the position of group g is stored as -2 - g."""
        ended = self.groups_before(length // self.segment * self.segment)
        return (key >= ended * self.factor) | (key <= -2) & (-2 - key >= ended - self.slots)

    def read(self, query: Tensor, key: Tensor, value: Tensor, query_position: Tensor, position: Tensor) -> Tensor:
        query_position, position = query_position[:, None, :, None], position[:, None, None]
        ended, group = self.groups_before(query_position // self.segment * self.segment), -2 - position
        token = (position >= ended * self.factor) & (position <= query_position)
        seen = token | (group >= (ended - self.slots).clamp(min=0)) & (group < ended)
        distance = torch.where(token, query_position - position, query_position - ended * self.factor + ended - group)
        weights = self.seen_weights(self.pair_logits(query, key, distance.where(seen, 0), self.max_kept), seen)
        return F.dropout(weights, self.dropout, self.training) @ value
