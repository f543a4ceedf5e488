"""Layers that several attentions share: convolutions of values over positions, norms of a token, rotary positions.

Shapes: B batch, H heads, G batch times heads, N tokens, E width of a head, D = H E, K taps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import in_chunks
from cab import UserError
from cab.flash_linear_attention import call, fla_backend
from cab.kernels import Operation

BLOCK = 64
"""Positions of one block."""


def check_odd(**options: int) -> None:
    """Raise UserError for an even option."""
    for name, value in options.items():
        if value % 2 == 0:
            raise UserError(f"{name} must be odd, got {value}")


def value_convolution(num_heads: int, kernel_size: int | None) -> nn.Conv2d | None:
    """Create a convolution of values over positions with one filter per head; None without a size."""
    if kernel_size is None:
        return None
    check_odd(conv_kernel_size=kernel_size)
    size, padding = (kernel_size, 1), (kernel_size // 2, 0)
    return nn.Conv2d(num_heads, num_heads, size, padding=padding, groups=num_heads, bias=False)


def depthwise_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Return y_i = sum_t weight_t x_(i + t - K // 2) for each head, with zeros beyond both ends, [B, H, N, E].

    Args:
        x: [B, H, N, E].
        weight: [H, 1, K, 1], the weight of an ``nn.Conv2d``; K is odd.
    """
    weight, half, length = weight.to(x.dtype), weight.shape[2] // 2, x.shape[2]
    if x.is_cuda:
        return F.conv2d(x, weight, padding=(half, 0), groups=len(weight))

    def convolve(x: Tensor, taps: Tensor) -> Tensor:
        """Multiply blocks of positions with a band matrix, whose row i holds the taps from column i on."""
        blocks = F.pad(x, (0, 0, half, half + -length % BLOCK)).unfold(1, BLOCK + 2 * half, BLOCK).mT
        rows = F.pad(taps.unsqueeze(1).expand(-1, BLOCK, -1), (0, BLOCK)).flatten(1)
        band = rows[:, : BLOCK * (BLOCK + 2 * half)].unflatten(1, (1, BLOCK, -1))
        return (band @ blocks).flatten(1, 2)[:, :length]

    return in_chunks(convolve, (x,), (weight.flatten(1),), cost=3 * x.shape[2:].numel())


class SimpleRMSNorm(nn.Module):
    """Compute x / (rms(x) + 1e-8) without a weight; epsilon is outside of the root, as released for TransNormer."""

    def forward(self, x: Tensor) -> Tensor:
        rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return x / (rms + 1e-8)


Norm = Literal["simplerms", "rms", "layer", "none"]

NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "simplerms": lambda _width: SimpleRMSNorm(),
    "rms": lambda width: nn.RMSNorm(width, eps=1e-8),
    "layer": lambda width: nn.LayerNorm(width, bias=False),  # a bias would turn zero tokens into others
    "none": lambda _width: nn.Identity(),
}


class MergedNorm(nn.Module):
    """Apply the norm ``kind`` over the width D of a token to [B, H, N, E]."""

    def __init__(self, kind: Norm, width: int) -> None:
        super().__init__()
        self.norm = NORMS[kind](width)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.norm, nn.Identity):
            return x
        merged = self.norm(x.transpose(1, 2).flatten(2))
        return merged.unflatten(2, (x.shape[1], -1)).transpose(1, 2)


BASE = 10_000.0


def rotate(x: Tensor, position: Tensor, *, by_halves: bool = False) -> Tensor:
    """Rotate coordinates 2c and 2c + 1 of ``x`` [B, H, N, E] by position * 10000^(-2c / E), in float32 or wider.

    ``position`` is [B or 1, N]; the product of two turned vectors depends on the difference of their positions. The
    pairs of ``by_halves`` are the coordinates c and c + E / 2, as in Llama.
    """
    width = x.shape[-1]
    frequency = BASE ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angle = position.double()[:, None, :, None] * frequency  # a float32 angle is off by 1e-4 after thousands of tokens
    return turn(x, angle, by_halves=by_halves)


def turn(x: Tensor, angle: Tensor, *, by_halves: bool = False) -> Tensor:
    """Turn each pair of coordinates of ``x`` [B, H, N, E] by its ``angle`` [B or 1, H or 1, N, E / 2]."""
    return rotary(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype), by_halves=by_halves)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor, *, by_halves: bool) -> Tensor:
    """Turn pairs of coordinates, 2c and 2c + 1 or c and c + E / 2, by angles with these cosines and sines."""
    first, second = x.chunk(2, dim=-1) if by_halves else (x[..., 0::2], x[..., 1::2])
    turned = [first * cos - second * sin, first * sin + second * cos]
    return torch.cat(turned, dim=-1) if by_halves else torch.stack(turned, dim=-1).flatten(-2)


def _rotary_by_fla(x: Tensor, cos: Tensor, sin: Tensor, *, by_halves: bool) -> Tensor:
    tokens = x.transpose(1, 2)
    rows = tokens if len(cos) == 1 else tokens.reshape(1, -1, *tokens.shape[2:])  # as one long sequence
    tables = [table.reshape(-1, table.shape[-1]) for table in (cos, sin)]
    output = call("modules.rotary.ops.rotary_embedding", rows, *tables, interleaved=not by_halves)
    result: Tensor = output.view(tokens.shape).transpose(1, 2)
    return result


WIDEST = 256
"""Largest width of a head that the kernel rotates."""


def _refuses(x: Tensor, cos: Tensor, _sin: Tensor, **_: bool) -> str | None:
    if cos.requires_grad:
        return "learned angles"
    if x.dim() != 4 or cos.dim() != 4 or cos.shape[1] > 1:
        return "angles of each head"
    return f"more than {WIDEST} features" if x.shape[-1] > WIDEST else None


rotary = Operation("rotary", _rotary, fla_backend(_rotary_by_fla, _refuses))


def alibi_slopes(heads: Tensor) -> Tensor:
    """Return ALiBi's slopes for the numbers 0, ..., H - 1 of all heads.

    With P the largest power of two up to H, the first P slopes are 2^(-8 (h + 1) / P). The others are every second
    slope of 2 P heads.
    """
    power = 1 << (len(heads).bit_length() - 1)
    exponents = torch.where(heads < power, (heads + 1) / power, (heads - power + 0.5) / power)
    return 2.0 ** (-8 * exponents)
