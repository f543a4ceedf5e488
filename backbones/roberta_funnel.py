"""RoBERTa in blocks that halve the sequence: Funnel-Transformer (Dai et al. 2020). Attention layers: NS, NC.

A decoder can lead back to full length. Tokens are pooled in pairs. The first token, which represents the sequence in
classification, is not pooled. N tokens become 1 + ceil((N - 1) / 2); an unpaired last token is retained. Sequences must
be padded on the right; only real tokens are pooled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.transformer import LayerStack, RunLayer, TransformerLayer, stack
from backbones.roberta import RoBERTa
from backbones.roberta_classifier import RoBERTaClassifier
from cab import LayerPosition, Pattern, register_backbone
from cab.backbone import AttentionFactory
from cab.padding import clean_rows, restore_rows


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


FUNNEL_STRIDE = 2
"""Tokens per pooled vector."""
NUM_FUNNEL_BLOCKS = 3
"""Blocks of the published networks, such as 4 + 4 + 4 layers."""


class PoolingLayer(TransformerLayer):
    """First layer of a block after the first: pooled queries attend to the unpooled tokens.

    ``pool query only`` (section 2.2): h <- norm(h' + attention(h', h, h)), where h' is the pooled h. Queries and keys
    differ in length, so ``self_attention`` has pattern NC.
    """

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *_: Any) -> Tensor:
        """Map [B, N, D] to [B, P, D], P = 1 + ceil((N - 1) / 2); ``memory`` and ``mems`` are not supported."""
        pooled, read = pool(x, padding_mask), self.self_residual.enter(x)
        y = self.self_attention(
            self.self_residual.enter(pooled),
            read,
            read,
            query_padding_mask=pool_padding(padding_mask),
            key_padding_mask=padding_mask,
        )
        x = self.self_residual.leave(pooled, y)
        return self.feed(x)


class FunnelStack(LayerStack):
    """Blocks of layers, each after the first halving the sequence, and an optional decoder.

    The decoder consists of the last layers, at full length. It reads the sum of the first block's output at each token
    and the last block's output at the pooled vector of the token (section 2.3).

    Args:
        layers: the layers of the blocks, then those of the decoder.
        blocks: number of layers per block.
        has_decoder: whether there is a decoder, perhaps without layers; else the sequence stays at the last block's
            length.
    """

    def __init__(self, layers: Iterable[nn.Module], blocks: Sequence[int], *, has_decoder: bool) -> None:
        super().__init__(layers)
        self.blocks, self.has_decoder = blocks, has_decoder

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *_: Any, run_layer: RunLayer) -> Tensor:
        """Map [B, N, D] to [B, N, D], or without a decoder to P pooled vectors [B, P, D]."""
        x, padding_mask, order = clean_rows(x, padding_mask, compacts=True)
        remaining, pooled_mask = iter(self), padding_mask
        for layer in islice(remaining, self.blocks[0]):
            x = run_layer(layer, x, padding_mask)
        full = x
        for count in self.blocks[1:]:
            x, pooled_mask = run_layer(next(remaining), x, pooled_mask), pool_padding(pooled_mask)
            for layer in islice(remaining, count - 1):
                x = run_layer(layer, x, pooled_mask)
        if not self.has_decoder:
            return x
        x = full + repeat(x, FUNNEL_STRIDE ** (len(self.blocks) - 1), full.shape[1])
        for layer in remaining:
            x = run_layer(layer, x, padding_mask)
        return restore_rows(x, order)


def funnel_layers(
    num_layers: int, make_attention: AttentionFactory, *, decoder_layers: int | None, **options: Any
) -> LayerStack:
    """Build ``num_layers`` layers in at most three blocks of equal size, and the decoder.

    Attentions are NC in a pooling layer, the first of each block after the first, else NS. ``decoder_layers`` None
    leaves the sequence at the last block's length.
    """
    blocks = [len(range(start, num_layers, NUM_FUNNEL_BLOCKS)) for start in range(min(NUM_FUNNEL_BLOCKS, num_layers))]
    pooling = set(accumulate(blocks[:-1]))

    def layer(layer_position: LayerPosition) -> TransformerLayer:
        pools = layer_position.index in pooling
        kind, pattern = (PoolingLayer, Pattern.NC) if pools else (TransformerLayer, Pattern.NS)
        return kind(make_attention, pattern, layer_position=layer_position, **options)

    kind = partial(FunnelStack, blocks=blocks, has_decoder=decoder_layers is not None)
    return stack(num_layers + (decoder_layers or 0), layer, kind)


def pool(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Return the first token and the means of the pairs after it, [B, N, D] to [B, P, D]; zero if both are padding."""
    real = x.new_ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else ~padding_mask
    real = _pairs(real[:, 1:, None], False)
    tokens = _pairs(x[:, 1:], 0.0).where(real, 0.0)
    return torch.cat([x[:, :1], tokens.sum(dim=2) / real.sum(dim=2).clamp(min=1)], dim=1)


def pool_padding(padding_mask: Tensor | None) -> Tensor | None:
    """Pool a mask [B, N] to [B, P]; a pair is padding if both tokens are."""
    if padding_mask is None:
        return None
    rest = _pairs(padding_mask[:, 1:, None], True).all(dim=2).squeeze(2)
    return torch.cat([padding_mask[:, :1], rest], dim=1)


def repeat(x: Tensor, times: int, length: int) -> Tensor:
    """Upsample [B, P, D] to [B, N, D]: the first vector once, the others ``times`` times."""
    return torch.cat([x[:, :1], x[:, 1:].repeat_interleave(times, dim=1)], dim=1)[:, :length]


def _pairs(x: Tensor, filling: float) -> Tensor:
    """Split [B, N, D] into pairs [B, ceil(N / 2), 2, D]."""
    count = -(-x.shape[1] // FUNNEL_STRIDE)
    return F.pad(x, (0, 0, 0, FUNNEL_STRIDE * count - x.shape[1]), value=filling).unflatten(1, (count, FUNNEL_STRIDE))
