"""Informer (Zhou et al. 2021): distilling encoder, generative decoder, used for LSTF. Attention layers: NS, CS, NC."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.transformer import TransformerLayer, stack
from cab import Backbone, Pattern, UserError, register_backbone
from cab.backbone import AttentionFactory

NUM_TIME_FEATURES = 4  # hour of day, day of week, day of month, day of year


@register_backbone("informer", paper="Zhou et al. 2021")
class Informer(Backbone):
    """Forecast a series: encoder over the past, decoder over known values and placeholders.

    The defaults are CAB's network for ETT (Table 14; 11,330,055 parameters with 7 channels); ECL and Weather use 3
    encoder and 2 decoder layers.

    Args:
        make_attention: builds the attention layers: encoder self (NS), decoder self (CS), decoder cross (NC).
        channels: number of series read and predicted jointly.
        embed_dim, num_heads, ffn_dim, encoder_layers, decoder_layers, dropout: sizes and dropout of the stacks.
        normalization: ``none`` as published; ``window`` subtracts each window's mean and divides by its standard
            deviation, and reverts this on the output (reversible instance normalization without parameters, Kim et al.
            2022), without which the level of a drifting series cannot be followed; ``seasonal`` additionally forecasts
            the residual from a repetition of the last season.
        season: period in steps of ``seasonal``.
        checkpoint_activations: recompute layers in the backward pass instead of storing their activations.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        channels: int = 7,
        embed_dim: int = 512,
        num_heads: int = 8,
        ffn_dim: int = 2048,
        encoder_layers: int = 2,
        decoder_layers: int = 1,
        dropout: float = 0.05,
        normalization: Literal["none", "window", "seasonal"] = "none",
        season: int = 24,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.normalization = normalization
        self.season = season
        self.checkpoint_activations = checkpoint_activations
        self.encoder_embedding = SeriesEmbedding(channels, embed_dim, dropout)
        self.decoder_embedding = SeriesEmbedding(channels, embed_dim, dropout)
        layer = partial(
            TransformerLayer,
            make_attention,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            norm="post",
            activation="gelu",
            dropout=dropout,
            attention_dropout=dropout,
            activation_dropout=dropout,
            is_xavier=False,
        )
        self.encoder = stack(encoder_layers, partial(layer, Pattern.NS))
        self.distilling = nn.ModuleList(Distilling(embed_dim) for _ in range(encoder_layers - 1))
        self.encoder_norm = nn.LayerNorm(embed_dim)
        self.decoder = stack(decoder_layers, partial(layer, Pattern.CS, cross=Pattern.NC))
        self.decoder_norm = nn.LayerNorm(embed_dim)
        self.projection = nn.Linear(embed_dim, channels)
        if normalization == "seasonal":
            nn.init.zeros_(self.projection.weight)
            nn.init.zeros_(self.projection.bias)

    def forward(self, past: Tensor, past_time: Tensor, known: Tensor, decoder_time: Tensor) -> Tensor:
        """Return the forecast.

        Args:
            past: [B, N, C] observed values.
            past_time: [B, N, 4] calendar features in [-0.5, 0.5].
            known: [B, K, C] the last known values, where the decoder starts.
            decoder_time: [B, K + T, 4] calendar features of the known steps and of the T steps to forecast.

        Returns:
            [B, T, C].
        """
        self._check(past, past_time, known, decoder_time)
        if self.normalization != "none":
            mean = past.mean(dim=1, keepdim=True)
            deviation = past.std(dim=1, keepdim=True, correction=0) + 1e-5
            past, known = (past - mean) / deviation, (known - mean) / deviation
        horizon = decoder_time.shape[1] - known.shape[1]
        blanks = known.new_zeros(known.shape[0], horizon, self.channels)
        memory = self.encode(past, past_time)
        output = self.decode(torch.cat([known, blanks], dim=1), decoder_time, memory)
        output = self.projection(output[:, -horizon:])
        if self.normalization == "none":
            return output
        if self.normalization == "seasonal":
            output = output + self._repeat_season(past, horizon)
        return output * deviation + mean

    def _repeat_season(self, past: Tensor, horizon: int) -> Tensor:
        if past.shape[1] < self.season:
            raise UserError(f"seasonal normalization needs {self.season} steps of past, got {past.shape[1]}")
        return past[:, -self.season :].repeat(1, -(-horizon // self.season), 1)[:, :horizon]

    def _check(self, past: Tensor, past_time: Tensor, known: Tensor, decoder_time: Tensor) -> None:
        shapes = [tuple(x.shape) for x in (past, past_time, known, decoder_time)]
        if all(len(shape) == 3 and 0 not in shape for shape in shapes):
            num_past, num_known, num_steps = past.shape[1], known.shape[1], decoder_time.shape[1]
            lengths, widths = (num_past, num_past, num_known, num_steps), 2 * (self.channels, NUM_TIME_FEATURES)
            expected = [(len(past), *size) for size in zip(lengths, widths, strict=True)]
            if shapes == expected and num_steps > num_known:
                return
        raise UserError(
            f"past, past_time, known and decoder_time must be [B, N, {self.channels}], [B, N, {NUM_TIME_FEATURES}], "
            f"[B, K, {self.channels}] and [B, K + T, {NUM_TIME_FEATURES}], with all sizes at least 1, got "
            f"{', '.join(map(str, shapes))}"
        )

    def encode(self, past: Tensor, past_time: Tensor) -> Tensor:
        """Encode [B, N, D] as [B, N / 2^(layers - 1), D]: every layer but the last halves the length."""
        x = self.encoder_embedding(past, past_time)
        for index, layer in enumerate(self.encoder):
            x = self.run_layer(layer, x)
            if index < len(self.distilling):
                x = self.distilling[index](x)
        return self.encoder_norm(x)

    def decode(self, known: Tensor, decoder_time: Tensor, memory: Tensor) -> Tensor:
        """Decode the known values and the placeholders after them, [B, K + T, D]."""
        x = self.decoder_embedding(known, decoder_time)
        return self.decoder_norm(self.decoder(x, None, memory, run_layer=self.run_layer))


class SeriesEmbedding(nn.Module):
    """Sum of value (circular convolution), position (sinusoidal) and calendar embeddings."""

    def __init__(self, channels: int, embed_dim: int, dropout: float) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.value = nn.Conv1d(channels, embed_dim, 3, padding=1, padding_mode="circular")
        nn.init.kaiming_normal_(self.value.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.time = nn.Linear(NUM_TIME_FEATURES, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, series: Tensor, time: Tensor) -> Tensor:
        value = self.value(series.transpose(1, 2)).transpose(1, 2)
        return self.dropout(value + sinusoids(series.shape[1], self.embed_dim, series.device) + self.time(time))


def sinusoids(length: int, embed_dim: int, device: torch.device) -> Tensor:
    """Return sinusoidal positions [length, embed_dim], sine and cosine interleaved (Vaswani et al. 2017, 3.5)."""
    position = torch.arange(length, device=device, dtype=torch.float32).unsqueeze(1)
    frequency = torch.exp(
        torch.arange(0, embed_dim, 2, device=device, dtype=torch.float32) * (-math.log(10000.0) / embed_dim)
    )
    angle = position * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :embed_dim]


class Distilling(nn.Module):
    """Halve the length: circular convolution, batch normalization, ELU, max pooling (Informer, Eq. 5)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(embed_dim, embed_dim, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm1d(embed_dim)
        self.pool = nn.MaxPool1d(3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x.transpose(1, 2))
        return self.pool(F.elu(self.norm(x))).transpose(1, 2)
