"""FastSpeech 2 (Ren et al. 2021) as in fairseq: mel frames from phonemes in one pass. Attention layers: NS."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.speech import Postnet, SameConv, ScaledPositions, hide
from backbones.layers.tokens import check_tokens, number_positions
from backbones.layers.transformer import stack
from cab import Backbone, LayerPosition, Pattern, UserError, register_backbone
from cab.backbone import AttentionFactory
from cab.backbone_protocols import SpokenTokens


@register_backbone("fastspeech2", paper="Ren et al. 2021")
class FastSpeech2(Backbone):
    """Encoder over phonemes, variance adaptor, decoder over frames.

    The defaults are CAB's network (Table 14): 41,228,629 parameters. The "8 encoder layers" of the paper are 4 in the
    encoder and 4 in the decoder; the published run had no postnet.

    Args:
        make_attention: builds the attention layers (NS), first those of the encoder.
        num_tokens: size of the phoneme set; the published parameter count implies 76.
        num_mels: mel bins per frame.
        embed_dim, num_heads, ffn_dim, kernel_size, encoder_layers, decoder_layers: sizes of the blocks, whose
        feed-forward layers are two convolutions.
        dropout, attention_dropout, predictor_dropout: applied to feed-forward layers and embeddings, to attention
        weights, and inside the three predictors.
        num_bins: number of equal-width buckets for the pitch and energy embeddings.
        pitch_range, energy_range: [minimum, maximum] in the training data, the outer bounds of the buckets.
        max_frames: maximum number of frames per utterance.
        postnet: refine the frames with five convolutions.
        scale_embedding: multiply embedded phonemes by sqrt(embed_dim).
        checkpoint_activations: recompute blocks in the backward pass instead of storing their activations.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        num_tokens: int = 76,
        num_mels: int = 80,
        embed_dim: int = 256,
        num_heads: int = 2,
        ffn_dim: int = 1024,
        kernel_size: int = 9,
        encoder_layers: int = 4,
        decoder_layers: int = 4,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        predictor_dropout: float = 0.5,
        num_bins: int = 256,
        pitch_range: tuple[float, float] = (-4.0, 4.0),
        energy_range: tuple[float, float] = (-4.0, 4.0),
        max_frames: int = 1200,
        postnet: bool = False,
        scale_embedding: bool = False,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.checkpoint_activations = checkpoint_activations
        self.embedding = nn.Embedding(num_tokens, embed_dim)
        nn.init.normal_(self.embedding.weight, std=embed_dim**-0.5)
        self.embedding_scale = math.sqrt(embed_dim) if scale_embedding else 1.0
        self.encoder_positions = ScaledPositions(embed_dim)
        self.decoder_positions = ScaledPositions(embed_dim)
        self.dropout = nn.Dropout(dropout)

        block = partial(
            Block,
            make_attention,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            kernel_size=kernel_size,
            dropout=dropout,
            attention_dropout=attention_dropout,
        )
        self.encoder = stack(encoder_layers, block)
        self.adaptor = VarianceAdaptor(
            embed_dim,
            dropout=predictor_dropout,
            num_bins=num_bins,
            pitch_range=pitch_range,
            energy_range=energy_range,
            max_frames=max_frames,
        )
        self.decoder = stack(decoder_layers, block)
        self.output = nn.Linear(embed_dim, num_mels)
        self.postnet = Postnet(num_mels) if postnet else None

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        durations: Tensor | None = None,
        pitch: Tensor | None = None,
        energy: Tensor | None = None,
        num_frames: int | None = None,
    ) -> SpokenTokens:
        """Predict frames, using the given durations, pitch and energy, or the predicted ones.

        Args:
            tokens: [B, T] ids.
            padding_mask: [B, T], True = padding.
            durations: [B, T] integer frames per token; values at padding are ignored.
            pitch, energy: [B, T] per token, in the units of ``pitch_range`` and ``energy_range``.
            num_frames: largest sum of the given durations; without it, the host waits for a GPU.
        """
        check_tokens("tokens", tokens, padding_mask, vocab_size=self.num_tokens, max_length=None)
        for name, x in (("durations", durations), ("pitch", pitch), ("energy", energy)):
            if x is not None and x.shape != tokens.shape:
                raise UserError(f"{name} must be {list(tokens.shape)} like tokens, got {list(x.shape)}")
        x = self.encoder_positions(
            self.embedding_scale * self.embedding(tokens), number_positions(tokens, padding_mask)
        )
        x = self.encoder(self.dropout(x), padding_mask, run_layer=self.run_layer)
        x, durations, predicted = self.adaptor(x, padding_mask, durations, pitch, energy)
        frames, mel_padding = regulate_length(x, durations, self.adaptor.max_frames, num_frames)
        index = torch.arange(frames.shape[1], device=frames.device).unsqueeze(0)
        frames = self.decoder_positions(frames, index)
        frames = self.decoder(frames, mel_padding, run_layer=self.run_layer)
        mel = self.output(frames)
        log_duration, pitch, energy = predicted
        if self.postnet is None:
            return SpokenTokens(mel, mel_padding, log_duration, pitch, energy, None)
        return SpokenTokens(self.postnet(mel, mel_padding), mel_padding, log_duration, pitch, energy, mel)


