"""Base class of attentions with one weight per pair of target and key, computed for a few targets at a time.

Shapes: B batch, H heads, N targets, M keys, E width of a head.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.kernels.chunks import masked, sums_by_targets
from attentions.kernels.numerics import as_factor, upcast
from attentions.kernels.token_cache import append_tokens, empty_cache, masked_tokens
from cab import Attention, Pattern
from cab.attention import CommonArguments, Decoded, DecodeState, PaddingMasks
from cab.padding import lengths


class PairwiseAttention(Attention):
    """Base class of weighted sums of values, with weights that are a function of query and key (``weigh``).

    Weights are computed in float32 or wider and recomputed in the backward pass, so only query, key and value are
    stored. Decoding caches every key and value.
    """

    def __init__(self, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.requires_right_padding = self.pattern is Pattern.CS  # tokens are counted

    def weigh(self, query: Tensor, key: Tensor, masked: Tensor | None, count: Tensor) -> Tensor:
        """Return weights [B, H, n, m] of keys [B, H, m, E] for targets [B, H, n, E], zero where ``masked`` (bool).

        ``count`` [B or 1, 1, n or 1, 1] is how many keys each target sees.
        """
        raise NotImplementedError

    def finish(self, sums: Tensor) -> Tensor:
        """Compute the output from weighted sums [B, H, N, E]."""
        return sums

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        is_causal = self.pattern is Pattern.CS
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = upcast(query), upcast(key), as_factor(value)
            if is_causal:
                count = torch.arange(1, q.shape[2] + 1, device=q.device)[None, None, :, None]
            else:
                count = lengths(k, padding.key)[:, None, None, None]

            def weights_of(targets: slice, num_keys: int) -> Tensor:
                mask = masked(targets, num_keys, padding.key, is_causal=is_causal, like=q)
                seen = count[:, :, targets] if is_causal else count
                return self.weigh(q[:, :, targets], k[:, :, :num_keys], mask, seen)

            sums = sums_by_targets(weights_of, q, v, is_causal=is_causal, dropout=self.weight_dropout)
            return self.finish(sums).to(query.dtype)

    # --- decoding ---------------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state."""
        shape = (self.num_heads, self.head_dim)
        state = empty_cache(batch_size, like, key=shape, value=shape)
        return {**state, "length": like.new_zeros(batch_size, dtype=torch.long)}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        position = torch.arange(1, query.shape[2] + 1, device=query.device)
        count = (state["length"].unsqueeze(1) + position)[:, None, :, None]
        new = append_tokens(state, padding.key, key=key, value=value)
        new["length"] = state["length"] + lengths(key, padding.key)
        return self.read(query, new, masked_tokens(new, query.shape[2]), count), new

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return keys and values of the source, and their number."""
        state = {"key": key, "value": value, "length": lengths(key, padding.key)}
        return state if padding.key is None else {**state, "hidden": padding.key}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        hidden = state.get("hidden")
        mask = None if hidden is None else hidden[:, None, None]
        return self.read(query, state, mask, state["length"][:, None, None, None]), state

    def read(self, query: Tensor, state: DecodeState, masked: Tensor | None, count: Tensor) -> Tensor:
        """Compute the outputs [B, H, T, E] of a chunk of targets."""
        with torch.autocast(query.device.type, enabled=False):
            weights = self.weigh(upcast(query), upcast(state["key"]), masked, count)
            weights = torch.nn.functional.dropout(weights, self.weight_dropout)
            return self.finish(weights @ upcast(state["value"])).to(query.dtype)
