"""RoBERTa-base (Liu et al. 2019) as fairseq builds it: a masked language model. Used for MLM; slots NS.

:class:`RoBERTaEncoder` is what it shares with the classifier that is fine-tuned from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.funnel import FunnelStack, PoolingLayer, check_blocks, pooling_layers
from backbones.layers.token_losses import token_losses
from backbones.layers.tokens import LearnedPositions, TokenEmbedding, check_tokens, number_positions
from backbones.layers.transformer import LayerStack, TransformerLayer, stack
from cab import Attention, Backbone, LayerPosition, Pattern, register_backbone
from cab.backbone import AttentionFactory

BERT_STD = 0.02


class RoBERTaEncoder(Backbone):
    """Vectors of the tokens of a row, each of which sees all of them: tables and layers, without a head.

    The options are :class:`RoBERTa`'s.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int,
        max_length: int,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        num_layers: int,
        dropout: float,
        attention_dropout: float,
        activation: str,
        norm: str,
        feed_forward: str,
        funnel_blocks: Sequence[int] | None,
        funnel_decoder_layers: int | None,
        checkpoint_activations: bool,
    ) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        blocks = check_blocks(funnel_blocks, num_layers, max_length)
        self.layer_stack = LayerStack() if len(blocks) == 1 else FunnelStack(blocks, funnel_decoder_layers)
        self.embedding = TokenEmbedding(
            vocab_size,
            embed_dim,
            positions=LearnedPositions(max_length, embed_dim, offset=2),
            norm="layer",
            dropout=dropout,
        )

        def layer(*, layer_position: LayerPosition) -> TransformerLayer:
            pools = layer_position.index in pooling_layers(blocks)
            return (PoolingLayer if pools else TransformerLayer)(
                make_attention,
                Pattern.NC if pools else Pattern.NS,
                embed_dim=embed_dim,
                num_heads=num_heads,
                ffn_dim=ffn_dim,
                norm="post",
                norm_kind=norm,
                feed_forward=feed_forward,
                activation=activation,
                dropout=dropout,
                attention_dropout=attention_dropout,
                layer_position=layer_position,
            )

        self.layers = stack(self.layer_stack.count(num_layers), layer)

    def encode(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Vectors [B, N, D] of tokens [B, N]; without a decoder after funnel blocks, [B, P, D] of pooled ones.

        :meth:`RoBERTa.forward` says what is refused.
        """
        embedding = self.embedding
        check_tokens(
            "tokens",
            tokens,
            padding_mask,
            vocab_size=embedding.vocab_size,
            max_length=embedding.positions.max_length,
        )
        x = embedding(tokens, number_positions(tokens, padding_mask))
        return self.layer_stack(self.run_layer, self.layers, x, padding_mask)


@register_backbone("roberta", paper="Liu et al. 2019")
class RoBERTa(RoBERTaEncoder):
    """Logits of the token at each place, from the tokens on both sides.

    The defaults are CAB's network (Table 14, 124,535,177 parameters): the LM dictionary and ``<mask>``, 2,048
    positions. Layer norm after the embedding and after each branch; an output map of its own before the shared
    table. Weights start as BERT's.

    The released RoBERTa-base (:func:`backbones.pretrained.load_fairseq_roberta`) has ``vocab_size=50265,
    max_length=512``.

    Args:
        slots: fills the attention slots, one a layer: NS, or NC in a layer that pools.
        vocab_size: tokens of the dictionary, the mask included.
        max_length: number of learned positions. The table has two rows more, as in fairseq.
        embed_dim, num_heads, ffn_dim, num_layers: as usual.
        dropout: of embeddings and branches.
        attention_dropout: of attention weights.
        activation: of the feed-forward maps, as in GPT-2.
        norm: ``layer``, or ``simplerms`` as in TransNormer's network: the layers' norms without weights.
        feed_forward: ``plain``, or ``glu`` with a third map, whose activation is the gate's.
        init_std: the weights of tables and of all linear maps, the attentions' too, are drawn from N(0, 0.02^2), as in
            fairseq, and biases are zero. That suits its width: a network of width 64 does not learn to look anything
            up from it. A number is used in place of 0.02, outside the attentions alone; 1/8 suits width 64.
        funnel_blocks: the layers of each block, as [4,4,4] of 12, between which the sequence is halved
            (:mod:`backbones.layers.funnel`); not given, it never is.
        funnel_decoder_layers: of funnel blocks, how many layers come after them, at full length again.
        checkpoint_activations: recompute layers in the backward pass instead of keeping their activations.
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
        activation: str = "gelu",
        norm: str = "layer",
        feed_forward: str = "plain",
        init_std: float | None = None,
        funnel_blocks: Sequence[int] | None = None,
        funnel_decoder_layers: int = 2,
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
            funnel_blocks=funnel_blocks,
            funnel_decoder_layers=funnel_decoder_layers,
            checkpoint_activations=checkpoint_activations,
        )
        self.head = nn.Linear(embed_dim, embed_dim)
        self.head_norm = nn.LayerNorm(embed_dim)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))
        initialise_as_bert(self, init_std)

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        selected: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Logits of the token at each place, or at ``selected`` places only, which saves most of their memory; or how
        unlikely ``targets`` are, for which they never are in memory.

        Args:
            tokens: [B, N] ids.
            padding_mask: [B, N], True = padding, wherever it stands; positions count real tokens only.
            selected: [K] places, as numbers in the flattened tokens: ``mask.flatten().nonzero().squeeze(1)``.
            targets: ids of the tokens that stand there, [B, N] or [K].

        Returns:
            [B, N, V], or [K, V] with ``selected``; with ``targets`` their negative log-likelihoods.

        Raises:
            ValueError: tokens or a mask that do not fit, a row without a token, more tokens than positions.
        """
        x = self.encode(tokens, padding_mask)
        if selected is not None:
            x = x.flatten(0, 1).index_select(0, selected)
        x = self.head_norm(F.gelu(self.head(x)))
        table, bias = self.embedding.tokens.weight, self.output_bias
        return F.linear(x, table, bias) if targets is None else token_losses(x, table, bias, targets)


def initialise_as_bert(network: nn.Module, std: float | None) -> None:
    """Tables and linear maps from N(0, 0.02^2), biases zero; with ``std`` from N(0, std^2) outside the attentions."""
    attentions = [] if std is None else [module for module in network.modules() if isinstance(module, Attention)]
    left_alone = {module for attention in attentions for module in attention.modules()}
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module not in left_alone:
            nn.init.normal_(module.weight, std=BERT_STD if std is None else std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
