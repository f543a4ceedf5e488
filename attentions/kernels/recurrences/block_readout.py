"""S4D readout: outputs from blocks of tokens and from the states around them, a few blocks at a time.

A token has c D activations, many times its D features. They exist for a few blocks only and are recomputed in the
backward pass (results/efficiency/kernel_gains.csv lists what the hand-written gradient gains).

Shapes: D width, c channels, T tokens per block, G blocks, S numbers per state, K = T + S, or T + 2 S with states after
the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.blocks import dropout_factor, dropout_seed
from attentions.kernels.common.operator import differentiable_operator
from attentions.kernels.common.precision import accumulation_dtype

CPU_LIMIT, DEVICE_LIMIT = 2**20, 2**26
"""Largest number of elements in a tensor of one chunk of blocks. On a GPU, launches cost more than memory."""


def read_blocks(
    tokens: Tensor,
    before: Tensor,
    after: Tensor | None,
    matrix: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Return W dropout(GELU(matrix [tokens; before; after])) + b for every token, [G, T, outputs].

    Args:
        tokens: [D, G, T].
        before, after: states before and after each block, [D, G, S]; ``after`` is None for a causal readout.
        matrix: [D, c T, K], from the tokens and states of a block to its outputs before GELU.
        weight: W, [outputs, D c], in the dtype of the result.
        bias: b [outputs].
        dropout: probability of dropping an activation.
    """
    seed = dropout_seed(dropout)
    return _s4d_read(tokens, before, after, matrix, weight, bias, dropout, seed)


def _chunks(tokens: Tensor, matrix: Tensor) -> Iterator[tuple[int, slice]]:
    num_features, num_blocks, _ = tokens.shape
    limit = CPU_LIMIT if tokens.device.type == "cpu" else DEVICE_LIMIT
    size = max(1, limit // (num_features * max(matrix.shape[1:])))
    for number, begin in enumerate(range(0, num_blocks, size)):
        yield number, slice(begin, min(begin + size, num_blocks))


def _columns(piece: slice, *known: Tensor | None) -> Tensor:
    """Concatenate the tokens and states of a chunk of blocks, [D, K, blocks]."""
    return torch.cat([x[:, piece] for x in known if x is not None], dim=-1).transpose(1, 2)


def _by_token(x: Tensor, num_tokens: int) -> Tensor:
    """[D, c T, blocks] to [D c, T blocks]."""
    return x.unflatten(1, (-1, num_tokens)).flatten(2).flatten(0, 1)


def _read(
    tokens: Tensor,
    before: Tensor,
    after: Tensor | None,
    matrix: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    _, num_blocks, block = tokens.shape
    output = weight.new_empty(num_blocks, block, len(weight))
    with torch.autocast(tokens.device.type, enabled=False):
        for number, piece in _chunks(tokens, matrix):
            active = F.gelu(matrix @ _columns(piece, tokens, before, after))
            factor = dropout_factor(active, dropout, seed, number)
            active = active if factor is None else active.mul_(factor)
            read = F.linear(_by_token(active, block).T.to(weight.dtype), weight, bias)
            output[piece] = read.unflatten(0, (block, -1)).transpose(0, 1)
    return output


def _read_backward(
    grad: Tensor,
    tokens: Tensor,
    before: Tensor,
    after: Tensor | None,
    matrix: Tensor,
    weight: Tensor,
    bias: Tensor,
    dropout: float,
    seed: Tensor | None,
) -> list[Tensor]:
    """Gradients of tokens, states, matrix, weight and bias; those of the last three summed in float32 at least."""
    known = [x for x in (tokens, before, after) if x is not None]
    d_known = [torch.empty_like(x) for x in known]
    d_matrix, d_weight, d_bias = (
        torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) for x in (matrix, weight, bias)
    )
    widths = [x.shape[2] for x in known]
    with torch.autocast(tokens.device.type, enabled=False):
        for number, piece in _chunks(tokens, matrix):
            columns = _columns(piece, *known)
            mixed = matrix @ columns
            active = F.gelu(mixed)
            factor = dropout_factor(active, dropout, seed, number)
            active = active if factor is None else active.mul_(factor)
            g = grad[piece].transpose(0, 1).flatten(0, 1)  # [T blocks, outputs]
            d_bias += g.sum(dim=0, dtype=d_bias.dtype)
            tokenwise = _by_token(active, tokens.shape[2]).T
            if g.dtype is d_weight.dtype:
                d_weight.addmm_(g.T, tokenwise)
            else:
                d_weight += g.T @ tokenwise.to(g.dtype)
            del active, tokenwise  # the largest tensors: no more than two of them at once
            d_mixed = (weight.T @ g.T).to(mixed.dtype).view(mixed.shape)
            d_mixed = d_mixed if factor is None else d_mixed.mul_(factor)
            torch.ops.aten.gelu_backward.grad_input(d_mixed, mixed, grad_input=d_mixed)
            d_matrix.baddbmm_(d_mixed, columns.transpose(1, 2))
            parts = (d_mixed.transpose(1, 2) @ matrix).split(widths, dim=-1)
            for total, part in zip(d_known, parts, strict=True):
                total[:, piece] = part
            del mixed, d_mixed
    return [*d_known, d_matrix.to(matrix.dtype), d_weight.to(weight.dtype), d_bias.to(bias.dtype)]


def _shapes(tokens: Tensor, _before: Tensor, _after: Tensor | None, _matrix: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return weight.new_empty(*tokens.shape[1:], len(weight))


_s4d_read = differentiable_operator(
    "s4d_read",
    _read,
    _read_backward,
    shapes=_shapes,
    gradients=("tokens", "before", "after", "matrix", "weight", "bias"),
)
