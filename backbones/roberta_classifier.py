"""RoBERTa-base with a classification head, as fairseq fine-tunes it, used for GLUE. Attention layers: NS."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from backbones.layers.tokens import NormKind
from backbones.layers.transformer import Activation, FeedForwardKind
from backbones.roberta import RoBERTaEncoder, initialize_as_bert
from cab import UserError, register_backbone
from cab.backbone import AttentionFactory


class ClassifierHead(nn.Module):
    """Dropout, linear, tanh, dropout, linear: fairseq's ``RobertaClassificationHead``."""

    def __init__(self, embed_dim: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dense = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors [B, D] to logits [B, C]."""
        return self.out(self.dropout(torch.tanh(self.dense(self.dropout(x)))))


@register_backbone("roberta_classifier", paper="Liu et al. 2019")
class RoBERTaClassifier(RoBERTaEncoder):
    """Classify a token sequence from the vector of its first token.

    Embeddings and layers are those of :class:`backbones.roberta.RoBERTa`, from which :meth:`take_pretrained` copies
    them; there is no language model head.

    Args:
        make_attention, vocab_size, max_length, embed_dim, num_heads, ffn_dim, num_layers, dropout, attention_dropout,
        activation, norm, feed_forward, init_std, checkpoint_activations: as for ``roberta``.
        num_classes: number of logits; 1 for regression.
        head_dropout: dropout in the head, 0 as in fairseq's pooler.
    """

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int = 50265,
        max_length: int = 512,
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
        num_classes: int = 2,
        head_dropout: float = 0.0,
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
        self.classifier = ClassifierHead(embed_dim, num_classes, head_dropout)
        initialize_as_bert(self, init_std)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Return the logits [B, C] of right-padded token sequences [B, N]."""
        return self.classifier(self.encode(tokens, padding_mask)[:, 0])

    def take_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """Load embeddings and layers from the state dict of a ``roberta``; the head is left unchanged."""
        shared = {name: x.shape for name, x in self.state_dict().items() if not name.startswith("classifier.")}
        for name, shape in shared.items():
            pretrained = weights[name].shape if name in weights else None
            if pretrained != shape:
                problem = "missing" if pretrained is None else f"of {list(pretrained)}"
                raise UserError(f"{name} is {problem}, but this network needs {list(shape)}")
        self.load_state_dict({name: weights[name] for name in shared}, strict=False)
