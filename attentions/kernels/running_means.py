"""Weighted means that run along: slot c of target t holds the mean of the values up to t, weighted by e^(its logits).

Blocks of tokens: within a block every token weighs e^logit, in units of what there was at the block's first token, so
that no mean of a single target is formed; before a block stands one. A span of blocks is formed anew in the backward
pass.

Shapes: B batch, H heads, N tokens, E width of a value, r slots, c tokens of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK = 32
"""Tokens whose products with each other are formed."""

SPAN = 512
"""Tokens whose products are in memory at once."""

LARGEST = 600.0
"""Logarithm of the largest weight within a block, in units of what came before: e^600 is a float64."""


def read_running_means(
    read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """sum_c read_tc m_tc with m_tc = sum_(j <= t) e^(logits_jc) v_j / sum_(j <= t) e^(logits_jc).

    Args:
        read: how much of which mean a target reads, [B, H, N, r].
        logits: [B, H, N, r]; a token of logit ``no_weight`` is none. The first token of a row has to be one.
        value: [B, H, N, E].
        mass: logarithms of the total weights before the first token, float64 [B, H, r].
        mean: the means before the first token, [B, H, r, E].

    Returns:
        [B, H, N, E], and mass and mean after the last token.
    """
    outputs = []
    for y, x, v in zip(*(x.split(SPAN, dim=2) for x in (read, logits, value)), strict=True):
        if torch.is_grad_enabled():
            output, mass, mean = checkpoint(_span, y, x, v, mass, mean, use_reentrant=False, preserve_rng_state=False)
        else:
            output, mass, mean = _span(y, x, v, mass, mean)
        outputs.append(output)
    return torch.cat(outputs, dim=2), mass, mean


def _span(read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    outputs = []
    for y, x, v in zip(*(x.split(BLOCK, dim=2) for x in (read, logits.double(), value)), strict=True):
        unit = torch.maximum(mass, x[:, :, 0]).detach()
        before = (mass - unit).exp()
        weight = (x - unit.unsqueeze(-2)).clamp(max=LARGEST).exp()
        total = before.unsqueeze(-2) + weight.cumsum(dim=-2)
        share = y / total
        past = (share * before.unsqueeze(-2)).to(v.dtype) @ mean
        outputs.append(past + (share @ weight.mT).tril().to(v.dtype) @ v)
        last = total[:, :, -1]
        kept, added = (before / last).to(v.dtype), (weight / last.unsqueeze(-2)).to(v.dtype)
        mean = kept.unsqueeze(-1) * mean + added.mT @ v
        mass = unit + last.log()
    return torch.cat(outputs, dim=2), mass, mean
