"""Layers for speech synthesis: padding-aware convolutions, scaled positions, the postnet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.tokens import SinusoidalPositions
from cab import UserError

Gain = Literal["linear", "relu", "tanh"]
POSTNET_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"linear": lambda x: x, "relu": F.relu, "tanh": torch.tanh}


def hide(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Set ``x`` [B, N, C] to zero at padding, so that convolutions see the same values as beyond the end."""
    return x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)


class SameConv(nn.Conv1d):
    """Length-preserving convolution along N of [B, N, C], Xavier uniform; zero the padding first."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, gain: Gain = "linear") -> None:
        if kernel_size % 2 == 0:
            raise UserError(f"a convolution that keeps the length needs an odd kernel_size, got {kernel_size}")
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        nn.init.xavier_uniform_(self.weight, gain=nn.init.calculate_gain(gain))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class MaskedBatchNorm1d(nn.BatchNorm1d):
    """Batch norm of [B, C, N] whose statistics exclude the padding."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if padding_mask is None or not self.training:
            return super().forward(x)
        padding, wide = padding_mask.unsqueeze(1), x.to(torch.promote_types(x.dtype, torch.float32))
        count = (~padding).sum()
        mean = wide.masked_fill(padding, 0.0).sum(dim=(0, 2), keepdim=True) / count
        centered = (wide - mean).masked_fill(padding, 0.0)
        variance = centered.square().sum(dim=(0, 2), keepdim=True) / count
        with torch.no_grad():
            self.num_batches_tracked += 1  # type: ignore[operator, assignment]
            self.running_mean.lerp_(mean.flatten(), self.momentum)  # type: ignore[union-attr, arg-type]
            unbiased = variance.flatten() * count / (count - 1).clamp(min=1)
            self.running_var.lerp_(unbiased, self.momentum)  # type: ignore[union-attr, arg-type]
        scale = self.weight[:, None] * torch.rsqrt(variance + self.eps)
        return torch.addcmul(self.bias[:, None], centered, scale).to(x.dtype)


class ConvNorm(nn.Module):
    """Convolution, batch norm, activation, dropout; batch statistics exclude padding."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, *, activation: Gain, dropout: float
    ) -> None:
        super().__init__()
        self.conv = SameConv(in_channels, out_channels, kernel_size, gain=activation)
        self.norm = MaskedBatchNorm1d(out_channels)
        self.activation = POSTNET_ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Map [B, N, C] to [B, N, C']."""
        x = self.norm(self.conv(hide(x, padding_mask)).transpose(1, 2), padding_mask).transpose(1, 2)
        x = x.contiguous() if self.training else x  # the numbers of dropout follow the order in memory
        return self.dropout(self.activation(x))


class Postnet(nn.Module):
    """Five convolutions that predict a residual for the decoder's frames (Shen et al. 2018, section 2.2)."""

    def __init__(self, width: int, *, hidden: int = 512, kernel_size: int = 5, dropout: float = 0.5) -> None:
        super().__init__()
        sizes = [width, hidden, hidden, hidden, hidden, width]
        self.layers = nn.ModuleList(
            ConvNorm(a, b, kernel_size, activation="tanh" if i < 4 else "linear", dropout=dropout)
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        )

    def forward(self, frames: Tensor, padding_mask: Tensor | None) -> Tensor:
        x = frames
        for layer in self.layers:
            x = layer(x, padding_mask)
        return frames + x


class ScaledPositions(nn.Module):
    """x + alpha * sinusoidal position, with learned alpha (Li et al. 2019, section 3.2)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.positions = SinusoidalPositions(embed_dim)
        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return x + (self.alpha * self.positions(index)).to(x.dtype)
