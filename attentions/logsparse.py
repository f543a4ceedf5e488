"""LogSparse attention (Li et al. 2019): attention to tokens at distances of powers of two.

Shapes: B batch, N tokens, D width, w kernel_size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.sparse import SparseAttention
from attentions.kernels.chunks import dropout_factor, dropout_seed, groups_at_once
from attentions.kernels.numerics import accumulation_dtype, mask_value, softmax_gradient
from attentions.kernels.operator import differentiable_operator
from cab import DecodeState, PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths, take_rows
from cab.registry.options import Positive


@register_attention("logsparse", patterns="NS CS", complexity="n log n", paper="Li et al. 2019")
class LogSparseAttention(SparseAttention):
    """Compute softmax attention over the token itself and the tokens 1, 2, 4, 8, ... before it (section 4.2).

    Pattern NS, which the paper does not define, also attends to later tokens. With ``local``, the keys are the last
    ``local`` tokens and those 1, 2, 4, ... before the first of them. With ``restart``, the pattern has this length and
    repeats at every multiple of it, which makes time quadratic for long sequences. Queries and keys are convolutions of
    the last ``kernel_size`` inputs, in NS of those around the token (section 4.1). A network of log2 N + 1 layers
    reaches all earlier tokens.

    Decoding stores all keys and values, since each is at such a distance from some later token.

    Args:
        local: number of consecutive tokens, including the token itself.
        restart: length of the pattern, in tokens; 0 for no restart.
        kernel_size: inputs w per query and key; values above 1 add 2 (w - 1) D^2 parameters.
    """

    claims = Claims(softmax_limit=softmax_if(local=NUM_TOKENS))

    def __init__(
        self, *, local: Positive = 1, restart: int = 0, kernel_size: Positive = 1, **common: Unpack[CommonArguments]
    ) -> None:
        if restart < 0 or 0 < restart < local:
            raise UserError(f"restart must be 0 (disabled) or at least local ({local}), got {restart}")
        self.local, self.restart, self.kernel_size = local, restart, kernel_size
        super().__init__(**common)

    def make_projections(self) -> None:
        super().make_projections()
        if self.kernel_size > 1:
            self.q_proj, self.k_proj = (
                NeighborProjection(self.embed_dim, self.kernel_size, self.pattern is Pattern.CS) for _ in range(2)
            )

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        back = query - key
        if self.pattern is Pattern.NS:
            back = back.abs()
        within = back % self.restart if self.restart else back
        power = within - self.local + 1
        seen = (within < self.local) | (power > 0) & (power & (power - 1) == 0)
        return seen & (back >= 0)

    def distances(self, length: int) -> list[int]:
        """Return the visible distances in a sequence of that many tokens, without and with sign."""
        ends = [self.local - 1 + 2**p for p in range(length.bit_length())]
        once = {*range(self.local), *(d for d in ends if not self.restart or d < self.restart)}
        starts = range(0, length, self.restart) if self.restart else [0]
        back = sorted(d for d in {start + d for start in starts for d in once} if d < length)
        return [-d for d in back] + (back[1:] if self.pattern is Pattern.NS else [])

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        offsets = self.distances(query.shape[2])
        return relative_offset_attention(query, key, value, offsets, hidden=hidden, dropout=self.weight_dropout)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        inputs = like.new_zeros(batch_size, self.kernel_size - 1, self.embed_dim)
        return super().init_decode_state(batch_size, like) | {"inputs": inputs}

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        past = self.kernel_size - 1
        x = torch.cat([state["inputs"].to(tokens.dtype), tokens], dim=1)
        query, key = (self.split_heads(projection(x)[:, past:]) for projection in (self.q_proj, self.k_proj))
        heads, new = self.decode(query, key, self.split_heads(self.v_proj(tokens)), state, PaddingMasks(mask, mask))
        last = lengths(tokens, mask)[:, None] + torch.arange(past, device=x.device)
        return self.out_proj(self.merge_heads(heads)), new | {"inputs": take_rows(x, last)}


class NeighborProjection(nn.Linear):
    """Apply a convolution: a linear map of the last ``size`` tokens, or of the tokens around the token."""

    def __init__(self, embed_dim: int, size: int, is_causal: bool) -> None:
        super().__init__(size * embed_dim, embed_dim)
        self.size, self.after = size, 0 if is_causal else size // 2
        nn.init.xavier_uniform_(self.weight, gain=2**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, N, D] to [B, N, D], with zeros outside of the sequence."""
        filled = F.pad(x, (0, 0, self.size - 1 - self.after, self.after))
        return super().forward(torch.cat([filled[:, i : i + x.shape[1]] for i in range(self.size)], dim=-1))


