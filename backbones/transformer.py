"""Transformer (Vaswani et al. 2017) as in ParaGen: encoder and decoder, used for Sum. Attention layers: NS, CS, CC."""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.decoder import DecodingState, TokenDecoder
from backbones.layers.tokens import LearnedPositions, TokenEmbedding, number_positions
from backbones.layers.transformer import TransformerLayer, stack
from cab import Pattern, register_backbone
from cab.backbone import AttentionFactory


@register_backbone("transformer", paper="Vaswani et al. 2017")
class Transformer(TokenDecoder):
    """Predict the next target token from the source and the target tokens so far.

    The defaults are CAB's network (Table 14): post-norm without final norms, GELU, learned positions, embeddings times
    sqrt(embed_dim), and separate tables for source, target and output. It has 123,704,832 parameters, which rounds to
    the printed 123.70 M; the released configuration also has layer norms after the two embeddings
    (``embed_layer_norm``), 2,048 parameters more. That configuration does not set attention dropout, so the published
    run had none; Table 4 prints 0.1.

    All tables are drawn from N(0, 1 / embed_dim), feed-forward layers are Xavier uniform, and attentions use their own
    initialization.

    Args:
        make_attention: builds the attention layers: encoder self (NS), decoder self (CS), decoder cross (CC).
        vocab_size: size of the dictionary.
        max_source_length, max_target_length: numbers of learned positions.
        embed_dim, num_heads, ffn_dim, encoder_layers, decoder_layers: sizes of the stacks.
        dropout: applied to embeddings and branch outputs.
        attention_dropout: applied to attention weights.
        embed_layer_norm: layer norms after the embeddings.
        share_embeddings: one table for source, target and output.
        checkpoint_activations: recompute layers in the backward pass instead of storing their activations.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int = 50265,
        max_source_length: int = 4096,
        max_target_length: int = 512,
        embed_dim: int = 512,
        num_heads: int = 8,
        ffn_dim: int = 2048,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        embed_layer_norm: bool = False,
        share_embeddings: bool = False,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations

        def embedding(max_length: int) -> TokenEmbedding:
            return TokenEmbedding(
                vocab_size,
                embed_dim,
                positions=LearnedPositions(max_length, embed_dim),
                scale=math.sqrt(embed_dim),
                norm="layer" if embed_layer_norm else None,
                dropout=dropout,
            )

        layer = partial(
            TransformerLayer,
            make_attention,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            norm="post",
            activation="gelu",
            dropout=dropout,
            attention_dropout=attention_dropout,
        )

        self.encoder_embedding = embedding(max_source_length)
        self.encoder_layers = stack(encoder_layers, partial(layer, Pattern.NS))
        self.decoder_embedding = embedding(max_target_length)
        self.decoder_layers = stack(decoder_layers, partial(layer, Pattern.CS, cross=Pattern.CC))
        self.output = nn.Linear(embed_dim, vocab_size, bias=False)
        nn.init.normal_(self.output.weight, std=embed_dim**-0.5)
        if share_embeddings:
            self.decoder_embedding.tokens = self.encoder_embedding.tokens
            self.output.weight = self.encoder_embedding.tokens.weight

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_padding_mask: Tensor | None = None,
        target_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the token after each target token.

        Args:
            source: [B, M] ids.
            target: [B, N] ids, beginning with the token that starts every target.
            source_padding_mask, target_padding_mask: [B, M] and [B, N], True = padding, anywhere; positions count real
                tokens only.

        Returns:
            [B, N, V].
        """
        memory = self.encode(source, source_padding_mask)
        embedding = self.decoder_embedding
        embedding.check("target", target, target_padding_mask)
        x = embedding(target, number_positions(target, target_padding_mask))
        x = self.decoder_layers(x, target_padding_mask, memory, source_padding_mask, run_layer=self.run_layer)
        return self.predict(x)

    def encode(self, source: Tensor, source_padding_mask: Tensor | None = None) -> Tensor:
        """Encode source ids [B, M] as the decoder's memory [B, M, D]."""
        embedding = self.encoder_embedding
        embedding.check("source", source, source_padding_mask)
        x = embedding(source, number_positions(source, source_padding_mask))
        return self.encoder_layers(x, source_padding_mask, run_layer=self.run_layer)

    def predict(self, x: Tensor) -> Tensor:
        return F.linear(x, self.output.weight)

    def init_state(self, source: Tensor, source_padding_mask: Tensor | None = None) -> DecodingState:
        """Return the state before the first target token; the source is encoded and projected here, once."""
        memory = self.encode(source, source_padding_mask)
        return self.start_decoding(len(source), memory, source_padding_mask)
