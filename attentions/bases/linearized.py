"""Base class of kernel attentions: phi(q) (phi(k)^T v) / phi(q) phi(k)^T 1, whole or block by block.

Shapes: B batch, H heads, N targets, M keys, E width of a head, r features. In the causal form values carry a column
of ones, so that one product gives numerator and denominator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attentions.kernels.chunks import Extras, Heads, over_chunks
from attentions.kernels.linear_attention import FeatureMap, mean_of_queries, safe_denominator, sum_of_keys
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import recurrence
from cab import Attention, Pattern
from cab.attention import Decoded, DecodeState, PaddingMasks
from cab.padding import lengths


class PositionInfo(NamedTuple):
    """Positions of the tokens in their sequences.

    start: [B] real tokens before the first one, None for none.
    length: [B] the longer of a row's two real lengths, None where it is not known yet (causal patterns).
    """

    start: Tensor | None = None
    length: Tensor | None = None


class LinearizedAttention(Attention):
    """Base class of attentions with weights phi(q) . phi(k) / sum, in time linear in the length.

    A subclass gives the features; padded keys have none. Sums are formed in float32 at least, whatever the
    precision of the inputs. Rows with no visible key, and queries whose weights are all zero, give zero. There are
    no weights to drop, so ``dropout`` is not used (as released). The state of decoding is of constant size: running
    sums (CS), or the sums over the source, formed once (CC), and how many tokens were read.
    """

    requires_right_padding = True
    has_constant_size_state = True
    smallest_denominator = 1e-30

    feature_map: FeatureMap

    def factors(self, _x: Tensor, _where: PositionInfo) -> Tensor | None:
        """Return the position factors of the features of tokens [B, H, N, E]: [B or 1, 1, N, ...] or None."""
        return None

    def prepare(self, x: Tensor) -> Tensor:
        """Return what the feature map is applied to, from queries or keys [B, H, N, E]."""
        return x

    def features(self, x: Tensor, where: PositionInfo) -> Tensor:
        """Compute phi(x), [B, H, N, E] to [B, H, N, r]."""
        # Contiguous, since the compiler mistakes the strides of an elementwise gradient of two layouts.
        return self.feature_map.forward(self.prepare(x).contiguous(), self.factors(x, where))

    def write_state(
        self, key: Tensor, padding: Tensor | None, where: PositionInfo, _state: DecodeState, _extras: Extras
    ) -> tuple[Tensor, Tensor | None, DecodeState]:
        """Return phi(k), the log decays [B, H, M] of the sums (or None), and additional state."""
        return mask_fill(self.features(key, where), padding), None, {}

    def normalize(self, weights: Tensor) -> Tensor:
        """Divide the weights of visible pairs [H, n, m] by their sum; for ``reference``."""
        if self.pattern is Pattern.CS:
            weights = weights.tril()
        return weights / safe_denominator(weights.sum(dim=-1, keepdim=True), self.smallest_denominator)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **extras: Tensor) -> Tensor:
        if self.pattern is Pattern.CS:
            return self.decode(query, key, value, {}, padding, **extras)[0]
        where = PositionInfo()
        if not self.pattern.is_causal:
            where = PositionInfo(length=torch.maximum(lengths(query, padding.query), lengths(key, padding.key)))
        with torch.autocast(query.device.type, enabled=False):
            return self.read(
                upcast(query), self.reduce_source(upcast(key), upcast(value), padding.key, where), where
            ).to(query.dtype)

    # --- all keys: NS, NC, CC ----------------------------------------------------------------------------

    def reduce_source(self, key: Tensor, value: Tensor, padding: Tensor | None, where: PositionInfo) -> DecodeState:
        """Sum over the source: ``sums`` [B, H, r, E], phi(k)^T v, and ``mass`` [B, H, r], phi(k)^T 1."""
        inputs = self.prepare(key), value, self.factors(key, where), padding
        sums, mass = sum_of_keys(self.feature_map, *inputs)
        return {"sums": sums, "mass": mass}

    def read(self, query: Tensor, summary: DecodeState, where: PositionInfo) -> Tensor:
        """Attend from each query to the summarized keys."""
        inputs = self.prepare(query), self.factors(query, where), summary["sums"], summary["mass"]
        return mean_of_queries(self.feature_map, *inputs, self.smallest_denominator)

    # --- keys up to the query: CS ------------------------------------------------------------------------

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **extras: Tensor
    ) -> Decoded:
        """Return outputs [B, H, N, E] and the new state; an empty ``state`` is that before the first token."""
        with torch.autocast(query.device.type, enabled=False):
            extras = {name: upcast(x) for name, x in extras.items()}
            heads = [upcast(x) for x in (query, key, value)]
            output, state = over_chunks(self.decode_chunk, heads, padding.key, state, extras)
            return output.to(query.dtype), state

    def decode_chunk(self, heads: Heads, padding: Tensor | None, state: DecodeState, extras: Extras) -> Decoded:
        """Decode a chunk of tokens, whose features are in memory at once."""
        query, key, value = heads
        where = PositionInfo(start=state.get("length"))
        queries = self.features(query, where)
        keys, log_decay, new = self.write_state(key, padding, where, state, extras)
        values = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        sums = state.get("sums")
        if sums is None:
            sums = query.new_zeros(*query.shape[:2], keys.shape[-1], values.shape[-1])
        output, sums = recurrence(queries, keys, values, log_decay, sums)
        count = lengths(query, padding)
        length = count if where.start is None else where.start + count
        output = output[..., :-1] / safe_denominator(output[..., -1:], self.smallest_denominator)
        return output, {"sums": sums, "length": length, **new}

    # --- decoding ----------------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Decode one token, which may be padding."""
        widths = (linear.out_features // self.num_heads for linear in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (like.new_zeros(batch_size, self.num_heads, 1, width) for width in widths)
        hidden = torch.ones(batch_size, 1, dtype=torch.bool, device=like.device)
        extras = self.key_side_inputs(self.k_proj.weight.new_zeros(batch_size, 1, self.embed_dim))
        return self.decode(query, key, value, {}, PaddingMasks(hidden, hidden), **extras)[1]

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        with torch.autocast(key.device.type, enabled=False):
            summary = self.reduce_source(upcast(key), upcast(value), padding.key, PositionInfo())
        return {**summary, "length": torch.zeros(len(key), dtype=torch.long, device=key.device)}

    def decode_cross(self, query: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            output = self.read(upcast(query), state, PositionInfo(start=state["length"])).to(query.dtype)
        return output, {**state, "length": state["length"] + lengths(query, padding.query)}


def mask_fill(x: Tensor, padding: Tensor | None, fill: float = 0.0) -> Tensor:
    """Return ``x`` [B, H, M, r] with ``fill`` at the padding [B, M]."""
    return x if padding is None else x.masked_fill(padding[:, None, :, None], fill)
