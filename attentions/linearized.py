"""What kernel attentions share: phi(q) (phi(k)^T v) / phi(q) phi(k)^T 1, whole or block by block.

Shapes: B batch, H heads, N targets, M keys, E width of a head, r features. In the causal form values carry a column
of ones, so that one product gives numerator and denominator: F = E + 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attentions.kernels.blocks import tokens_at_once
from attentions.kernels.linear_sums import FeatureMap, Mapped, MeanOfQueries, SumOfKeys
from attentions.kernels.precision import wide
from cab import Attention, Pattern
from cab.attention import Padding, State
from cab.input_checks import check_decoding, check_tokens
from cab.padding import compact_rows, take_rows, without_padding

BLOCK = 64
"""Tokens of one block of the causal form."""


class Where(NamedTuple):
    """Where in their sequences the tokens stand.

    start: [B] real tokens before the first one, None for none.
    length: [B] the longer of a row's two real lengths, None where it is not known yet (causal patterns).
    """

    start: Tensor | None = None
    length: Tensor | None = None


class LinearizedAttention(Attention):
    """Attention with weights phi(q) . phi(k) / sum, in time linear in the length.

    A subclass gives the features; padded keys have none. Sums are formed in float32 at least, whatever the
    precision of the inputs. Rows with no visible key, and queries with no weight at all, give zero. There are
    no weights to drop, so ``dropout`` is not used (as released).
    """

    compacts_padding = True
    smallest_denominator = 1e-30

    feature_map: type[FeatureMap]

    def query_factors(self, query: Tensor, where: Where) -> Tensor | None:  # noqa: ARG002
        """What the features of queries [B, H, N, E] take from their positions: [B or 1, 1, N, ...] or None."""
        return None

    def key_factors(self, key: Tensor, where: Where) -> Tensor | None:  # noqa: ARG002
        """The same for keys [B, H, M, E]."""
        return None

    def query_features(self, query: Tensor, where: Where) -> Tensor:
        """phi(q), [B, H, N, E] to [B, H, N, r]."""
        return Mapped.apply(self.feature_map, query, self.query_factors(query, where))

    def key_features(self, key: Tensor, where: Where) -> Tensor:
        """phi(k), [B, H, M, E] to [B, H, M, r]."""
        return Mapped.apply(self.feature_map, key, self.key_factors(key, where))

    def causal_key_features(
        self, key: Tensor, padding: Tensor | None, scale: Tensor | None, where: Where
    ) -> tuple[Tensor, Tensor | None]:
        """phi(k) divided by exp of a running scale [B, H, M] that never falls, and that scale; None is no scale."""
        assert scale is None
        return hide(self.key_features(key, where), padding), None

    # --- all keys: NS, NC, CC ----------------------------------------------------------------------------

    def summarise(self, key: Tensor, value: Tensor, padding: Tensor | None, where: Where) -> State:
        """What queries read: ``sums`` [B, H, r, E], phi(k)^T v, and ``mass`` [B, H, r], phi(k)^T 1."""
        sums, mass = SumOfKeys.apply(self.feature_map, key, value, self.key_factors(key, where), padding)
        return {"sums": sums, "mass": mass}

    def read(self, query: Tensor, summary: State, where: Where) -> Tensor:
        """Attention of each query over the summarised keys."""
        factors, smallest = self.query_factors(query, where), self.smallest_denominator
        return MeanOfQueries.apply(self.feature_map, query, factors, summary["sums"], summary["mass"], smallest)

    def divide(self, sums: Tensor) -> Tensor:
        """[..., F] to [..., E]: numerators by denominators, zero where there is no weight."""
        return sums[..., :-1] / sums[..., -1:].clamp(min=self.smallest_denominator)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        query_padding_mask, key_padding_mask = padding
        dtype = query.dtype
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (wide(x) for x in (query, key, value))
            if self.pattern is Pattern.CS:
                return self.attend_causally(query, key, value, key_padding_mask, None)[0].to(dtype)
            where = self.locate(query, key, query_padding_mask, key_padding_mask)
            return self.read(query, self.summarise(key, value, key_padding_mask, where), where).to(dtype)

    def locate(
        self, query: Tensor, key: Tensor, query_padding_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Where:
        """The lengths of the rows, in the patterns where they are known."""
        if self.pattern.is_causal:
            return Where()
        lengths = [
            x.new_full((x.shape[0],), x.shape[2]) if mask is None else (~mask).sum(dim=1).to(x.dtype)
            for x, mask in ((query, query_padding_mask), (key, key_padding_mask))
        ]
        return Where(length=torch.maximum(*lengths))

    # --- keys up to the query: CS ------------------------------------------------------------------------

    def attend_causally(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        """Output [B, H, N, E] and the new state, from the state that the tokens before left."""
        size = tokens_at_once(query.shape[:2].numel(), query.device)
        spans = [x.split(size, dim=2) for x in (query, key, value)]
        masks = [None] * len(spans[0]) if padding is None else padding.split(size, dim=1)
        outputs = []
        for q, k, v, mask in zip(*spans, masks, strict=True):
            if torch.is_grad_enabled() and len(masks) > 1:  # features are formed anew in the backward pass
                output, state = checkpoint(
                    self.span, q, k, v, mask, state, use_reentrant=False, preserve_rng_state=False
                )
            else:
                output, state = self.span(q, k, v, mask, state)
            outputs.append(output)
        assert state is not None
        return torch.cat(outputs, dim=2), state

    def span(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        """The same for a number of tokens whose features are in memory at once."""
        rows, heads, num_tokens, width = query.shape
        state = state or {}
        where = Where(start=state.get("length"))
        before = state.get("scale")
        queries = self.query_features(query, where)
        keys, scale = self.causal_key_features(key, padding, before, where)
        sums = state.get("sums")
        if sums is None:
            sums = query.new_zeros(rows, heads, keys.shape[-1], width + 1)
        if scale is not None and before is None:
            before = scale[..., 0]
        output, sums = BlockCausal.apply(queries, keys, with_ones(value), sums, scale, before)
        count = torch.full((rows,), num_tokens, device=query.device) if padding is None else (~padding).sum(dim=1)
        new = {"sums": sums, "length": count if where.start is None else where.start + count}
        if scale is not None:
            new["scale"] = scale[..., -1]
        return self.divide(output), new

    # --- decoding ----------------------------------------------------------------------------------------

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """Constant in size: running sums (CS), or the sums over the source, formed once (CC); tokens read."""
        check_decoding(self.pattern, batch_size, key, value, key_padding_mask, self.embed_dim)
        like = self.k_proj.weight.new_zeros(0, device=device, dtype=dtype)
        if key is None or value is None:
            empty = wide(like.new_zeros(batch_size, self.num_heads, 1, self.head_dim))
            hidden = torch.ones(batch_size, 1, dtype=torch.bool, device=like.device)
            return self.attend_causally(empty, empty, empty, hidden, None)[1]
        source, mask, order = compact_rows(without_padding(key, key_padding_mask), key_padding_mask)
        values = without_padding(value, key_padding_mask)
        values = values if order is None else take_rows(values, order)
        with torch.autocast(key.device.type, enabled=False):
            keys, values = (wide(self.split_heads(x)) for x in (self.k_proj(source), self.v_proj(values)))
            summary = self.summarise(keys, values, mask, Where())
        return {**summary, "length": torch.zeros(batch_size, dtype=torch.long, device=key.device)}

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        check_tokens(query, query_padding_mask, self.embed_dim)
        tokens, mask, order = compact_rows(without_padding(query, query_padding_mask), query_padding_mask)
        heads = self.split_heads(self.q_proj(tokens))
        with torch.autocast(query.device.type, enabled=False):
            if self.pattern is Pattern.CS:
                key, value = (wide(self.split_heads(project(tokens))) for project in (self.k_proj, self.v_proj))
                output, state = self.attend_causally(wide(heads), key, value, mask, state)
            else:
                output = self.read(wide(heads), state, Where(start=state["length"]))
                count = tokens.shape[1] if mask is None else (~mask).sum(dim=1)
                state = {**state, "length": state["length"] + count}
        output = without_padding(self.out_proj(self.merge_heads(output.to(heads.dtype))), mask)
        return (output if order is None else take_rows(output, order.argsort(dim=1))), state


class BlockCausal(torch.autograd.Function):
    """Causal sums, block by block: output_i = sum over j <= i of exp(s_j - s_i) (q_i . k_j) v_j + those before.

    Within a block a [C, C] product; between blocks a running [r, F] sum. No state is kept for a token, and the
    backward pass keeps one for a block. ``scale`` s [B, H, N] never falls, so that no factor exceeds one; it
    only shifts the numbers' range and gets no gradient.

    Args of ``apply``: queries and keys [B, H, N, r], values [B, H, N, F], sums [B, H, r, F] of the tokens
    before, scale [B, H, N] or None, and the scale of those sums [B, H]. Returns output [B, H, N, F] and sums.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        sums: Tensor,
        scale: Tensor | None,
        before: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        output = torch.empty_like(values)
        states = []
        first = before
        for start in range(0, queries.shape[2], BLOCK):
            block = slice(start, start + BLOCK)
            q, k, v = queries[:, :, block], keys[:, :, block], values[:, :, block]
            within, past, rest, carried = _factors(scale, before, block)
            states.append(sums)
            weights = _lower(q @ k.transpose(-2, -1), within)
            output[:, :, block] = weights @ v + _times(q @ sums, past)
            sums = _times(sums, carried) + _times(k, rest).transpose(-2, -1) @ v
            before = None if scale is None else scale[:, :, block][..., -1]
        ctx.save_for_backward(queries, keys, values, scale, first, *states)
        return output, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        output_grad, running = gradients
        queries, keys, values, scale, first, *states = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (queries, keys, values)]
        starts = range(0, queries.shape[2], BLOCK)
        for start, sums in zip(reversed(starts), reversed(states), strict=True):
            block = slice(start, start + BLOCK)
            q, k, v, g = (x[:, :, block] for x in (queries, keys, values, output_grad))
            before = first if scale is None or start == 0 else scale[..., start - 1]
            within, past, rest, carried = _factors(scale, before, block)
            weights = _lower(q @ k.transpose(-2, -1), within)
            weights_grad = _lower(g @ v.transpose(-2, -1), within)
            grads[0][:, :, block] = weights_grad @ k + _times(g @ sums.transpose(-2, -1), past)
            grads[1][:, :, block] = weights_grad.transpose(-2, -1) @ q + _times(v @ running.transpose(-2, -1), rest)
            grads[2][:, :, block] = weights.transpose(-2, -1) @ g + _times(k @ running, rest)
            running = _times(running, carried) + _times(q, past).transpose(-2, -1) @ g
        return *grads, running, None, None


def _factors(scale: Tensor | None, before: Tensor | None, block: slice) -> tuple[Tensor | None, ...]:
    """exp(s_j - s_i) within the block, and what past sums, keys and the running sum are multiplied with."""
    if scale is None or before is None:
        return None, None, None, None
    s = scale[:, :, block]
    end = s[..., -1:]
    within = (s.unsqueeze(-2) - s.unsqueeze(-1)).clamp(max=0).exp()
    past = (before.unsqueeze(-1) - s).clamp(max=0).exp().unsqueeze(-1)
    rest = (s - end).exp().unsqueeze(-1)
    carried = (before.unsqueeze(-1) - end).clamp(max=0).exp().unsqueeze(-1)
    return within, past, rest, carried


def _lower(x: Tensor, factor: Tensor | None) -> Tensor:
    return _times(x.tril_(), factor)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def hide(features: Tensor, padding: Tensor | None) -> Tensor:
    return features if padding is None else features.masked_fill(padding[:, None, :, None], 0.0)


def with_ones(value: Tensor) -> Tensor:
    """[..., E] to [..., E + 1]."""
    return torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
