"""RoBERTa in blocks that halve the sequence: Funnel-Transformer (Dai et al. 2020). Attention layers: NS, NC."""

from __future__ import annotations

from typing import Any

from backbones.layers.funnel import funnel_layers
from backbones.layers.transformer import LayerStack
from backbones.roberta import RoBERTa
from backbones.roberta_classifier import RoBERTaClassifier
from cab import register_backbone
from cab.backbone import AttentionFactory


@register_backbone("roberta_funnel", paper="Dai et al. 2020", tasks={"mlm": "NS"})
class FunnelRoBERTa(RoBERTa):
    """RoBERTa whose ``num_layers`` layers form three blocks, followed by two layers at full length.

    Args: as for ``roberta``; the attention of a pooling layer has pattern NC.
    """

    def make_layers(self, num_layers: int, make_attention: AttentionFactory, **options: Any) -> LayerStack:
        return funnel_layers(num_layers, make_attention, decoder_layers=2, **options)


@register_backbone("roberta_funnel_classifier", paper="Dai et al. 2020", tasks={"glue": "NS"})
class FunnelRoBERTaClassifier(RoBERTaClassifier):
    """Classify a sequence from the first vector of the last block of a :class:`FunnelRoBERTa`, without its decoder.

    Args: as for ``roberta_classifier``.
    """

    def make_layers(self, num_layers: int, make_attention: AttentionFactory, **options: Any) -> LayerStack:
        return funnel_layers(num_layers, make_attention, decoder_layers=None, **options)
