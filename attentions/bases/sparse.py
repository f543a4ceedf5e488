"""Base classes of sparse attention in which the visible keys depend only on positions.

Shapes: B batch, H heads, N tokens, E width of a head, T new tokens, S cached keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import by_length
from attentions.kernels.numerics import mask_value
from attentions.kernels.token_cache import gather_tokens
from cab import Attention, Pattern
from cab.attention import Decoded, DecodeState, PaddingMasks
from cab.errors import UserError
from cab.padding import lengths

Spread = Callable[..., Tensor]

QUERIES_AT_ONCE = 256
"""Number of tokens per chunk in decoding."""


class SparseDecoding(Attention):
    """Decode with a cache of the keys and values that a later token may see.

    ``required_keys`` selects them; the default is all keys. A subclass that sets ``max_kept``, the maximum number of
    cached keys, has a state of constant size.
    """

    requires_right_padding = True
    selects_tokens = True
    max_kept: int | None = None

    def is_visible(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        """Return whether tokens at positions ``query`` may attend to positions ``key``, bool [..., N, N].

        Args:
            query: positions [..., N, 1].
            key: positions [..., 1, N].
            length: number of tokens in the sequence; may be 0 (unknown) in CS.
        """
        raise NotImplementedError

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        """Return whether a token at position ``length`` or later may see position ``key``."""
        return key < length

    def kept_width(self) -> int | None:
        """Return the cache size of a state of constant size, in keys."""
        return self.max_kept

    def pair_logits(self, query: Tensor, key: Tensor, _distance: Tensor, _farthest: int | None = None) -> Tensor:
        """Return the logits [..., N, M] of queries [..., N, E] and keys [..., M, E] at ``distance`` [..., N, M].

        Distances are between 0 and ``farthest`` if it is given.
        """
        return query @ key.mT * self.scale

    def seen_weights(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Return the softmax over visible keys, zero for targets that see no key."""
        weights = logits.masked_fill(~seen, mask_value(logits.dtype)).softmax(dim=-1)
        return weights.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return empty caches of keys, values and positions (-1: empty entry), and the number of tokens read."""
        empty = like.new_zeros(batch_size, self.num_heads, self.kept_width() or 0, self.head_dim)
        position = torch.full((batch_size, empty.shape[2]), -1, device=like.device)
        read = torch.zeros(batch_size, dtype=torch.long, device=like.device)
        return {"key": empty, "value": empty, "position": position, "length": read}

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **more: Tensor
    ) -> Decoded:
        """Decode the tokens in chunks, each from the state after the previous chunk."""
        outputs = []
        for begin in range(0, max(query.shape[2], 1), QUERIES_AT_ONCE):
            piece = slice(begin, begin + QUERIES_AT_ONCE)
            q, k, v = (x[:, :, piece] for x in (query, key, value))
            count = lengths(k, None if padding.key is None else padding.key[:, piece])
            extras = {name: x[:, piece] for name, x in more.items()}
            output, state = self.decode_piece(q, k, v, state, count, **extras)
            outputs.append(output)
        return torch.cat(outputs, dim=2), state

    def decode_piece(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, count: Tensor, **_: Tensor
    ) -> Decoded:
        """Decode T tokens, the first ``count`` [B] of which are real."""
        length, new = state["length"], torch.arange(key.shape[2], device=key.device)
        query_position = length[:, None] + new
        position = torch.cat([state["position"], query_position.where(new < count[:, None], -1)], dim=1)
        key = torch.cat([state["key"].to(key.dtype), key], dim=2)
        value = torch.cat([state["value"].to(value.dtype), value], dim=2)
        kept = (position >= 0) & self.required_keys(position, (length + count)[:, None])
        output = self.read(query, key, value, query_position, position)
        width = state["position"].shape[1] if self.has_constant_size_state else None
        return output, self.keep(key, value, position, kept, width) | {"length": length + count}

    def read(self, query: Tensor, key: Tensor, value: Tensor, query_position: Tensor, position: Tensor) -> Tensor:
        """Attend from queries [B, H, T, E] at ``query_position`` [B, T] to keys at ``position`` [B, S] (-1: empty)."""
        at = position[:, None, None]
        seen = self.is_visible(query_position[:, None, :, None], at, 0) & (at >= 0)
        distance = (query_position[:, None, :, None] - at).where(seen, 0)
        weights = self.seen_weights(self.pair_logits(query, key, distance, self.max_kept), seen)
        return F.dropout(weights, self.dropout, self.training) @ value

    def keep(self, key: Tensor, value: Tensor, position: Tensor, kept: Tensor, width: int | None) -> DecodeState:
        """Return a cache of the keys marked in ``kept``, right-aligned, with ``width`` entries (None: as needed)."""
        width = int(kept.sum(dim=1).max()) if width is None else width
        order = kept.to(torch.uint8).argsort(dim=1, stable=True)[:, position.shape[1] - width :]
        return {
            "key": gather_tokens(key, order),
            "value": gather_tokens(value, order),
            "position": position.where(kept, -1).gather(1, order),
        }


class SparseAttention(SparseDecoding):
    """Compute softmax(q_i k_j / sqrt(E)) v_j over the set of keys j visible to token i.

    A subclass defines the set in ``is_visible`` and a fast implementation in ``attend_visible``. In CS, padding is on
    the right, where no real token attends. In NS it is cut off (:func:`by_length`), or masked where the implementation
    ``masks_padding``.
    """

    masks_padding = True

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        """Return the output [B, H, N, E] using the fast implementation; padded keys are ``hidden`` [B, N]."""
        raise NotImplementedError

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        mask = None if self.pattern is Pattern.CS else padding.key
        return by_length(self.attend_visible, (query, key, value), mask, masks=self.masks_padding)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        position = torch.arange(query.shape[1], device=query.device)
        seen = self.is_visible(position[:, None], position[None], len(position))
        logits = self.pair_logits(query, key, position[:, None] - position)
        return self.seen_weights(logits, seen) @ value


def first_heads(num_heads: int, like: Tensor) -> Tensor:
    """Return which heads are in the first half (with the middle one), bool [H, 1, 1]."""
    return (torch.arange(num_heads, device=like.device) < (num_heads + 1) // 2).view(-1, 1, 1)


def by_halves(first: Spread, second: Spread, heads: Sequence[Tensor]) -> Tensor:
    """Apply ``first`` to the first half of the heads [B, H, N, E] and ``second`` to the others, if any."""
    half = (heads[0].shape[1] + 1) // 2
    output = first(*(x[:, :half] for x in heads))
    if half == heads[0].shape[1]:
        return output
    return torch.cat([output, second(*(x[:, half:] for x in heads))], dim=1)


def check_stride(name: str, stride: int, pattern: Pattern) -> None:
    """Raise UserError for a stride below 1; NS also accepts 0."""
    if stride < 0 or (stride == 0 and pattern is not Pattern.NS):
        what = "at least 0 (0: the square root of the length)" if pattern is Pattern.NS else "at least 1 in CS"
        raise UserError(f"{name} must be {what}, got {stride}")
