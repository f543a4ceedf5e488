"""Transformer-TTS (Li et al. 2019) as in fairseq: autoregressive mel frames from phonemes. Attention: NS, CS, CC."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.decoder import Decoder, DecodingState
from backbones.layers.speech import ConvNorm, Postnet, ScaledPositions, hide
from backbones.layers.tokens import check_padding, check_tokens, number_positions
from backbones.layers.transformer import TransformerLayer, stack
from cab import Pattern, UserError, register_backbone
from cab.backbone import AttentionFactory
from cab.backbone_protocols import SpokenSteps


@register_backbone("transformer_tts", paper="Li et al. 2019")
class TransformerTTS(Decoder):
    """Encoder over phonemes, decoder over groups of frames, postnet.

    The defaults are CAB's network: 54,402,819 parameters. The parameter count implies 4 heads (fairseq's default) where
    Table 14 prints 8. It is pre-norm with a final norm in both stacks, and ReLU.

    Args:
        make_attention: builds the attention layers: encoder self (NS), decoder self (CS), decoder cross (CC).
        num_tokens: size of the phoneme set; the published parameter count implies 80.
        num_mels, frames_per_step: mel bins per frame, and frames per decoder step.
        embed_dim, num_heads, ffn_dim, encoder_layers, decoder_layers: sizes of the stacks.
        dropout: applied to embeddings, branch outputs and inside the feed-forward layers.
        attention_dropout: applied to attention weights.
        prenet_dim: width of the decoder's prenet.
        prenet_dropout: dropout of the prenet, active in evaluation as well.
        postnet_dim, postnet_kernel_size: width of the postnet, and kernel size in decoder steps.
        encoder_convs: number of convolutions before the encoder.
        scale_embedding: multiply embedded phonemes by sqrt(embed_dim); with ``encoder_convs``, their batch norms set
            the scale.
        checkpoint_activations: recompute layers in the backward pass instead of storing their activations.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        num_tokens: int = 80,
        num_mels: int = 80,
        frames_per_step: int = 4,
        embed_dim: int = 512,
        num_heads: int = 4,
        ffn_dim: int = 2048,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        prenet_dim: int = 256,
        prenet_dropout: float = 0.5,
        postnet_dim: int = 512,
        postnet_kernel_size: int = 5,
        encoder_convs: int = 3,
        scale_embedding: bool = False,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.num_tokens, self.num_mels, self.frames_per_step = num_tokens, num_mels, frames_per_step
        self.checkpoint_activations = checkpoint_activations
        width = num_mels * frames_per_step

        layer = partial(
            TransformerLayer,
            make_attention,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            norm="pre",
            activation="relu",
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=dropout,
        )

        self.embedding = nn.Embedding(num_tokens, embed_dim)
        nn.init.normal_(self.embedding.weight, std=embed_dim**-0.5)
        self.embedding_scale = math.sqrt(embed_dim) if scale_embedding else 1.0
        self.encoder_convs = nn.ModuleList(
            ConvNorm(embed_dim, embed_dim, 5, activation="relu", dropout=0.5) for _ in range(encoder_convs)
        )
        self.encoder_projection = nn.Linear(embed_dim, embed_dim)
        self.encoder_positions = ScaledPositions(embed_dim)
        self.encoder_layers = stack(encoder_layers, partial(layer, Pattern.NS))
        self.encoder_norm = nn.LayerNorm(embed_dim)
        self.prenet = Prenet(width, prenet_dim, embed_dim, prenet_dropout)
        self.decoder_positions = ScaledPositions(embed_dim)
        self.decoder_layers = stack(decoder_layers, partial(layer, Pattern.CS, cross=Pattern.CC))
        self.decoder_norm = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(embed_dim, width)
        self.stop = nn.Linear(embed_dim, 1)
        self.postnet = Postnet(width, hidden=postnet_dim, kernel_size=postnet_kernel_size)

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None,
        frames: Tensor,
        frame_padding: Tensor | None = None,
    ) -> SpokenSteps:
        """Predict each group of frames from the tokens and the preceding groups.

        Args:
            tokens: [B, T] ids.
            padding_mask: [B, T], True = padding.
            frames: [B, S, r * bins] target groups of frames; the decoder sees them shifted by one step.
            frame_padding: [B, S], True = padding, on either side.
        """
        memory = self.encode(tokens, padding_mask)
        self._check_frames(len(tokens), frames, frame_padding)
        shifted = F.pad(hide(frames, frame_padding)[:, :-1], (0, 0, 1, 0))
        index = number_positions(frames, frame_padding)
        x = self.dropout(self.decoder_positions(self.prenet(shifted), index))
        x = self.decoder_layers(x, frame_padding, memory, padding_mask, run_layer=self.run_layer)
        x = self.decoder_norm(x)
        predicted = self.output(x)
        return SpokenSteps(predicted, self.postnet(predicted, frame_padding), self.stop(x).squeeze(-1))

    def _check_frames(self, batch_size: int, frames: Tensor, frame_padding: Tensor | None) -> None:
        width = self.num_mels * self.frames_per_step
        fits = frames.dim() == 3 and frames.shape[1] > 0 and frames.shape[::2] == (batch_size, width)
        if not fits or not frames.is_floating_point():
            raise UserError(
                f"frames must be floating point [{batch_size}, steps, {width}] ({self.frames_per_step} frames of "
                f"{self.num_mels} bins a step), got {frames.dtype} {list(frames.shape)}"
            )
        check_padding("frame_padding", frame_padding, frames)

    def encode(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Encode phoneme ids [B, T] as the decoder's memory [B, T, D]."""
        check_tokens("tokens", tokens, padding_mask, vocab_size=self.num_tokens, max_length=None)
        x = self.embedding_scale * self.embedding(tokens)
        for conv in self.encoder_convs:
            x = conv(x, padding_mask)
        x = self.encoder_positions(self.encoder_projection(x), number_positions(tokens, padding_mask))
        x = self.encoder_layers(self.dropout(x), padding_mask, run_layer=self.run_layer)
        return self.encoder_norm(x)

    def init_state(self, tokens: Tensor, padding_mask: Tensor | None = None) -> DecodingState:
        """Return the state before the first step; the phonemes are encoded and projected here, once."""
        memory = self.encode(tokens, padding_mask)
        return self.start_layers(len(tokens), memory, memory, padding_mask)

    def step(self, frames: Tensor, state: DecodingState) -> tuple[Tensor, Tensor, DecodingState]:
        """Return the next group of frames [B, r * bins] and its stop logit [B], given the previous group."""
        x = self.dropout(self.decoder_positions(self.prenet(frames.unsqueeze(1)), state.lengths.unsqueeze(1)))
        x, state = self.read_layers(x, state)
        x = self.decoder_norm(x)[:, 0]
        return self.output(x), self.stop(x).squeeze(-1), state

    @torch.no_grad()
    def synthesize(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        max_steps: int = 1200,
        threshold: float = 0.5,
        prompt_frames: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Generate frames; a sequence ends with the first step whose stop probability exceeds ``threshold``.

        Args:
            tokens, padding_mask: as in :meth:`encode`.
            max_steps: maximum number of groups of frames, including the prompt.
            threshold: stop probability that ends a sequence.
            prompt_frames: [B, S0, r * bins] prompt: groups of frames that precede the generated ones.

        Returns:
            Frames [B, S * r, bins], zero after the end, and the number of frames per sequence [B].
        """
        state = self.init_state(tokens, padding_mask)
        batch_size, width = len(tokens), self.num_mels * self.frames_per_step
        previous = self.output.weight.new_zeros(batch_size, width)
        output = previous.new_zeros(batch_size, max_steps, width)
        num_steps = torch.full((batch_size,), max_steps, device=tokens.device)
        rows = torch.arange(batch_size, device=tokens.device)  # unfinished sequences; finished ones are dropped
        for step in range(max_steps):
            previous, stop, state = self.step(previous, state)
            if prompt_frames is not None and step < prompt_frames.shape[1]:
                previous, stop = prompt_frames[:, step].to(previous.dtype), torch.full_like(stop, -torch.inf)
            output[rows, step] = previous.to(output.dtype)
            ends = stop.float().sigmoid() > threshold
            if bool(ends.any()):
                num_steps[rows[ends]] = step + 1
                going = (~ends).nonzero().squeeze(1)
                if len(going) == 0:
                    break
                rows, previous, state = rows[going], previous[going], state.select(going)
        length = int(num_steps.max())
        padding = torch.arange(length, device=tokens.device) >= num_steps.unsqueeze(1)
        frames = hide(self.postnet(output[:, :length], padding), padding)
        frames = frames.unflatten(-1, (self.frames_per_step, self.num_mels)).flatten(1, 2)
        return frames, num_steps * self.frames_per_step


class Prenet(nn.Module):
    """Linear and ReLU twice with dropout that is always active, then a linear layer to the decoder's width.

    The dropout, 0.5 as published, makes the autoregressive decoder attend to the text (Shen et al. 2018, section 2.2).
    """

    def __init__(self, width: int, hidden: int, embed_dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.maps = nn.ModuleList([nn.Linear(width, hidden), nn.Linear(hidden, hidden)])
        self.output = nn.Linear(hidden, embed_dim)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames
        for linear in self.maps:
            x = F.dropout(F.relu(linear(x)), self.dropout, training=True)
        return self.output(x)
