"""Causal ABC: the memory of target t holds cumulative softmax means of the keys and values up to t  (CAB, Eq. 20).

A sequence is cut into spans, and a span into blocks. One memory is formed before each block. Within a block a token
has weight exp(logit), relative to the memory at the first token of the block, and a target reads the tokens of its
block through their products with its query, so the memory of a single target is never formed. The activations of a
span are recomputed in the backward pass: only query, key, value and the memory before each span are stored. The
gradient is hand-written (results/efficiency/kernel_gains.csv lists what that gains).

Shapes: B batch, H heads, N tokens, E width of a head, r slots; G rows times heads, J blocks of a span, c tokens of
a block. A leading 2 stands for keys and values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels import fla_kernels
from attentions.kernels.chunks import groups_at_once
from attentions.kernels.numerics import mask_value, softmax_gradient
from attentions.kernels.operator import differentiable_operator
from attentions.kernels.recurrence import block_states
from cab.flash_linear_attention import fla_backend
from cab.kernels import Operation

BLOCK = 32
"""Tokens per block, whose products with each other are formed."""

SPAN, DEVICE_SPAN = 256, 1024
"""Tokens per span on a CPU and on other devices, where launches cost more: multiples of BLOCK."""

LARGEST = 600.0
"""Largest logarithm of a weight relative to the mass before the block: exp(600) is a finite float64."""


def _by_spans(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    compress: Tensor,
    padding: Tensor | None,
    mass: Tensor,
    mean: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return softmax(q_t K~_t^T / sqrt(E)) V~_t, and the memory after the last token.

    Args:
        query, key, value: [B, H, N, E].
        compress: C_k and C_v, [2, E, r].
        padding: bool [B, N], True = padding.
        mass, mean: the memory before the first token: logarithms of its total weights, float64 [2, B, H, r], and its
            means [2, B, H, r, E], in float32 or wider.

    Returns:
        output [B, H, N, E], mass and mean.
    """
    key, value = key.to(query.dtype), value.to(query.dtype)
    output, masses, means = _causal_abc(query, key, value, compress.to(mean.dtype), padding, mass, mean)
    return output, masses[-1], means[-1]


causal_abc = Operation("causal_abc", _by_spans, fla_backend(fla_kernels.causal_abc, fla_kernels.refuses_slots))


class _Span(NamedTuple):
    """Activations of one span. Tokens after the end of the sequence are padding."""

    query: Tensor
    """[G, J, c, E]."""
    tokens: Tensor
    """Keys and values, [2, G, J, c, E]."""
    empty: Tensor | None
    """Which tokens are padding, [G or 1, J, c, 1]; None if there are none."""
    share: Tensor
    """Weight of a token within its block's mean, [2, G, J, c, r]."""
    block_mean: Tensor
    """[2, G, J, r, E]."""
    old: Tensor
    """Share of the memory before a block in the memory after it, [2, G, J, r]."""
    new: Tensor
    """Share of a block in the memory after it, [2, G, J, r]."""
    masses: Tensor
    """Masses of the memory before each block and after the last one, [2, G, J + 1, r]."""
    means: Tensor
    """Means of the same memories, [2, G, J + 1, r, E]."""
    before: Tensor
    """Weight of the memory before a block, [2, G, J, 1, r]."""
    weight: Tensor
    """Weight of each token of a block, [2, G, J, c, r]."""
    total: Tensor
    """Weight of the memory before a block and of its tokens up to each one, [2, G, J, c, r]."""
    products: Tensor
    """q_t k_i for i <= t, [G, J, c, c]."""
    past: Tensor
    """Products of q_t with the means before its block, [G, J, c, r]."""
    logits: Tensor
    """Products of q_t with the means of its own memory, [G, J, c, r], float64."""
    weights: Tensor
    """softmax(logits / sqrt(E)) / total, the factor of the weights of a slot, [G, J, c, r], float64."""
    mixed: Tensor
    """Weight of value i in output t, [G, J, c, c]."""


