"""GPT-2 (Radford et al. 2019) as in fairseq: a causal language model, used for LM. Attention layers: CS.

Its recurrent memory has the inputs of the layers at earlier blocks (Dai et al. 2019, section 3.2). Shapes: B sequences,
L layers, P = memory length, N tokens per block, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.layers.decoder import DecodingState, TokenDecoder
from backbones.layers.token_losses import token_losses
from backbones.layers.tokens import (
    LearnedPositions,
    NoPositions,
    NormKind,
    SinusoidalPositions,
    TokenEmbedding,
    make_norm,
    number_positions,
)
from backbones.layers.transformer import (
    Activation,
    FeedForwardKind,
    LayerStack,
    ResidualKind,
    RunLayer,
    TransformerLayer,
    stack,
)
from cab import Pattern, UserError, register_backbone
from cab.attention import DecodeState
from cab.backbone import AttentionFactory

POSITIONS: dict[str, Callable[[int, int], SinusoidalPositions | LearnedPositions | NoPositions]] = {
    "sinusoidal": lambda embed_dim, _: SinusoidalPositions(embed_dim),
    "learned": lambda embed_dim, max_length: LearnedPositions(max_length, embed_dim),
    "none": lambda *_: NoPositions(),
}


@register_backbone("gpt2", paper="Radford et al. 2019")
class GPT2(TokenDecoder):
    """Predict the next token from all tokens up to the current one.

    The defaults are CAB's network (Table 14, 122,319,360 parameters): fairseq's ``transformer_lm_gpt`` on the BPE types
    that occur in PG-19. It is pre-norm with a final layer norm, biases, GELU and tied embeddings. The embedding table
    is drawn from N(0, 1 / embed_dim), feed-forward layers are Xavier uniform, and attentions use their own
    initialization.

    The released GPT-2 (:func:`backbones.pretrained.load_huggingface_gpt2`) has ``vocab_size=50257, positions="learned",
    max_length=1024, scale_embedding=False, activation="gelu_tanh"``.

    Args:
        make_attention: builds the attention layers, one CS per layer.
        vocab_size: size of the dictionary.
        embed_dim, num_heads, ffn_dim, num_layers: sizes of the stack.
        dropout: applied to embeddings and branch outputs.
        attention_dropout: applied to attention weights.
        positions: ``sinusoidal``, for any length; ``learned``; or ``none``, for attentions with relative positions.
        max_length: number of learned positions.
        scale_embedding: multiply embeddings by sqrt(embed_dim).
        activation: ``relu``, ``gelu``, ``gelu_tanh``, ``swish`` or ``identity``.
        norm: ``layer``; ``rms``; or ``simplerms`` as in TransNormer's language model: weightless norms, with an
            additional one after the embedding.
        feed_forward: ``plain``; ``glu``, gated with a third linear layer; ``glu_without_bias``; or ``none``, as in
            FLASH.
        residual: ``plain`` sums, or ``gtrxl`` gates (:class:`backbones.layers.transformer.GRUGate`).
        gate_bias: initial bias of the gates; the larger, the closer a layer starts to the identity.
        checkpoint_activations: recompute layers in the backward pass instead of storing their activations.
    """

    gives_losses = True

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int = 48520,
        embed_dim: int = 768,
        num_heads: int = 12,
        ffn_dim: int = 3072,
        num_layers: int = 12,
        dropout: float = 0.0,
        attention_dropout: float = 0.1,
        positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal",
        max_length: int = 1024,
        scale_embedding: bool = True,
        activation: Activation = "gelu",
        norm: NormKind = "layer",
        feed_forward: FeedForwardKind = "plain",
        residual: ResidualKind = "plain",
        gate_bias: float = 2.0,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.decoder_embedding = TokenEmbedding(
            vocab_size,
            embed_dim,
            positions=POSITIONS[positions](embed_dim, max_length),
            scale=math.sqrt(embed_dim) if scale_embedding else 1.0,
            norm="simplerms" if norm == "simplerms" else None,
            dropout=dropout,
        )
        self.decoder_layers = self.make_layers(
            num_layers,
            make_attention,
            Pattern.CS,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            norm="pre",
            norm_kind=norm,
            feed_forward=feed_forward,
            residual=residual,
            gate_bias=gate_bias,
            activation=activation,
            dropout=dropout,
            attention_dropout=attention_dropout,
        )
        self.final_norm = make_norm(norm, embed_dim)

    def make_layers(self, num_layers: int, *arguments: Any, **options: Any) -> LayerStack:
        """Build the layers from the arguments of :class:`TransformerLayer`."""
        return stack(num_layers, partial(TransformerLayer, *arguments, **options))

    def apply_layers(self, x: Tensor, _index: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Apply the layers to embeddings [B, N, D] of tokens at positions [B, N]."""
        return self.decoder_layers(x, padding_mask, run_layer=self.run_layer)

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        selected: Tensor | None = None,
        targets: Tensor | None = None,
        mems: DecodeState | None = None,
    ) -> Tensor | tuple[Tensor, DecodeState]:
        """Return the logits of each next token, or the losses of ``targets`` without materializing all logits.

        Args:
            tokens: [B, N] ids.
            padding_mask: [B, N], True = padding, anywhere; positions count real tokens only.
            selected: [K] indices into the flattened tokens, whose logits alone are computed.
            targets: [B, N] ids of the next tokens, or [K] with ``selected``.
            mems: stored inputs of the layers at earlier tokens, which the attentions also read, without gradient;
                from :meth:`init_mems` or an earlier call. Positions count from the first of ``tokens``.

        Returns:
            [B, N, V], or [K, V] with ``selected``; with ``targets`` their negative log-likelihoods; and the new memory
            if one was given.
        """
        embedding = self.decoder_embedding
        embedding.check("tokens", tokens, padding_mask)
        index = number_positions(tokens, padding_mask)
        x = embedding(tokens, index)
        if mems is None:
            x = self.apply_layers(x, index, padding_mask)
        else:
            x, mems = read_after(self.decoder_layers, mems, x, padding_mask, run_layer=self.run_layer)
        if selected is not None:
            x = x.flatten(0, 1).index_select(0, selected)
        x = self.finish(x)
        output = self.predict(x) if targets is None else token_losses(x, self.output_weight, None, targets)
        return output if mems is None else (output, mems)

    def init_mems(self, batch_size: int, num_tokens: int) -> DecodeState:
        """Return an empty recurrent memory for at most ``num_tokens`` tokens."""
        return init_mems(self.decoder_layers, batch_size, num_tokens, self.decoder_embedding.tokens.weight.detach())

    def reset_mems(self, mems: DecodeState, rows: Tensor) -> DecodeState:
        """Clear the memory of ``rows``, bool [B]."""
        return reset_mems(mems, rows)

    def finish(self, x: Tensor) -> Tensor:
        return self.final_norm(x)

    def predict(self, x: Tensor) -> Tensor:
        return F.linear(x, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """Return the matrix [V, D] of the logits."""
        return self.decoder_embedding.tokens.weight

    def init_state(self, batch_size: int) -> DecodingState:
        """Return the decoding state before the first token of ``batch_size`` sequences."""
        return self.start_decoding(batch_size)


MEMORY_INPUTS, MEMORY_COUNT = "inputs", "count"
"""[B, L, P, D], right-aligned; [B], number of valid tokens."""


def init_mems(layers: LayerStack, batch_size: int, num_tokens: int, like: Tensor) -> DecodeState:
    """Return an empty memory; ``like`` [..., D] has the device and dtype of the layers' inputs."""
    if type(layers) is not LayerStack:
        raise UserError("only plain layers remember tokens: use backbone=gpt2, or llama without depth_block")
    inputs = like.new_zeros(batch_size, len(layers), num_tokens, like.shape[-1])
    return {MEMORY_INPUTS: inputs, MEMORY_COUNT: torch.zeros(batch_size, dtype=torch.long, device=like.device)}


def reset_mems(mems: DecodeState, rows: Tensor) -> DecodeState:
    """Clear the memory of ``rows``, bool [B]."""
    return {**mems, MEMORY_COUNT: mems[MEMORY_COUNT].masked_fill(rows, 0)}


def read_after(
    layers: LayerStack, mems: DecodeState, x: Tensor, padding_mask: Tensor | None, *, run_layer: RunLayer
) -> tuple[Tensor, DecodeState]:
    """Apply the layers to a block ``x`` [B, N, D] that follows ``mems``; return the outputs and the new memory."""
    padding = x.new_zeros(x.shape[:2], dtype=torch.bool) if padding_mask is None else padding_mask
    empty = torch.arange(mems[MEMORY_INPUTS].shape[2], 0, -1, device=x.device) > mems[MEMORY_COUNT].unsqueeze(1)
    hidden = torch.cat([empty, padding], dim=1)
    inputs = []
    for layer, earlier in zip(
        layers, mems[MEMORY_INPUTS].masked_fill(empty[:, None, :, None], 0.0).unbind(dim=1), strict=True
    ):
        inputs.append(x.detach())
        x = run_layer(layer, x, hidden, None, None, earlier)
    return x, update_mems(mems, inputs, hidden)


def update_mems(mems: DecodeState, inputs: list[Tensor], hidden: Tensor) -> DecodeState:
    """Append a block's ``inputs`` [B, N, D] per layer to ``mems`` and retain the last P tokens.

    ``hidden``: bool [B, P + N], True for empty entries and padding.
    """
    num_tokens = mems[MEMORY_INPUTS].shape[2]
    order = (~hidden).to(torch.uint8).argsort(dim=1, stable=True)[:, hidden.shape[1] - num_tokens :]
    all_inputs = torch.cat([mems[MEMORY_INPUTS], torch.stack(inputs, dim=1)], dim=2)
    index = order[:, None, :, None].expand(-1, all_inputs.shape[1], -1, all_inputs.shape[3])
    return {MEMORY_INPUTS: all_inputs.gather(2, index), MEMORY_COUNT: (~hidden).sum(dim=1).clamp(max=num_tokens)}
