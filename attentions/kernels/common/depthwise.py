"""Depthwise convolution over positions with one kernel per head, as products with banded matrices.

On a CPU ``conv2d`` copies its input and stores several times its size for the backward pass. Here a block of positions
is one matrix product, and only the input is stored (results/efficiency/kernel_gains.csv lists what that gains).

Shapes: B rows, H heads, G rows times heads, N positions, E width of a head, K taps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.common.blocks import BlockSum, of_block
from attentions.kernels.common.operator import differentiable_operator
from attentions.kernels.common.precision import accumulation_dtype

BLOCK = 64
"""Positions of one block."""


def depthwise_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Return y_i = sum_t weight_t x_(i + t - K // 2) for each head, with zeros beyond both ends, [B, H, N, E].

    Args:
        x: [B, H, N, E].
        weight: [H, 1, K, 1], the weight of an ``nn.Conv2d``; K is odd.
    """
    weight = weight.to(x.dtype)
    if x.is_cuda:
        return F.conv2d(x, weight, padding=(weight.shape[2] // 2, 0), groups=len(weight))
    taps = weight.flatten(1).repeat(len(x), 1)
    return _convolve(x, taps)


def _blocks(num_positions: int, num_taps: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the positions of each block, the positions it reads, and their columns in the band."""
    half = num_taps // 2
    for begin in range(0, num_positions, BLOCK):
        end, start = min(begin + BLOCK, num_positions), begin - half
        low, high = max(0, start), min(num_positions, end + half)
        yield slice(begin, end), slice(low, high), slice(low - start, high - start)


def _band(taps: Tensor) -> Tensor:
    """Expand taps [G, K] to [G, BLOCK, BLOCK + K - 1], where row i holds them from column i on."""
    num_taps = taps.shape[1]
    rows = F.pad(taps.unsqueeze(1).expand(-1, BLOCK, -1), (0, BLOCK)).flatten(1)
    return rows[:, : BLOCK * (BLOCK + num_taps - 1)].unflatten(1, (BLOCK, -1))


def _forward(x: Tensor, taps: Tensor) -> Tensor:
    band, output = _band(taps), torch.empty_like(x)
    with torch.autocast(x.device.type, enabled=False):
        for here, seen, columns in _blocks(x.shape[2], taps.shape[1]):
            mixed = torch.bmm(band[:, : here.stop - here.start, columns], of_block(x, seen))
            output[:, :, here] = mixed.unflatten(0, x.shape[:2])
    return output


def _backward(grad: Tensor, x: Tensor, taps: Tensor) -> list[Tensor]:
    """Return the gradients of the input and the taps."""
    band, d_x = _band(taps), BlockSum(x)
    d_band = torch.zeros_like(band, dtype=accumulation_dtype(band.dtype))
    for here, seen, columns in _blocks(x.shape[2], taps.shape[1]):
        size = here.stop - here.start
        g = of_block(grad, here)
        d_x.add(seen, torch.bmm(band[:, :size, columns].transpose(1, 2), g))
        d_band[:, :size, columns] += torch.bmm(g, of_block(x, seen).transpose(1, 2))
    diagonals = F.pad(d_band.flatten(1), (0, BLOCK)).unflatten(1, (BLOCK, -1))[..., : taps.shape[1]]
    return [d_x.result(x.dtype), diagonals.sum(dim=1).to(taps.dtype)]


_convolve = differentiable_operator("depthwise_conv", _forward, _backward, gradients=("x", "taps"))
