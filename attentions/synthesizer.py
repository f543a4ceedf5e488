"""Synthesizer (Tay et al. 2021): weights of source positions, without comparing targets with keys.

Shapes: B batch, H heads, N targets, M keys, E width of a head, L the longest length.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from attentions.kernels.chunks import masked, sums_by_targets
from attentions.kernels.numerics import as_factor, masked_softmax, upcast
from cab import Attention, DecodeState, PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Positive

Variant = Literal["dense", "random", "random_plus"]

Targets = slice | Tensor
"""Positions of targets: the same in every row, or [B, N]."""


@register_attention("synthesizer", patterns="NS CS NC CC", complexity="n^2", paper="Tay et al. 2021")
class SynthesizerAttention(Attention):
    """Compute softmax(S) v, where S_ij is the score of source position j for target i (Eq. 2 to 8).

    * ``dense``: S_i = relu(q_i) W, with W [E, L] of all heads.
    * ``random``: S = R, learned, [L, L] a head; the input is in v alone.
    * ``random_plus``: S = q k^T / sqrt(E) + R, with R zero at first: then it is softmax attention.

    Scores are not scaled. In cross patterns they are of absolute source positions: what the source holds there is in v
    alone, and ``key`` is not used but by ``random_plus``. Decoding keeps the values, with their positions.

    Args:
        variant: which scores.
        max_length: keys up to which it is defined, and targets where scores are ``random``.

    Raises:
        ValueError: for an unknown variant or sizes below 1, and, when called, for a length above ``max_length``.
    """

    requires_right_padding = True
    claims = Claims(uses_key=False)

    def __init__(
        self, *, variant: Variant = "dense", max_length: Positive = 8192, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(**common)
        self.variant, self.max_length = variant, max_length
        self.reads_positions = variant != "dense"
        # Maps that the variant does not read are left out.
        if self.reads_positions and variant != "random_plus":
            self.q_proj = nn.Identity()  # type: ignore[assignment]
        if variant != "random_plus":
            self.k_proj = nn.Identity()  # type: ignore[assignment]
        self.make_convolutions()
        shape = (self.num_heads, max_length, max_length) if self.reads_positions else (self.head_dim, max_length)
        self.scores = nn.Parameter(torch.zeros(shape))
        if variant != "random_plus":
            nn.init.normal_(self.scores, std=1.0 if self.reads_positions else self.head_dim**-0.5)

    def synthetic(self, query: Tensor, targets: Targets, num_keys: int) -> Tensor:
        """Return scores without query-key products, [B or 1, H, N, num_keys]."""
        if self.variant == "dense":
            return query.relu() @ self.scores[:, :num_keys].to(query.dtype)
        if isinstance(targets, slice):
            rows = self.scores[None, :, targets]
        else:
            rows = self.scores[:, targets.clamp(max=self.max_length - 1)].transpose(0, 1)
        return rows.to(query.dtype)[..., :num_keys]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        self.check_length(key.shape[2], "keys")
        if self.reads_positions:
            self.check_length(query.shape[2], "targets")
        is_causal = self.pattern is Pattern.CS
        q, k, v = upcast(query), upcast(key), as_factor(value)

        def weigh(targets: slice, num_keys: int) -> Tensor:
            scores = self.synthetic(q[:, :, targets], targets, num_keys)
            if self.variant == "random_plus":
                scores = scores + q[:, :, targets] @ k[:, :, :num_keys].mT * self.scale
            mask = masked(targets, num_keys, padding.key, is_causal=is_causal, like=q)
            return masked_softmax(scores, mask)

        with torch.autocast(query.device.type, enabled=False):
            output = sums_by_targets(weigh, q, v, is_causal=is_causal, dropout=self.weight_dropout)
        return output.to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        n, m = query.shape[1], key.shape[1]
        scores = self.synthetic(query.unsqueeze(0), slice(0, n), m)[0]
        if self.variant == "random_plus":
            scores = scores + query @ key.mT * self.scale
        if self.pattern is Pattern.CS:
            scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool, device=scores.device).triu(1), -torch.inf)
        return scores.softmax(dim=-1) @ value

    def check_length(self, length: int, what: str) -> None:
        if length > self.max_length:
            raise UserError(
                f"synthesizer has scores for at most {self.max_length} positions, got {length} {what}; "
                "increase attention.max_length"
            )

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state; ``position`` [B, n] is -1 where a cached value is padding."""
        empty = like.new_empty(batch_size, self.num_heads, 0, self.head_dim)
        state = {"value": empty, "position": empty.new_zeros(batch_size, 0, dtype=torch.long)}
        state["length"] = empty.new_zeros(batch_size, dtype=torch.long)
        return {**state, "key": empty} if self.variant == "random_plus" else state

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        position = state["length"].unsqueeze(1) + torch.arange(query.shape[2], device=query.device)
        cached = position if padding.key is None else position.masked_fill(padding.key, -1)
        new = {
            "value": torch.cat([state["value"].to(value.dtype), value], dim=2),
            "position": torch.cat([state["position"], cached], dim=1),
            "length": state["length"] + lengths(query, padding.key),
        }
        if self.variant == "random_plus":
            new["key"] = torch.cat([state["key"].to(key.dtype), key], dim=2)
        return self.read(query, position, new, new["position"][:, None] > position.unsqueeze(2)), new

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return the values of the source, and its positions."""
        self.check_length(key.shape[2], "keys")
        position = torch.arange(key.shape[2], device=key.device).expand(len(key), -1)
        if padding.key is not None:
            position = position.masked_fill(padding.key, -1)
        state = {"value": value, "position": position, "length": position.new_zeros(len(key))}
        return {**state, "key": key} if self.variant == "random_plus" else state

    def decode_cross(self, query: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        position = state["length"].unsqueeze(1) + torch.arange(query.shape[2], device=query.device)
        new = {**state, "length": state["length"] + lengths(query, padding.query)}
        return self.read(query, position, new, None), new

    def read(self, query: Tensor, position: Tensor, state: DecodeState, later: Tensor | None) -> Tensor:
        """Attend from targets at ``position`` [B, T] to the cached values, except the ``later`` ones [B, T, n]."""
        cached = state["position"]
        longest = cached.shape[1]
        if max(longest, int(position.shape[1])) > self.max_length or self.reads_positions:
            self.check_length(int(state["length"].max()), "tokens")
        with torch.autocast(query.device.type, enabled=False):
            q, v = upcast(query), upcast(state["value"])
            scores = self.synthetic(q, position, min(longest, self.max_length))
            index = cached.clamp(min=0)[:, None, None].expand(-1, *scores.shape[1:3], -1)
            scores = scores.expand(len(index), -1, -1, -1).gather(-1, index)
            if self.variant == "random_plus":
                scores = scores + q @ upcast(state["key"]).mT * self.scale
            hidden = (cached < 0).unsqueeze(1)
            weights = masked_softmax(scores, (hidden if later is None else hidden | later).unsqueeze(1))
            return (weights @ v).to(query.dtype)