def relative_offset_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Sequence[int],
    *,
    hidden: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the softmax over p of q_i k_(i + p) / sqrt(E), times v_(i + p), [B, H, N, E].

    Distances that lead outside the sequence or to ``hidden`` keys [B, N] are left out. ``offsets`` must contain 0, so
    that every token sees a key.
    """
    inside = [p for p in offsets if abs(p) < query.shape[2]]
    return _attend(query, key.to(query.dtype), value.to(query.dtype), hidden, inside, dropout, dropout_seed(dropout))


def _chunks(x: Tensor) -> Iterator[tuple[int, int, slice]]:
    """Yield the number, sequence and heads of each chunk."""
    size, number = groups_at_once(x.shape[2], x.device), 0
    for row in range(len(x)):
        for begin in range(0, x.shape[1], size):
            yield number, row, slice(begin, begin + size)
            number += 1


def _places(length: int, offset: int) -> tuple[slice, slice]:
    """Return the queries that have a key at this distance, and these keys."""
    return slice(max(0, -offset), length - max(0, offset)), slice(max(0, offset), length - max(0, -offset))


def _weights(query: Tensor, key: Tensor, hidden: Tensor | None, offsets: list[int]) -> Tensor:
    """Return the weights [h, N, P] in float32 or wider; ``hidden`` is [N]."""
    num_heads, length, width = query.shape
    dtype = accumulation_dtype(query.dtype)
    logits = query.new_full((num_heads, length, len(offsets)), mask_value(dtype), dtype=dtype)
    for column, offset in enumerate(offsets):
        i, j = _places(length, offset)
        logits[:, i, column] = (query[:, i] * key[:, j]).sum(dim=-1, dtype=dtype) * width**-0.5
        if hidden is not None:
            logits[:, i, column].masked_fill_(hidden[j], mask_value(dtype))
    return logits.softmax(dim=-1)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Tensor | None,
    offsets: list[int],
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    output, length = torch.empty_like(query), query.shape[2]
    with torch.autocast(query.device.type, enabled=False):
        for number, row, heads in _chunks(query):
            weights = _weights(query[row, heads], key[row, heads], None if hidden is None else hidden[row], offsets)
            factor = dropout_factor(weights, dropout, seed, number)
            weights = weights if factor is None else weights * factor
            mean = torch.zeros_like(query[row, heads], dtype=weights.dtype)
            for column, offset in enumerate(offsets):
                i, j = _places(length, offset)
                mean[:, i].addcmul_(weights[:, i, column, None], value[row, heads, j])
            output[row, heads] = mean.to(output.dtype)
    return output


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Tensor | None,
    offsets: list[int],
    dropout: float,
    seed: Tensor | None,
) -> list[Tensor]:
    length, scale = query.shape[2], query.shape[3] ** -0.5
    gradients = [torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)]
    for number, row, heads in _chunks(query):
        q, k, v, g = (x[row, heads] for x in (query, key, value, grad))
        weights = _weights(q, k, None if hidden is None else hidden[row], offsets)
        d_weights = torch.zeros_like(weights)
        sums = [torch.zeros_like(q, dtype=weights.dtype) for _ in range(3)]
        factor = dropout_factor(weights, dropout, seed, number)
        used = weights if factor is None else weights * factor
        for column, offset in enumerate(offsets):
            i, j = _places(length, offset)
            d_weights[:, i, column] = (g[:, i] * v[:, j]).sum(dim=-1, dtype=weights.dtype)
            sums[2][:, j].addcmul_(used[:, i, column, None], g[:, i])
        d_weights = d_weights if factor is None else d_weights * factor
        d_logits = softmax_gradient(weights, d_weights).mul_(scale)
        for column, offset in enumerate(offsets):
            i, j = _places(length, offset)
            slope = d_logits[:, i, column, None]
            sums[0][:, i].addcmul_(slope, k[:, j])
            sums[1][:, j].addcmul_(slope, q[:, i])
        for gradient, total in zip(gradients, sums, strict=True):
            gradient[row, heads] = total.to(gradient.dtype)
    return gradients


_attend = differentiable_operator("relative_offset_attention", _forward, _backward, gradients=("query", "key", "value"))
