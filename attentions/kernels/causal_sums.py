"""Causal sums over keys, block by block: what a target of linear attention reads of the tokens up to it.

Shapes: B batch, H heads, N tokens, r features, F width of a value.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
"""Tokens whose products with each other are formed; before them stands one sum."""


def causal_sums(
    queries: Tensor, keys: Tensor, values: Tensor, sums: Tensor, scale: Tensor | None, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """output_i = sum over j <= i of exp(s_j - s_i) (q_i . k_j) v_j + those before, and the sums after the last token.

    Within a block a [C, C] product; between blocks a running [r, F] sum. ``scale`` s [B, H, N] never falls, so that no
    factor exceeds one; it only shifts the numbers' range and gets no gradient. A gradient by hand was measured to save
    no time and under a tenth of the memory.

    Args:
        queries, keys: [B, H, N, r].
        values: [B, H, N, F].
        sums: [B, H, r, F] of the tokens before.
        scale: [B, H, N] or None.
        before: the scale of ``sums``, [B, H].
    """
    outputs = []
    for start in range(0, queries.shape[2], BLOCK):
        block = slice(start, start + BLOCK)
        q, k, v = queries[:, :, block], keys[:, :, block], values[:, :, block]
        within, past, rest, carried = _factors(scale, before, block)
        outputs.append(_lower(q @ k.mT, within) @ v + _times(q @ sums, past))
        sums = _times(sums, carried) + _times(k, rest).mT @ v
        before = None if scale is None else scale[:, :, block][..., -1]
    return torch.cat(outputs, dim=2), sums


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
