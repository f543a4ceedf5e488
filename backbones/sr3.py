"""SR3 (Saharia et al. 2021): a U-Net that denoises an image given its low-resolution version. Attention layers: NS."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab import Attention, Backbone, LayerPosition, Pattern, UserError, register_backbone
from cab.backbone import AttentionFactory


@register_backbone("sr3", paper="Saharia et al. 2021")
class SR3(Backbone):
    """Predict the noise in an image, given its low-resolution version and the noise level.

    The defaults are CAB's network, the public implementation for 16 to 128 pixels with attention at four resolutions:
    99,550,467 parameters. (The published vanilla run had no attention at 128, although its parameter count includes
    it.)

    Args:
        make_attention: builds the attention layers (NS), one head over the pixels as tokens.
        image_size: image side in pixels.
        base_channels: channels at full resolution.
        channel_multipliers: channels per resolution, as multiples; each resolution is half the previous one.
        attention_resolutions: sides in pixels at which attention follows every residual block. The middle of the
            network always has attention.
        num_blocks: residual blocks per resolution on the way down; one more on the way up.
        dropout: applied inside residual blocks.
        norm_groups: groups of the group norms; must divide every number of channels.
        checkpoint_activations: recompute blocks in the backward pass instead of storing their activations.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        image_size: int = 128,
        base_channels: int = 64,
        channel_multipliers: Sequence[int] = (1, 2, 4, 8, 8),
        attention_resolutions: Sequence[int] = (16, 32, 64, 128),
        num_blocks: int = 2,
        dropout: float = 0.2,
        norm_groups: int = 32,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        factor = 2 ** (len(channel_multipliers) - 1)
        if image_size % factor or base_channels % norm_groups:
            raise UserError(
                f"image_size {image_size} must be a multiple of {factor} (halved between {len(channel_multipliers)} "
                f"resolutions) and base_channels {base_channels} of norm_groups {norm_groups}"
            )
        self.image_size = image_size
        self.checkpoint_activations = checkpoint_activations

        attending = sum(image_size // 2**level in attention_resolutions for level in range(len(channel_multipliers)))
        count = attending * (2 * num_blocks + 1) + 1
        depths = (LayerPosition(index, count) for index in range(count))

        def block(channels_in: int, channels: int, *, attend: bool) -> Block:
            attention = None
            if attend:
                attention = make_attention(Pattern.NS, embed_dim=channels, num_heads=1, layer_position=next(depths))
            return Block(channels_in, channels, base_channels, attention, dropout=dropout, groups=norm_groups)

        self.noise_level = NoiseLevel(base_channels)
        self.input = nn.Conv2d(6, base_channels, 3, padding=1)
        widths = [base_channels * multiplier for multiplier in channel_multipliers]
        channels, skipped = base_channels, [base_channels]
        self.down = nn.ModuleList()
        for level, width in enumerate(widths):
            attend = image_size // 2**level in attention_resolutions
            for _ in range(num_blocks):
                self.down.append(block(channels, width, attend=attend))
                channels = width
                skipped.append(channels)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                skipped.append(channels)
        self.middle = nn.ModuleList([block(channels, channels, attend=True), block(channels, channels, attend=False)])
        self.up = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            attend = image_size // 2**level in attention_resolutions
            for _ in range(num_blocks + 1):
                self.up.append(block(channels + skipped.pop(), width, attend=attend))
                channels = width
            if level > 0:
                self.up.append(Upsample(channels))
        self.output = Activated(channels, 3, groups=norm_groups)
        self._initialize()

    def _initialize(self) -> None:
        """Set orthogonal weights and zero biases, attentions included, as in the public implementation."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                if not module.weight.is_meta:
                    nn.init.orthogonal_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, image: Tensor, noise_level: Tensor) -> Tensor:
        """Return the noise.

        Args:
            image: [B, 6, H, W], the upsampled low-resolution image in [-1, 1] and the noisy image.
            noise_level: [B], sqrt(alpha-bar); 1 means no noise.

        Returns:
            [B, 3, H, W].
        """
        size = self.image_size
        if image.dim() != 4 or tuple(image.shape[1:]) != (6, size, size) or len(image) < 1:
            raise UserError(f"image must be [batch, 6, {size}, {size}] and not empty, got {list(image.shape)}")
        if noise_level.shape != image.shape[:1]:
            raise UserError(f"noise_level must be [{len(image)}], got {list(noise_level.shape)}")
        level = self.noise_level(noise_level)
        x = self.input(image)
        skipped = [x]
        for module in self.down:
            x = self.run_layer(module, x, level) if isinstance(module, Block) else module(x)
            skipped.append(x)
        for block in self.middle:
            x = self.run_layer(block, x, level)
        for module in self.up:
            if isinstance(module, Block):
                x = self.run_layer(module, torch.cat([x, skipped.pop()], dim=1), level)
            else:
                x = module(x)
        return self.output(x)


class NoiseLevel(nn.Module):
    """Sines and cosines of sqrt(alpha-bar), then linear, Swish, linear: [B] to [B, D]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.expand = nn.Linear(dim, 4 * dim)
        self.reduce = nn.Linear(4 * dim, dim)

    def forward(self, noise_level: Tensor) -> Tensor:
        half = self.dim // 2
        step = torch.arange(half, dtype=torch.float32, device=noise_level.device) / half
        angle = noise_level.float().unsqueeze(1) * torch.exp(-math.log(1e4) * step)
        encoding = torch.cat([angle.sin(), angle.cos()], dim=1)
        return self.reduce(F.silu(self.expand(encoding)))


class Activated(nn.Module):
    """Group norm, Swish, dropout, convolution."""

    def __init__(self, channels_in: int, channels: int, *, groups: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels_in)
        self.dropout = nn.Dropout(dropout)
        self.conv = nn.Conv2d(channels_in, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.dropout(F.silu(self.norm(x))))


class Block(nn.Module):
    """Residual block conditioned on the noise level, with optional attention over its pixels."""

    def __init__(
        self,
        channels_in: int,
        channels: int,
        level_dim: int,
        attention: Attention | None,
        *,
        dropout: float,
        groups: int,
    ) -> None:
        super().__init__()
        self.first = Activated(channels_in, channels, groups=groups)
        self.level = nn.Linear(level_dim, channels)
        self.second = Activated(channels, channels, groups=groups, dropout=dropout)
        self.shortcut = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()
        self.attention = attention
        if attention is not None:
            self.attention_norm = nn.GroupNorm(groups, channels)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        y = self.first(x) + self.level(level)[:, :, None, None]
        x = self.second(y) + self.shortcut(x)
        if self.attention is None:
            return x
        tokens = self.attention_norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(tokens).transpose(1, 2).reshape(x.shape)


class Upsample(nn.Module):
    """Upsample by 2: nearest neighbor, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
