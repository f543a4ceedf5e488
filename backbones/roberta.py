"""RoBERTa-base (Liu et al. 2019) as in fairseq: a masked language model, used for MLM. Attention layers: NS."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.token_losses import token_losses
from backbones.layers.tokens import LearnedPositions, NormKind, TokenEmbedding, number_positions
from backbones.layers.transformer import Activation, FeedForwardKind, LayerStack, TransformerLayer, stack
from cab import Attention, Backbone, Pattern, register_backbone
from cab.backbone import AttentionFactory

BERT_STD = 0.02  # of initial weights


class RoBERTaEncoder(Backbone):
    """Embeddings and bidirectional layers of :class:`RoBERTa`, with its arguments, and without a head."""

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int,
        max_length: int,
        embed_dim: int,
        num_layers: int,
        dropout: float,
        norm: NormKind,
        checkpoint_activations: bool,
        **options: Any,
    ) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.embedding = TokenEmbedding(
            vocab_size,
            embed_dim,
            positions=LearnedPositions(max_length, embed_dim, offset=2),
            norm="layer",
            dropout=dropout,
        )

        options |= {"embed_dim": embed_dim, "dropout": dropout, "norm": "post", "norm_kind": norm}
        self.layers = self.make_layers(num_layers, make_attention, **options)

    def make_layers(self, num_layers: int, make_attention: AttentionFactory, **options: Any) -> LayerStack:
        """Build the layers from the arguments of :class:`TransformerLayer`."""
        return stack(num_layers, partial(TransformerLayer, make_attention, Pattern.NS, **options))

    def encode(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Encode tokens [B, N] as [B, N, D]."""
        self.embedding.check("tokens", tokens, padding_mask)
        x = self.embedding(tokens, number_positions(tokens, padding_mask))
        return self.layers(x, padding_mask, run_layer=self.run_layer)


@register_backbone("roberta", paper="Liu et al. 2019")
class RoBERTa(RoBERTaEncoder):
    """Predict the token at each position from both sides.

    The defaults are CAB's network (Table 14, 124,535,177 parameters): the LM dictionary and ``<mask>``, 2,048
    positions. It has a layer norm after the embedding and post-norm layers, and a linear layer before the tied output
    table. The initialization is BERT's.

    The released RoBERTa-base (:func:`backbones.pretrained.load_fairseq_roberta`) has ``vocab_size=50265,
    max_length=512``.

    Args:
        make_attention: builds the attention layers, one NS per layer.
        vocab_size: size of the dictionary, including the mask.
        max_length: number of learned positions. The table has two more rows, as in fairseq.
        embed_dim, num_heads, ffn_dim, num_layers: sizes of the stack.
        dropout: applied to embeddings and branch outputs.
        attention_dropout: applied to attention weights.
        activation: of the feed-forward layers, as in GPT-2.
        norm: ``layer``, or ``simplerms`` as in TransNormer: the layers' norms without weights.
        feed_forward: ``plain``; ``glu``, gated with a third linear layer; or ``none``, as in FLASH.
        init_std: by default, tables and all linear layers, attentions included, are drawn from N(0, 0.02^2), as in
            fairseq, with zero biases. This is too small for narrow networks: at width 64 they do not learn retrieval. A
            number replaces 0.02, outside the attentions only; 1/8 suits width 64.
        checkpoint_activations: recompute layers in the backward pass instead of storing their activations.
    """

    gives_losses = True

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int = 48521,
        max_length: int = 2048,
        embed_dim: int = 768,
        num_heads: int = 12,
        ffn_dim: int = 3072,
        num_layers: int = 12,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation: Activation = "gelu",
        norm: NormKind = "layer",
        feed_forward: FeedForwardKind = "plain",
        init_std: float | None = None,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__(
            make_attention=make_attention,
            vocab_size=vocab_size,
            max_length=max_length,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            num_layers=num_layers,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation=activation,
            norm=norm,
            feed_forward=feed_forward,
            checkpoint_activations=checkpoint_activations,
        )
        self.head = nn.Linear(embed_dim, embed_dim)
        self.head_norm = nn.LayerNorm(embed_dim)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))
        initialize_as_bert(self, init_std)

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        selected: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return the token logits, or the losses of ``targets`` without materializing all logits.

        Args:
            tokens: [B, N] ids.
            padding_mask: [B, N], True = padding, anywhere; positions count real tokens only.
            selected: [K] indices into the flattened tokens, whose logits alone are computed.
            targets: [B, N] or [K] ids of the tokens to predict.

        Returns:
            [B, N, V], or [K, V] with ``selected``; with ``targets`` their negative log-likelihoods.
        """
        x = self.encode(tokens, padding_mask)
        if selected is not None:
            x = x.flatten(0, 1).index_select(0, selected)
        x = self.head_norm(F.gelu(self.head(x)))
        table, bias = self.embedding.tokens.weight, self.output_bias
        return F.linear(x, table, bias) if targets is None else token_losses(x, table, bias, targets)


def initialize_as_bert(network: nn.Module, std: float | None) -> None:
    """Draw tables and linear weights from N(0, 0.02^2), or outside the attentions from N(0, std^2); zero the biases."""
    attentions = [] if std is None else [module for module in network.modules() if isinstance(module, Attention)]
    left_alone = {module for attention in attentions for module in attention.modules()}
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module not in left_alone:
            nn.init.normal_(module.weight, std=BERT_STD if std is None else std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
