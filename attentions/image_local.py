"""Local attention of the Image Transformer (Parmar et al. 2018): blocks of queries that share a surrounding memory.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.bases.sparse import SparseAttention
from attentions.kernels.over_blocks import Block, tiled_attention
from cab import Pattern, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.registry.options import Positive


@register_attention("image_local", patterns="NS CS", complexity="n", paper="Parmar et al. 2018")
class ImageLocalAttention(SparseAttention):
    """Compute softmax attention to a memory that all queries of a block share (section 3.3, one-dimensional).

    The memory of a block is the block and as many tokens before it; in NS, which the paper does not define, also as
    many after it. In CS a token attends to itself and earlier tokens of the memory. The decode state has constant size:
    the keys and values of the open block and of the one before.

    Args:
        block: tokens per block.
    """

    claims = Claims(softmax_limit=softmax_if(block=NUM_TOKENS))
    has_constant_size_state = True

    def __init__(self, *, block: Positive = 256, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.block = block
        self.max_kept = 2 * block

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        block, key_block = query // self.block, key // self.block
        if self.pattern is Pattern.CS:
            return (key_block >= block - 1) & (key <= query)
        return (key_block - block).abs() <= 1

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        return key >= (length // self.block - 1) * self.block

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        tiles, dropout = self.tiles(query), self.weight_dropout
        return tiled_attention(query, key, value, tiles, key_padding_mask=hidden, dropout=dropout)

    def tiles(self, query: Tensor) -> list[Block]:
        length, causal = query.shape[2], self.pattern is Pattern.CS
        position = torch.arange(length, device=query.device)
        tiles = []
        for start in range(0, length, self.block):
            end = min(length, start + self.block)
            queries = position[start:end]
            keys = position[max(0, start - self.block) : end if causal else end + self.block]
            tiles.append(Block(queries, keys, keys > queries[:, None] if causal else None))
        return tiles