class _Piece(NamedTuple):
    """A span of tokens in a few sequences of the batch."""

    number: int
    """Of the span."""
    rows: slice
    tokens: slice

    @property
    def length(self) -> int:
        return self.tokens.stop - self.tokens.start

    def of(self, x: Tensor) -> Tensor:
        """Return this piece of ``x`` [B, H, N, E]."""
        return x[self.rows, :, self.tokens]

    def memory(self, x: Tensor, after: bool = False) -> Tensor:
        """Return the memory before or after the span, [2, G, ...], from ``x`` [spans + 1, 2, B, H, ...]."""
        return x[self.number + after, :, self.rows].flatten(1, 2)


def _pieces(query: Tensor) -> list[_Piece]:
    num_rows, num_heads, length, _ = query.shape
    span = _span_size(query)
    size = groups_at_once(num_heads * min(span, length), query.device)
    rows = [slice(begin, min(begin + size, num_rows)) for begin in range(0, num_rows, size)]
    spans = [slice(begin, min(begin + span, length)) for begin in range(0, length, span)]
    return [_Piece(number, some, tokens) for number, tokens in enumerate(spans) for some in rows]


def _span_size(x: Tensor) -> int:
    return SPAN if x.device.type == "cpu" else DEVICE_SPAN


def _in_blocks(piece: _Piece, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
    """Return this piece of each tensor [B, H, N, E] in blocks padded with zeros, [tensors, G, J, c, E]."""
    num_rows, num_heads, length, width = piece.of(tensors[0]).shape
    block = min(BLOCK, length)
    shape = (len(tensors), num_rows, num_heads, length + -length % block, width)
    blocks = tensors[0].new_zeros(shape, dtype=dtype)
    for into, x in zip(blocks, tensors, strict=True):
        into[:, :, :length] = piece.of(x)
    return blocks.flatten(1, 2).unflatten(2, (-1, block))


def _from_blocks(piece: _Piece, into: Tensor, blocks: Tensor) -> None:
    """Copy ``blocks`` into this piece of one tensor, the inverse of :func:`_in_blocks`."""
    target = piece.of(into)
    target.copy_(blocks.flatten(1, 2)[:, : piece.length].view(target.shape))


def _empty_tokens(padding: Tensor | None, piece: _Piece, blocks: Tensor) -> Tensor | None:
    """Return which tokens of ``blocks`` are padding or after the end, [G or 1, J, c, 1]; None if no token is."""
    num_groups, num_blocks, block = blocks.shape[1:4]
    fill = num_blocks * block - piece.length
    if padding is not None:
        empty = padding[piece.rows, piece.tokens]
        empty = empty.repeat_interleave(num_groups // len(empty), dim=0)
    elif fill:
        empty = torch.zeros(1, piece.length, dtype=torch.bool, device=blocks.device)
    else:
        return None
    return F.pad(empty, (0, fill), value=True).view(len(empty), num_blocks, block, 1)


def _form(
    piece: _Piece,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    compress: Tensor,
    padding: Tensor | None,
    span_masses: Tensor,
    span_means: Tensor,
) -> _Span:
    """Compute the activations of one piece from the memory before it, which is among those before all spans."""
    mass, mean = piece.memory(span_masses), piece.memory(span_means)
    blocks = _in_blocks(piece, mean.dtype, query, key, value)
    empty = _empty_tokens(padding, piece, blocks)
    if empty is not None:
        blocks.masked_fill_(empty, 0.0)
    q, tokens = blocks[0], blocks[1:]
    scores = torch.bmm(tokens.flatten(1, 3), compress).view(*tokens.shape[:-1], -1)
    if empty is not None:
        scores.masked_fill_(empty, mask_value(scores.dtype))
    share = scores.softmax(dim=-2)
    block_mean = share.mT @ tokens

    log_weight = scores.double()
    block_mass = log_weight.logsumexp(dim=-2)
    masses = torch.cat([mass.unsqueeze(2), block_mass], dim=2).logcumsumexp(dim=2)
    old = (masses[:, :, :-1] - masses[:, :, 1:]).exp_()
    new = (block_mass - masses[:, :, 1:]).exp_()
    kept, added = (x.to(mean.dtype).unsqueeze(-1) for x in (old, new))
    means = block_states(mean, added * block_mean, kept)

    log_before = masses[:, :, :-1].unsqueeze(-2)
    unit = torch.maximum(log_before, log_weight[..., :1, :])
    before = (log_before - unit).exp_()
    weight = log_weight.sub_(unit).clamp_(max=LARGEST).exp_()
    total = weight.cumsum(dim=-2).add_(before)

    products = (q @ tokens[0].mT).tril_()
    past = q @ means[0, :, :-1].mT
    logits = torch.addcmul(products.double() @ weight[0], before[0], past.double()).div_(total[0])
    weights = (logits * q.shape[-1] ** -0.5).softmax(dim=-1).div_(total[1])
    mixed = (weights @ weight[1].mT).tril_().to(mean.dtype)
    return _Span(
        q, tokens, empty, share, block_mean, old, new, masses, means, before, weight, total,
        products, past, logits, weights, mixed,
    )  # fmt: skip


def _output(span: _Span) -> Tensor:
    """Return the outputs of a span, [G, J, c, E]."""
    read = (span.weights * span.before[1]).to(span.mixed.dtype)
    return (read @ span.means[1, :, :-1]).add_(span.mixed @ span.tokens[1])


def _attend(
    query: Tensor, key: Tensor, value: Tensor, compress: Tensor, padding: Tensor | None, mass: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs [B, H, N, E], and the memory before each span and after the last, [spans + 1, 2, B, H, ...]."""
    output, pieces = torch.empty_like(query), _pieces(query)
    count = pieces[-1].number + 2
    masses, means = mass.new_empty(count, *mass.shape), mean.new_empty(count, *mean.shape)
    masses[0], means[0] = mass, mean
    with torch.autocast(query.device.type, enabled=False):
        for piece in pieces:
            span = _form(piece, query, key, value, compress, padding, masses, means)
            _from_blocks(piece, output, _output(span))
            for memory, blocks in ((masses, span.masses), (means, span.means)):
                target = memory[piece.number + 1, :, piece.rows]
                target.copy_(blocks[:, :, -1].view(target.shape))
    return output, masses, means


def _attend_backward(
    grad: Tensor,
    d_masses: Tensor,
    d_means: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    compress: Tensor,
    padding: Tensor | None,
    _mass: Tensor,
    _mean: Tensor,
    masses: Tensor,
    means: Tensor,
) -> list[Tensor]:
    """Return the gradients of query, key, value, compress, and the memory before the first token."""
    d_inputs = [torch.empty_like(x) for x in (query, key, value)]
    d_compress, d_masses, d_means = torch.zeros_like(compress), d_masses.clone(), d_means.clone()
    with torch.autocast(query.device.type, enabled=False):
        for piece in reversed(_pieces(query)):
            span = _form(piece, query, key, value, compress, padding, masses, means)
            d_after = (piece.memory(x, after=True) for x in (d_masses, d_means))
            g = _in_blocks(piece, means.dtype, grad)[0]
            d_blocks, d_logits, d_mass, d_mean = _span_backward(span, g, *d_after)
            flat = d_logits.to(means.dtype).flatten(1, 3)
            d_blocks[1:].flatten(1, 3).baddbmm_(flat, compress.mT)
            d_compress.baddbmm_(span.tokens.flatten(1, 3).mT, flat)
            if span.empty is not None:
                d_blocks.masked_fill_(span.empty, 0.0)
            for into, d_block in zip(d_inputs, d_blocks, strict=True):
                _from_blocks(piece, into, d_block)
            for memory, d_before in ((d_masses, d_mass), (d_means, d_mean)):
                target = memory[piece.number, :, piece.rows]
                target += d_before.view(target.shape)
    return [*d_inputs, d_compress, d_masses[0].clone(), d_means[0].clone()]


def _span_backward(span: _Span, grad: Tensor, d_mass: Tensor, d_mean: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of [query; tokens] except through their logits, of the logits, and of the memory."""
    dtype, (key, value), y = grad.dtype, span.tokens, span.weights
    d_blocks = span.query.new_empty(3, *span.query.shape)
    d_means = torch.empty_like(span.block_mean)
    # output = (y before_v) means_v + tril(y weight_v^T) value
    d_read = (grad @ span.means[1, :, :-1].mT).double()
    d_mixed = (grad @ value.mT).tril_().double()
    d_means[1] = (y * span.before[1]).to(dtype).mT @ grad
    d_blocks[2] = span.mixed.mT @ grad
    d_y = torch.addcmul(d_mixed @ span.weight[1], d_read, span.before[1]).div_(span.total[1])
    # y = softmax(logits / sqrt(E)) / total_v
    softmax = y * span.total[1]
    d_logits = softmax_gradient(softmax, d_y) * key.shape[-1] ** -0.5
    # logits = (before_k past + tril(query key^T) weight_k) / total_k
    d_sum = d_logits.div_(span.total[0])
    d_past = (d_sum * span.before[0]).to(dtype)
    d_products = (d_sum @ span.weight[0].mT).tril_().to(dtype)
    d_means[0] = d_past.mT @ span.query
    d_blocks[0] = (d_past @ span.means[0, :, :-1]).add_(d_products @ key)
    d_blocks[1] = d_products.mT @ span.query
    # total = before + running sum of weight
    d_total = torch.stack([d_sum * span.logits, d_y * softmax / span.total[1]]).neg_()
    d_before = torch.stack([d_sum * span.past, d_read * y]).add_(d_total).sum(dim=-2)
    d_weight = torch.stack([span.products.double().mT @ d_sum, d_mixed.mT @ y])
    d_weight += d_total.flip(-2).cumsum(dim=-2).flip(-2)
    direct = d_before * span.before.squeeze(-2)

    d_block_mean, d_block_mass, d_mass, d_mean = _memory_backward(span, d_means, direct, d_mass, d_mean)
    d_share = span.tokens @ d_block_mean.mT
    d_blocks[1:] += span.share @ d_block_mean
    d_logits = d_weight.mul_(span.weight).addcmul_(span.share.double(), d_block_mass.unsqueeze(-2))
    d_logits += softmax_gradient(span.share, d_share, dim=-2)
    return d_blocks, d_logits, d_mass, d_mean


def _memory_backward(
    span: _Span, d_means: Tensor, direct: Tensor, d_mass: Tensor, d_mean: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the blocks' means and masses and of the first memory, from those of all memories.

    The memory after a block: mass' = logaddexp(mass, block_mass), mean' = old mean + new block_mean, with
    old = exp(mass - mass') and new = exp(block_mass - mass').
    """
    old, new = span.old.to(d_mean.dtype), span.new.to(d_mean.dtype)
    # gradients of the mean before each block and after the last one: d_mean_j = direct + old_j d_mean_(j+1)
    d_states = block_states(d_mean, d_means.flip(2), old.flip(2).unsqueeze(-1)).flip(2)
    d_mean, d_after = d_states[:, :, 0], d_states[:, :, 1:]
    d_old = (d_after * span.means[:, :, :-1]).sum(dim=-1).mul_(old).double()
    d_new = (d_after * span.block_mean).sum(dim=-1).mul_(new).double()
    if block_states.choose(None, direct) is not None:  # the rule of the loop, with its terms gathered
        gathered = direct + d_old - span.old * (d_new + d_old)
        columns = (x.unsqueeze(-1) for x in (d_mass, gathered.flip(2), span.old.flip(2)))
        series = block_states(*columns).flip(2).squeeze(-1)
        d_block_mass = d_new + span.new * (series[:, :, 1:] - d_new - d_old)
        return new.unsqueeze(-1) * d_after, d_block_mass, series[:, :, 0], d_mean
    d_block_mass = torch.empty_like(direct)
    for j in reversed(range(direct.shape[2])):
        rest = d_mass - d_new[:, :, j] - d_old[:, :, j]
        d_block_mass[:, :, j] = d_new[:, :, j] + span.new[:, :, j] * rest
        d_mass = direct[:, :, j] + d_old[:, :, j] + span.old[:, :, j] * rest
    return new.unsqueeze(-1) * d_after, d_block_mass, d_mass, d_mean


def _shapes(query: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    mass, mean = inputs[-2:]
    count = -(-query.shape[2] // _span_size(query)) + 1
    return torch.empty_like(query), mass.new_empty(count, *mass.shape), mean.new_empty(count, *mean.shape)


_causal_abc = differentiable_operator(
    "causal_abc",
    _attend,
    _attend_backward,
    shapes=_shapes,
    gradients=("query", "key", "value", "compress", "mass", "mean"),
    keeps=(1, 2),
)
