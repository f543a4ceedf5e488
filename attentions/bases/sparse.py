"""What attentions share in which positions alone decide which keys a token sees.

Shapes: B batch, H heads, N tokens, E width of a head, T new tokens, S keys that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.pieces import each_length
from attentions.kernels.common.precision import neg_inf
from cab import Attention, Pattern
from cab.attention import DecodeState, PaddingMasks
from cab.errors import UserError
from cab.padding import lengths

Spread = Callable[..., Tensor]

TOGETHER = 256
"""Tokens that are read at once in decoding."""


class SparseDecoding(Attention):
    """Decoding that keeps keys and values that a later token may see (``needs``): all, until a subclass knows better.

    One that says how many there can be (``most_kept``) has a state of constant size.
    """

    requires_right_padding = True
    most_kept: int | None = None

    def sees(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        """Whether positions ``query`` see positions ``key`` in a row of ``length`` tokens (0 in CS: not known).

        The two have shapes [..., N, 1] and [..., 1, N]; the result may have a dimension of heads before these.
        """
        raise NotImplementedError

    def needs(self, key: Tensor, length: Tensor) -> Tensor:
        """Whether a token at position ``length`` or later may see position ``key``."""
        return key < length

    def kept_width(self) -> int | None:
        """Of a state of constant size, how many keys it has room for."""
        return self.most_kept

    def pair_logits(self, query: Tensor, key: Tensor, _distance: Tensor, _farthest: int | None = None) -> Tensor:
        """[..., N, E] and [..., M, E], so far apart [..., N, M] (from 0 to ``farthest``, if given), to [..., N, M]."""
        return query @ key.mT * self.scale

    def seen_weights(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Softmax over what is seen; none where that is nothing."""
        weights = logits.masked_fill(~seen, neg_inf(logits.dtype)).softmax(dim=-1)
        return weights.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Keys, values and positions (-1: none) of what is kept, and tokens read."""
        empty = like.new_zeros(batch_size, self.num_heads, self.kept_width() or 0, self.head_dim)
        position = torch.full((batch_size, empty.shape[2]), -1, device=like.device)
        read = torch.zeros(batch_size, dtype=torch.long, device=like.device)
        return {"key": empty, "value": empty, "position": position, "length": read}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **more: Tensor
    ) -> tuple[Tensor, DecodeState]:
        """In pieces, each from the state that those before it leave."""
        outputs = []
        for begin in range(0, max(query.shape[2], 1), TOGETHER):
            piece = slice(begin, begin + TOGETHER)
            q, k, v = (x[:, :, piece] for x in (query, key, value))
            count = lengths(k, None if padding.key is None else padding.key[:, piece])
            extras = {name: x[:, piece] for name, x in more.items()}
            output, state = self.decode_piece(q, k, v, state, count, **extras)
            outputs.append(output)
        return torch.cat(outputs, dim=2), state

    def decode_piece(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, count: Tensor, **_: Tensor
    ) -> tuple[Tensor, DecodeState]:
        """:meth:`decode` of T tokens, the first ``count`` [B] of which are real."""
        length, new = state["length"], torch.arange(key.shape[2], device=key.device)
        asked = length[:, None] + new
        position = torch.cat([state["position"], asked.where(new < count[:, None], -1)], dim=1)
        key = torch.cat([state["key"].to(key.dtype), key], dim=2)
        value = torch.cat([state["value"].to(value.dtype), value], dim=2)
        kept = (position >= 0) & self.needs(position, (length + count)[:, None])
        output = self.read(query, key, value, asked, position)
        width = state["position"].shape[1] if self.has_constant_size_state else None
        return output, self.keep(key, value, position, kept, width) | {"length": length + count}

    def read(self, query: Tensor, key: Tensor, value: Tensor, asked: Tensor, position: Tensor) -> Tensor:
        """Queries [B, H, T, E] at ``asked`` [B, T], keys at ``position`` [B, S], which is -1 where there is none."""
        at = position[:, None, None]
        seen = self.sees(asked[:, None, :, None], at, 0) & (at >= 0)
        distance = (asked[:, None, :, None] - at).where(seen, 0)
        weights = self.seen_weights(self.pair_logits(query, key, distance, self.most_kept), seen)
        return F.dropout(weights, self.dropout, self.training) @ value

    def keep(self, key: Tensor, value: Tensor, position: Tensor, kept: Tensor, width: int | None) -> DecodeState:
        """The marked keys, at the right end in their order; None: as many places as it takes."""
        width = int(kept.sum(dim=1).max()) if width is None else width
        order = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, position.shape[1] - width :]
        index = order[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim)
        return {
            "key": key.gather(2, index),
            "value": value.gather(2, index),
            "position": position.where(kept, -1).gather(1, order),
        }


class SparseAttention(SparseDecoding):
    """softmax(q_i k_j / sqrt(E)) v_j over the set of keys j that token i sees.

    A subclass says which these are (``sees``), and computes the same fast (``spread``), on rows without padding: in CS
    padding stands on the right, where no real token looks; in NS rows of one length are computed together.
    """

    def spread(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The fast form, of [B, H, N, E] to the same."""
        raise NotImplementedError

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        mask = None if self.pattern is Pattern.CS else padding.key
        return each_length(self.spread, (query, key, value), mask)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        position = torch.arange(query.shape[1], device=query.device)
        seen = self.sees(position[:, None], position[None], len(position))
        logits = self.pair_logits(query, key, position[:, None] - position)
        return self.seen_weights(logits, seen) @ value


def first_heads(num_heads: int, like: Tensor) -> Tensor:
    """Which heads are in the first half, [H, 1, 1]; the middle one is."""
    return (torch.arange(num_heads, device=like.device) < (num_heads + 1) // 2).view(-1, 1, 1)


def by_halves(first: Spread, second: Spread, heads: Sequence[Tensor]) -> Tensor:
    """One function of the first half of the heads [B, H, N, E], another of the rest, if there are any."""
    half = (heads[0].shape[1] + 1) // 2
    output = first(*(x[:, :half] for x in heads))
    if half == heads[0].shape[1]:
        return output
    return torch.cat([output, second(*(x[:, half:] for x in heads))], dim=1)


def check_spread(spread: str) -> None:
    """UserError for a way to spread key sets that is none."""
    if spread not in ("heads", "merged"):
        raise UserError(f"spread must be 'heads' or 'merged', got '{spread}'")


def check_stride(name: str, stride: int, pattern: Pattern) -> None:
    """UserError for a stride below 1, but for 0 in NS."""
    if stride < 0 or (stride == 0 and pattern is not Pattern.NS):
        what = "at least 0 (0: the square root of the length)" if pattern is Pattern.NS else "at least 1 in CS"
        raise UserError(f"{name} must be {what}, got {stride}")