class Block(nn.Module):
    """Self attention (NS) and two convolutions, each a residual branch followed by layer norm."""

    def __init__(
        self,
        make_attention: AttentionFactory,
        *,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        kernel_size: int,
        dropout: float,
        attention_dropout: float,
        layer_position: LayerPosition,
    ) -> None:
        super().__init__()
        self.attention = make_attention(
            Pattern.NS,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=attention_dropout,
            layer_position=layer_position,
        )
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.expand = SameConv(embed_dim, ffn_dim, kernel_size, gain="relu")
        self.reduce = SameConv(ffn_dim, embed_dim, kernel_size, gain="relu")
        self.norm = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, query_padding_mask=padding_mask))
        y = self.reduce(hide(F.relu(self.expand(hide(x, padding_mask))), padding_mask))
        return self.norm(x + self.dropout(y))


class VarianceAdaptor(nn.Module):
    """Predict duration, pitch and energy per token and expand tokens to frames (Ren et al., section 2.3)."""

    pitch_bounds: Tensor
    energy_bounds: Tensor

    def __init__(
        self,
        embed_dim: int,
        *,
        dropout: float,
        num_bins: int,
        pitch_range: tuple[float, float],
        energy_range: tuple[float, float],
        max_frames: int,
    ) -> None:
        super().__init__()
        for name, limits in (("pitch_range", pitch_range), ("energy_range", energy_range)):
            if len(limits) != 2 or not -math.inf < limits[0] < limits[1] < math.inf:
                raise UserError(f"{name} must be [least, largest], got {list(limits)}")
        self.max_frames = max_frames
        self.duration = Predictor(embed_dim, dropout)
        self.pitch = Predictor(embed_dim, dropout)
        self.energy = Predictor(embed_dim, dropout)
        self.pitch_embedding = nn.Embedding(num_bins, embed_dim)
        self.energy_embedding = nn.Embedding(num_bins, embed_dim)
        for table in (self.pitch_embedding, self.energy_embedding):
            nn.init.normal_(table.weight, std=embed_dim**-0.5)
        self.register_buffer("pitch_bounds", torch.linspace(*pitch_range, num_bins - 1))
        self.register_buffer("energy_bounds", torch.linspace(*energy_range, num_bins - 1))

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        durations: Tensor | None,
        pitch: Tensor | None,
        energy: Tensor | None,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return expanded tokens, durations, and the predicted log(duration + 1), pitch and energy."""
        log_duration = self.duration(x, padding_mask)
        predicted_pitch = self.pitch(x, padding_mask)
        pitch = predicted_pitch.detach() if pitch is None else pitch
        x = x + self.pitch_embedding(torch.bucketize(pitch, self.pitch_bounds))
        predicted_energy = self.energy(x, padding_mask)
        energy = predicted_energy.detach() if energy is None else energy
        x = x + self.energy_embedding(torch.bucketize(energy, self.energy_bounds))
        if durations is None:
            durations = predicted_durations(log_duration, padding_mask, self.max_frames)
        elif padding_mask is not None:
            durations = durations.masked_fill(padding_mask, 0)
        return x, durations, (log_duration, predicted_pitch, predicted_energy)


class Predictor(nn.Module):
    """Predict one scalar per token: two convolutions of width 3 with ReLU, norm and dropout, then a linear layer."""

    def __init__(self, embed_dim: int, dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList(SameConv(embed_dim, embed_dim, 3, gain="relu") for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(embed_dim) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(embed_dim, 1)

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.dropout(norm(F.relu(conv(hide(x, padding_mask)))))
        return hide(self.output(x), padding_mask).squeeze(-1)


def predicted_durations(log_duration: Tensor, padding_mask: Tensor | None, max_frames: int) -> Tensor:
    """Convert log durations to frames: round(exp(x) - 1), at least 0, within ``max_frames`` per sequence.

    A sequence without frames gets one. NaN, from a diverged network, becomes 0.
    """
    durations = log_duration.float().expm1().nan_to_num().round().clamp(0, max_frames).long()
    real = torch.ones_like(durations, dtype=torch.bool) if padding_mask is None else ~padding_mask
    ends = (durations * real).cumsum(dim=1).clamp(max=max_frames)
    durations = ends.diff(dim=1, prepend=ends.new_zeros(len(ends), 1))
    is_first = real & (real.cumsum(dim=1) == 1)
    return durations + (is_first & (ends[:, -1:] == 0)).long()


def regulate_length(
    x: Tensor, durations: Tensor, max_frames: int, num_frames: int | None = None
) -> tuple[Tensor, Tensor]:
    """Repeat each token for its frames: [B, T, D] to [B, F, D], with the padding mask of the frames.

    ``num_frames`` is F, the largest sum of the durations, if it is known.
    """
    ends = durations.cumsum(dim=1)
    num_frames = int(ends[:, -1].max()) if num_frames is None else num_frames
    if num_frames > max_frames:
        raise UserError(
            f"durations {list(durations.shape)} make {num_frames} frames, more than the {max_frames} of max_frames: "
            "shorten the utterance, or build the backbone with more"
        )
    frames = torch.arange(num_frames, device=x.device).expand(len(x), -1)
    token = torch.searchsorted(ends, frames.contiguous(), right=True)
    padding = frames >= ends[:, -1:]
    token = token.clamp(max=x.shape[1] - 1).unsqueeze(-1).expand(-1, -1, x.shape[-1])
    return hide(x.gather(1, token), padding), padding
