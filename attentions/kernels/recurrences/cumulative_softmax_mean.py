"""Cumulative softmax means: slot c of target t holds the mean of the values up to t, weighted by exp(logits).

Within a block a token has weight exp(logit) relative to the mass at the first token of the block, so only the mean
before each block is formed. The blocks of a span are computed together and recomputed in the backward pass.

Shapes: B batch, H heads, N tokens, E width of a value, r slots, c tokens of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.checkpointing import recompute
from attentions.kernels.common.precision import neg_inf
from attentions.kernels.recurrences.gated_linear_recurrence import gated_linear_recurrence
from attentions.kernels.recurrences.recurrence import in_blocks

BLOCK = 32
"""Tokens per block, whose products with each other are formed."""

SPAN, SPAN_ELSEWHERE = 256, 2048
"""Tokens per span on a CPU and elsewhere, where launches cost more: multiples of BLOCK."""

LARGEST = 600.0
"""Largest logarithm of a weight relative to the mass before the block: exp(600) is a finite float64."""


def read_cumulative_means(
    read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sum_c read_tc m_tc with m_tc = sum_(j <= t) e^(logits_jc) v_j / sum_(j <= t) e^(logits_jc).

    Args:
        read: weight of each mean in each target, [B, H, N, r].
        logits: [B, H, N, r]; a token with the logit ``neg_inf`` is ignored, but not as the first token of a sequence.
        value: [B, H, N, E].
        mass: logarithms of the total weights before the first token, float64 [B, H, r].
        mean: the means before the first token, [B, H, r, E].

    Returns:
        Outputs [B, H, N, E], and mass and mean after the last token.
    """
    if value.shape[2] == 1:
        return _step(read, logits, value, mass, mean)
    outputs, size = [], SPAN if value.device.type == "cpu" else SPAN_ELSEWHERE
    for y, x, v in zip(*(x.split(size, dim=2) for x in (read, logits, value)), strict=True):
        output, mass, mean = recompute(_span, y, x, v, mass, mean)
        outputs.append(output)
    return torch.cat(outputs, dim=2), mass, mean


def _step(read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one token, whose means are formed."""
    logits = logits[:, :, 0].double()
    after = torch.logaddexp(mass, logits)
    kept, added = ((x - after).exp().to(value.dtype).unsqueeze(-1) for x in (mass, logits))
    mean = kept * mean + added * value
    return read @ mean, after, mean


def _span(read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute all blocks of a span together, from a recurrence over the means before them."""
    length, size = value.shape[2], min(BLOCK, value.shape[2])
    logits = F.pad(logits.double(), (0, 0, 0, -length % size), value=neg_inf())
    y, x, v = (in_blocks(each, size) for each in (read, logits, value))
    masses = torch.cat([mass.unsqueeze(2), x.logsumexp(dim=-2)], dim=2).logcumsumexp(dim=2)
    mass, after = masses[:, :, :-1].unsqueeze(-2), masses[:, :, 1:].unsqueeze(-2)
    added = (x - after).exp().to(v.dtype).mT @ v
    means, mean = gated_linear_recurrence(mean, added, (mass - after).exp().to(v.dtype).mT)
    unit = torch.maximum(mass, x[..., :1, :]).detach()
    before, weight = (mass - unit).exp(), (x - unit).clamp(max=LARGEST).exp()
    share = y / (before + weight.cumsum(dim=-2))
    output = (share * before).to(v.dtype) @ means + (share @ weight.mT).tril().to(v.dtype) @ v
    return output.flatten(2, 3)[:, :, :length], masses[:, :, -1], mean
