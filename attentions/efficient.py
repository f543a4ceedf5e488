"""Efficient attention (Shen et al. 2021): a softmax over the features of a query, one over the positions of keys.

Shapes: B batch, H heads, N targets, M keys, E width of a head.
"""

from __future__ import annotations

import itertools
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.numerics import mask_value, recompute, upcast
from attentions.kernels.recurrence import block_recurrence, in_blocks
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded


@register_attention("efficient", patterns="NS CS NC CC", complexity="n", paper="Shen et al. 2021")
class EfficientAttention(Attention):
    """Compute softmax over features of q, times (softmax over positions of k)^T v (Eq. 6), without 1/sqrt(E).

    A feature of the keys is a slot that holds the mean of all values, weighted by e^k. In pattern CS, which the paper
    does not have, it is a running mean: that of target t is over the positions up to t. The state is of constant size:
    E means a head and, in CS, the logarithms of their total weights. ``dropout`` is not used (as released).
    """

    has_constant_size_state = True

    def __init__(self, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.requires_right_padding = self.pattern is Pattern.CS  # so that a row begins with a token

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        read = query.softmax(dim=-1)
        if self.pattern is not Pattern.CS:
            return read @ (key.softmax(dim=1).mT @ value)
        outputs = []
        for t in range(1, query.shape[1] + 1):
            outputs.append(read[:, t - 1 : t] @ (key[:, :t].softmax(dim=1).mT @ value[:, :t]))
        return torch.cat(outputs, dim=1)

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Compute the mean of each feature, [B, H, E, E]; zero for a sequence whose keys are all padding."""
        with torch.autocast(key.device.type, enabled=False):
            logits, values = _shown(key, value, padding.key)
            return {"mean": logits.softmax(dim=2).mT @ values}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            return (upcast(query).softmax(dim=-1) @ state["mean"]).to(query.dtype), state

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the logarithms of masses [B, H, E] and the means [B, H, E, E] of no keys."""
        shape = (batch_size, self.num_heads, self.head_dim)
        mass = like.new_full(shape, mask_value(), dtype=torch.float64)
        return {"mass": mass, "mean": upcast(like.new_zeros(*shape, self.head_dim))}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            logits, values = _shown(key, value, padding.key)
            read = upcast(query).softmax(dim=-1)
            output, mass, mean = read_cumulative_means(
                read, logits, values, state["mass"], state["mean"].to(values.dtype)
            )
        return output.to(query.dtype), {"mass": mass, "mean": mean}


def _shown(key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mask padding, with a key of weight zero and value zero, in float32 or wider."""
    key, value = upcast(key), upcast(value)
    if padding is None:
        return key, value
    hidden = padding[:, None, :, None]
    return key.masked_fill(hidden, mask_value(key.dtype)), value.masked_fill(hidden, 0.0)


BLOCK = 32
"""Tokens per block, whose products with each other are formed."""

SPAN, DEVICE_SPAN = 256, 2048
"""Tokens per span on a CPU and elsewhere, where launches cost more: multiples of BLOCK."""

LARGEST = 600.0
"""Largest logarithm of a weight relative to the mass before the block: exp(600) is a finite float64."""


def read_cumulative_means(
    read: Tensor, logits: Tensor, value: Tensor, mass: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sum_c read_tc m_tc with m_tc = sum_(j <= t) e^(logits_jc) v_j / sum_(j <= t) e^(logits_jc).

    Args:
        read: weight of each mean in each target, [B, H, N, r].
        logits: [B, H, N, r]; a token with ``mask_value`` is ignored, but not as the first one of a sequence.
        value: [B, H, N, E].
        mass: logarithms of the total weights before the first token, float64 [B, H, r].
        mean: the means before the first token, [B, H, r, E].

    Returns:
        Outputs [B, H, N, E], and mass and mean after the last token.
    """
    if value.shape[2] == 1:
        return _step(read, logits, value, mass, mean)
    outputs, size = [], SPAN if value.device.type == "cpu" else DEVICE_SPAN
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
    logits = F.pad(logits.double(), (0, 0, 0, -length % size), value=mask_value())
    y, x, v = (in_blocks(each, size) for each in (read, logits, value))
    of_blocks = [mass, *x.logsumexp(dim=-2).unbind(2)]  # the second derivative of logcumsumexp is NaN
    masses = torch.stack(list(itertools.accumulate(of_blocks, torch.logaddexp)), dim=2)
    mass, after = masses[:, :, :-1].unsqueeze(-2), masses[:, :, 1:].unsqueeze(-2)
    added = (x - after).exp().to(v.dtype).mT @ v
    means, mean = block_recurrence(mean, added, (mass - after).exp().to(v.dtype).mT)
    unit = torch.maximum(mass, x[..., :1, :]).detach()
    before, weight = (mass - unit).exp(), (x - unit).clamp(max=LARGEST).exp()
    share = y / (before + weight.cumsum(dim=-2))
    output = (share * before).to(v.dtype) @ means + (share @ weight.mT).tril().to(v.dtype) @ v
    return output.flatten(2, 3)[:, :, :length], masses[:, :, -1], mean
