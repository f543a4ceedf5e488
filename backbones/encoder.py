"""Classifier used by Skyformer on the Long Range Arena (Chen et al. 2021). Attention layers: NS."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from backbones.layers.tokens import LearnedPositions, TokenEmbedding
from backbones.layers.transformer import Activation, FeedForwardKind, TransformerLayer, stack
from cab import Backbone, Pattern, UserError, register_backbone
from cab.backbone import AttentionFactory


@register_backbone("encoder", paper="Chen et al. 2021")
class Encoder(Backbone):
    """Classify a sequence, or a pair of sequences.

    The defaults are the network of Skyformer's comparison: two pre-norm layers, learned positions, embedding tables
    drawn from N(0, 0.02^2), and linear layers with PyTorch's default initialization. The normalized output is averaged
    over the sequence and passed through linear, ReLU, linear. Both sequences of a pair a, b pass through the same
    layers, and the head reads [a, b, a * b, a - b].

    Args:
        make_attention: builds the attention layers, one NS per layer.
        vocab_size: number of symbols.
        max_length: number of learned positions.
        num_classes: number of classes.
        pairs: build the head for pairs (:meth:`compare`) instead of single sequences.
        embed_dim, num_heads, ffn_dim, num_layers: sizes of the stack; the hidden layer of the head has width
        ``ffn_dim``.
        dropout: applied to embeddings, to branch outputs and inside the feed-forward layer.
        attention_dropout: applied to attention weights.
        pooling: ``mean`` over the tokens that are not padding, or ``padded_mean`` as published: their sum divided by
            ``max_length``, so that the norm of the vector depends on the sequence length.
        activation, feed_forward: of the feed-forward layers, as for ``gpt2``.
        init_std: standard deviation of the embedding tables; small networks with short training need more than the
            published 0.02.
        checkpoint_activations: recompute layers in the backward pass instead of storing their activations.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int = 257,
        max_length: int = 4000,
        num_classes: int = 10,
        pairs: bool = False,
        embed_dim: int = 64,
        num_heads: int = 2,
        ffn_dim: int = 128,
        num_layers: int = 2,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation: Activation = "gelu",
        feed_forward: FeedForwardKind = "plain",
        pooling: Literal["mean", "padded_mean"] = "mean",
        init_std: float = 0.02,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.pairs, self.pooling, self.max_length = pairs, pooling, max_length
        positions = LearnedPositions(max_length, embed_dim)
        self.embedding = TokenEmbedding(vocab_size, embed_dim, positions=positions, dropout=dropout)
        layer = partial(
            TransformerLayer,
            make_attention,
            Pattern.NS,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            norm="pre",
            activation=activation,
            feed_forward=feed_forward,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=dropout,
            is_xavier=False,
        )
        self.layers = stack(num_layers, layer)
        self.final_norm = nn.LayerNorm(embed_dim)
        width = 4 * embed_dim if pairs else embed_dim
        self.head = nn.Sequential(nn.Linear(width, ffn_dim), nn.ReLU(), nn.Linear(ffn_dim, num_classes))
        for table in (self.embedding.tokens, positions.table):
            nn.init.normal_(table.weight, std=init_std)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Return the class logits [B, C] of sequences.

        Args:
            tokens: [B, N] ids; padding counts in the position numbers.
            padding_mask: [B, N], True = padding.
        """
        if self.pairs:
            raise UserError("this encoder reads pairs: build it with backbone.pairs=false")
        return self.head(self._vector(tokens, padding_mask))

    def compare(
        self,
        first: Tensor,
        second: Tensor,
        first_padding_mask: Tensor | None = None,
        second_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, C] of pairs of sequences [B, N] and [B, M]; see :meth:`forward`."""
        if not self.pairs:
            raise UserError("this encoder reads single sequences: build it with backbone.pairs=true")
        a, b = self._vector(first, first_padding_mask), self._vector(second, second_padding_mask)
        return self.head(torch.cat([a, b, a * b, a - b], dim=-1))

    def _vector(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Encode tokens [B, N] as one vector [B, D] per sequence."""
        self.embedding.check("tokens", tokens, padding_mask)
        index = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = self.layers(self.embedding(tokens, index), padding_mask, run_layer=self.run_layer)
        x = self.final_norm(x)
        count: float | Tensor = float(x.shape[1])
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
            count = (~padding_mask).sum(dim=1, keepdim=True)
        return x.sum(dim=1) / (self.max_length if self.pooling == "padded_mean" else count)
