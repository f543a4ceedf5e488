"""Memory-compressed attention (Liu et al. 2018): softmax attention to keys and values of groups of tokens.

Shapes: B batch, H heads, N targets, M keys, E width of a head, c tokens of a group, G groups.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.token_cache import packed, take_tokens
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive


@register_attention("mca", patterns="NS CS NC CC", complexity="n^2", paper="Liu et al. 2018")
class MemoryCompressedAttention(Attention):
    """Compute softmax(q K~^T / sqrt(E)) V~ with K~ and V~ from convolutions with kernel and stride c.

    Section 4.2.3 of the paper. Each head has one convolution for keys and one for values. The last group of a source is
    padded with zeros. In CS, a token attends to the groups that end at or before it; tokens before the end of the first
    group attend to the first token itself. Decoding stores the keys and values of the groups and of the open group.

    Args:
        factor: tokens c per group.
        reduction: ``conv`` for a convolution, ``mean`` for the mean of a group's tokens, without parameters.
    """

    claims = Claims(softmax_limit=softmax_if(factor=1, reduction="mean"))
    requires_right_padding = True
    unused_parameters = ("q_proj.", "k_proj.", "compress_k.", "compress_v.")

    def __init__(
        self, *, factor: Positive = 3, reduction: Literal["conv", "mean"] = "conv", **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(**common)
        self.factor, self.reduction = factor, reduction
        if reduction == "conv":
            self.compress_k, self.compress_v = (
                nn.Conv1d(self.embed_dim, self.embed_dim, factor, stride=factor, groups=self.num_heads)
                for _ in range(2)
            )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        if self.pattern is Pattern.CS:
            return self.attend_causal(query, key, value)
        return super().attend(query, key, value, padding)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        n, m, c = query.shape[1], key.shape[1], self.factor
        slots = []
        for name, x in (("compress_k", key), ("compress_v", value)):
            if self.reduction == "mean":  # of the tokens that are there
                slots.append(torch.stack([x[:, i : i + c].mean(1) for i in range(0, m, c)], dim=1))
            else:
                filled = F.pad(x, (0, 0, 0, -m % c)).transpose(1, 2).flatten(0, 1).unsqueeze(0)
                slots.append(self.split_heads(getattr(self, name)(filled).transpose(1, 2))[0])
        logits = query @ slots[0].mT * self.scale
        if self.pattern is not Pattern.CS:
            return logits.softmax(dim=-1) @ slots[1]
        early = value[:, :1].expand(-1, min(n, c - 1), -1)
        if n < c:
            return early
        last = torch.arange(slots[0].shape[1], device=key.device) * c + c - 1
        seen = last <= torch.arange(n, device=key.device)[:, None]
        weights = logits[:, c - 1 :].masked_fill(~seen[c - 1 :], -torch.inf).softmax(dim=-1)
        return torch.cat([early, weights @ slots[1]], dim=1)

    def compress(self, name: str, x: Tensor, count: Tensor | None) -> Tensor:
        """Compress ``x`` [B, H, M, E], ``count`` tokens per sequence and zeros after them, to groups [B, H, G, E]."""
        c = self.factor
        groups = F.pad(x, (0, 0, 0, -x.shape[2] % c)).unflatten(2, (-1, c))
        if self.reduction == "conv":
            conv: nn.Conv1d = getattr(self, name)
            weight = conv.weight.unflatten(0, (self.num_heads, self.head_dim)).permute(0, 3, 2, 1).flatten(1, 2)
            assert conv.bias is not None
            bias = conv.bias.view(self.num_heads, 1, self.head_dim)
            return groups.flatten(3) @ weight.to(x.dtype) + bias.to(x.dtype)
        if count is None:
            count = x.new_full((len(x),), x.shape[2], dtype=torch.long)
        start = torch.arange(groups.shape[2], device=x.device) * c
        size = (count[:, None] - start).clamp(1, c)
        return groups.sum(dim=3) / size[:, None, :, None]

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return the keys and values of all groups [B, H, G, E], and the number of groups per sequence [B]."""
        count = lengths(key, padding.key)
        if padding.key is not None:
            hidden = padding.key[:, None, :, None]
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
        state = {"key": self.compress("compress_k", key, count), "value": self.compress("compress_v", value, count)}
        return state | {"groups": -(-count // self.factor)}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        groups, total = state["groups"], state["key"].shape[2]
        seen = torch.arange(total, device=query.device) < groups[:, None]
        none = (groups == 0)[:, None]
        mask = (seen | none)[:, None, None]
        output = F.scaled_dot_product_attention(query, state["key"], state["value"], mask, self.weight_dropout)
        return output.masked_fill(none[:, None, None], 0.0), state

    def attend_causal(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to compressed groups; padding is at the right end, where no token attends.

        Tokens at the same position of their groups each see one more group: this is causal attention, for c positions.
        """
        c, length = self.factor, query.shape[2]
        early = self.first_value(value[:, :, :1].expand(-1, -1, min(length, c - 1), -1))
        groups = length // c
        if groups == 0:
            return early
        late = F.pad(query[:, :, c - 1 :], (0, 0, 0, -(length - c + 1) % c))
        late = late.unflatten(2, (groups, c)).transpose(2, 3).flatten(1, 2)
        slot_key, slot_value = (
            self.compress(name, x[:, :, : groups * c], None).repeat_interleave(c, dim=1)
            for name, x in (("compress_k", key), ("compress_v", value))
        )
        output = F.scaled_dot_product_attention(late, slot_key, slot_value, None, self.weight_dropout, True)
        output = output.unflatten(1, (-1, c)).transpose(2, 3).flatten(2, 3)
        return torch.cat([early, output], dim=2)[:, :, :length]

    def first_value(self, value: Tensor) -> Tensor:
        """Return the output of tokens that see the first value only; dropout applies to its weight."""
        weight = F.dropout(torch.ones_like(value[..., :1]), self.dropout, self.training)
        return value * weight

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the state: finished groups, tokens of the open one, the first value, and the number of tokens."""
        empty = like.new_zeros(batch_size, self.num_heads, 0, self.head_dim)
        past = like.new_zeros(batch_size, self.num_heads, self.factor - 1, self.head_dim)
        return {
            "key": empty,
            "value": empty,
            "open_key": past,
            "open_value": past,
            "first": like.new_zeros(batch_size, self.num_heads, 1, self.head_dim),
            "length": torch.zeros(batch_size, dtype=torch.long, device=like.device),
        }

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        c, read, count = self.factor, state["length"], lengths(key, padding.key)
        total = read + count
        first_value = torch.where((read > 0)[:, None, None, None], state["first"].to(value.dtype), value[:, :, :1])
        new: DecodeState = {"length": total, "first": first_value}
        for name, x in (("key", key), ("value", value)):
            tokens = packed(state[f"open_{name}"], read % c, x)
            groups = self.compress(f"compress_{name[0]}", tokens, None)
            new[name] = packed(state[name], read // c, groups)[:, :, : int((total // c).max())]
            new[f"open_{name}"] = take_tokens(tokens, (read % c + count) // c * c, c - 1)
        query_position = read[:, None] + torch.arange(query.shape[2], device=query.device)
        ended = ((query_position + 1) // c)[:, None, :, None]
        hidden = torch.arange(new["key"].shape[2], device=query.device) >= ended
        early = ended == 0
        output = self.first_value(first_value.expand(-1, -1, query.shape[2], -1))
        if new["key"].shape[2]:
            mask = ~hidden | early
            late = F.scaled_dot_product_attention(query, new["key"], new["value"], mask, self.weight_dropout)
            output = torch.where(early, output, late)
        return output, new
