"""Base class of the RWKV attentions: recurrences whose inputs mix every token with the previous one.

Shapes: B batch, N tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attentions.bases.recurrent import Recurrent
from attentions.kernels.chunks import tokens_at_once
from attentions.kernels.numerics import recompute
from cab import PaddingMasks
from cab.attention import Decoded, DecodeState
from cab.padding import lengths


class TokenShift(Recurrent):
    """Base class of recurrences whose q, k, v and gates are functions of a token and the previous one.

    The decoding state also contains the last token. A subclass computes mixtures of the two tokens in ``mixed`` and the
    heads in ``inputs``.
    """

    norm_weight: nn.Parameter

    def initialize_projections(self, key_gain: float) -> None:
        """Initialize as RWKV-LM: orthogonal with gain 1 for r and v, ``key_gain`` for k, and zero for ``out_proj``.

        RWKV-LM's ``generate_init_weight`` draws these weights, which replace those of the layer's constructor.
        """
        for linear, gain in ((self.q_proj, 1.0), (self.k_proj, key_gain), (self.v_proj, 1.0)):
            nn.init.orthogonal_(linear.weight, gain=gain)
        nn.init.zeros_(self.out_proj.weight)

    def inputs(self, x: Tensor, previous: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
        """Compute q, k, v [B, H, N, E] and extras [B, N, ...] from tokens [B, N, D] and the previous tokens."""
        raise NotImplementedError

    def mixed(self, x: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Compute the tensors [B, N, ...] that ``inputs`` needs; other intermediate results are recomputed."""
        raise NotImplementedError

    def mixed_by_chunks(self, x: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Run ``mixed`` on one chunk of tokens at a time."""
        size = tokens_at_once(len(x) * self.num_heads, x.device)
        chunks = zip(x.split(size, dim=1), previous.split(size, dim=1), strict=True)
        parts = zip(*(recompute(self.mixed, *chunk) for chunk in chunks), strict=True)
        return tuple(torch.cat(part, dim=1) for part in parts)

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        """Compute the outputs [B, N, D] of all tokens."""
        return self.decode_inputs(query, padding.query, self.init_decode_state(len(query), query))[0]

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        """Compute the outputs of these tokens and the state after them."""
        seen = torch.cat([state["token"].to(tokens.dtype), tokens], dim=1)
        (query, key, value), extras = self.inputs(tokens, seen[:, :-1])
        output, after = self.decode(query, key, value, state, PaddingMasks(mask, mask), **extras)
        last = lengths(tokens, mask)[:, None, None].expand(-1, 1, tokens.shape[2])
        return self.out_proj(self.merge_heads(output)), {**after, "token": seen.gather(1, last)}

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the initial state, in which the previous token is zero."""
        return {**super().init_decode_state(batch_size, like), "token": like.new_zeros(batch_size, 1, self.embed_dim)}
