"""What RWKV's recurrent methods share: inputs that are mixtures of a token and the one before it.

Shapes: B batch, N tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attentions.bases.recurrent import Recurrent
from attentions.kernels.blocks import tokens_at_once
from attentions.kernels.spans import formed_anew
from cab import PaddingMasks
from cab.attention import DecodeState
from cab.padding import lengths


class TokenShift(Recurrent):
    """A recurrence whose q, k, v and extras are made of each token and the one before it, which the state keeps.

    A subclass says in ``mixed`` what is formed of the two, and in ``inputs`` what becomes of it.
    """

    def inputs(self, x: Tensor, before: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
        """q, k, v [B, H, N, E], and extras [B, N, ...], of tokens [B, N, D] and those before them."""
        raise NotImplementedError

    def mixed(self, x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """What ``inputs`` needs, [B, N, ...] each; nothing else that is formed here is kept."""
        raise NotImplementedError

    def mixed_by_spans(self, x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """``mixed``, some tokens at a time."""
        size = tokens_at_once(len(x) * self.num_heads, x.device)
        spans = zip(x.split(size, dim=1), before.split(size, dim=1), strict=True)
        parts = zip(*(formed_anew(self.mixed, *span) for span in spans), strict=True)
        return tuple(torch.cat(part, dim=1) for part in parts)

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        return self.decode_inputs(query, padding.query, self.init_decode_state(len(query), query))[0]

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> tuple[Tensor, DecodeState]:
        seen = torch.cat([state["token"].to(tokens.dtype), tokens], dim=1)
        (query, key, value), extras = self.inputs(tokens, seen[:, :-1])
        output, after = self.decode(query, key, value, state, PaddingMasks(mask, mask), **extras)
        last = lengths(tokens, mask)[:, None, None].expand(-1, 1, tokens.shape[2])
        return self.out_proj(self.merge_heads(output)), {**after, "token": seen.gather(1, last)}

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        return {**super().init_decode_state(batch_size, like), "token": like.new_zeros(batch_size, 1, self.embed_dim)}
