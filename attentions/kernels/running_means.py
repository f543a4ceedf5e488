"""Weighted means that run along: slot c of target t holds the mean of the values up to t, weighted by e^(its logits).

Blocks of tokens: within a block every token weighs e^logit, in units of what there was at the block's first token, so
that no mean of a single target is formed; before a block stands one. The blocks of a span are formed at once, and anew
in the backward pass.

Shapes: B batch, H heads, N tokens, E width of a value, r slots, c tokens of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attentions.kernels.decayed_sums import decayed_sums
from attentions.kernels.precision import no_weight
from attentions.kernels.recurrence import in_blocks

BLOCK = 32
"""Tokens whose products with each other are formed."""

SPAN, SPAN_ELSEWHERE = 256, 2048
"""Tokens whose products are in memory at once, on a CPU and elsewhere, where launches cost more: multiples of BLOCK."""

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
    if value.shape[2] == 1:
        return _step(read, logits, value, mass, mean)
    outputs, size = [], SPAN if value.device.type == "cpu" else SPAN_ELSEWHERE
    for y, x, v in zip(*(x.split(size, dim=2) for x in (read, logits, value)), strict=True):
        if torch.is_grad_enabled():
            output, mass, mean = checkpoint(_span, y, x, v, mass, mean, use_reentrant=False, preserve_rng_state=False)
        else:
            output, mass, mean = _span(y, x, v, mass, mean)
        outputs.append(output)
    return torch.cat(outputs, dim=2), mass, mean


def _step(read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of one token, whose own means are formed."""
    logits = logits[:, :, 0].double()
    after = torch.logaddexp(mass, logits)
    kept, added = ((x - after).exp().to(value.dtype).unsqueeze(-1) for x in (mass, logits))
    mean = kept * mean + added * value
    return read @ mean, after, mean


def _span(read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All blocks at once but for the means before them, which are sums that forget."""
    length, size = value.shape[2], min(BLOCK, value.shape[2])
    logits = F.pad(logits.double(), (0, 0, 0, -length % size), value=no_weight())
    y, x, v = (in_blocks(each, size) for each in (read, logits, value))
    masses = torch.cat([mass.unsqueeze(2), x.logsumexp(dim=-2)], dim=2).logcumsumexp(dim=2)
    mass, after = masses[:, :, :-1].unsqueeze(-2), masses[:, :, 1:].unsqueeze(-2)
    added = (x - after).exp().to(v.dtype).mT @ v
    means, mean = decayed_sums(mean, added, (mass - after).exp().to(v.dtype).mT)
    unit = torch.maximum(mass, x[..., :1, :]).detach()
    before, weight = (mass - unit).exp(), (x - unit).clamp(max=LARGEST).exp()
    share = y / (before + weight.cumsum(dim=-2))
    output = (share * before).to(v.dtype) @ means + (share @ weight.mT).tril().to(v.dtype) @ v
    return output.flatten(2, 3)[:, :, :length], masses[:, :, -1], mean
