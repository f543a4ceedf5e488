"""Causal sums over keys, block by block: what a target of linear attention reads of the tokens up to it.

Shapes: B batch, H heads, N tokens, r features, F width of a value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 64
"""Tokens whose products with each other are formed; before them stands one sum."""


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
