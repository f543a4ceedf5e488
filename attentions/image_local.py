"""Local attention of the Image Transformer (Parmar et al. 2018): blocks of queries that share a surrounding memory.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor

from attentions.bases.sparse import SparseAttention
from attentions.kernels.over_blocks import Block, tiled_attention
from cab import Pattern, register_attention
from cab.attention import NUM_TOKENS, CommonArguments
from cab.registry.options import Positive


@register_attention("image_local", patterns="NS CS", complexity="n", paper="Parmar et al. 2018")
class ImageLocalAttention(SparseAttention):
    """Compute softmax attention to a memory that all queries of a block share (section 3.3).

    * 1D: the block and the ``memory`` tokens before it. In NS, which the paper does not define, also as many after it.
    * 2D, with a ``width``: the block of an image in raster order, with ``flange_height`` rows above it and
      ``flange_width`` columns on either side; in NS also as many rows below. The paper generates an image block by
      block. Here the order is the raster order, so in CS the tokens to the lower left are masked.

    In CS a token attends to itself and earlier tokens of the memory. The decode state has constant size: the keys and
    values of the open blocks and their memory.

    Args:
        block: tokens per block in 1D.
        memory: tokens before the block; default ``block``.
        width: width of the image in tokens; 0 for 1D.
        block_height, block_width: tokens per block in 2D.
        flange_height, flange_width: tokens around the block in 2D.
    """

    softmax_options: ClassVar = {"block": NUM_TOKENS}
    has_constant_size_state = True

    def __init__(
        self,
        *,
        block: Positive = 256,
        memory: int | None = None,
        width: int = 0,
        block_height: Positive = 16,
        block_width: Positive = 16,
        flange_height: int = 16,
        flange_width: int = 32,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        memory = block if memory is None else memory
        # 1D is an image of one column: what is beside a block there is nothing.
        self.width = width or 1
        self.height, self.block_width = (block_height, block_width) if width else (block, 1)
        self.margin_above, self.margin_side = (flange_height, flange_width) if width else (memory, 0)
        self.max_kept = (self.height + self.margin_above) * self.width

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        (row, column), (key_row, key_column) = ((x // self.width, x % self.width) for x in (query, key))
        top, left = row // self.height * self.height, column // self.block_width * self.block_width
        below = 0 if self.pattern is Pattern.CS else self.margin_above
        seen = (key_row >= top - self.margin_above) & (key_row < top + self.height + below)
        seen &= (key_column >= left - self.margin_side) & (key_column < left + self.block_width + self.margin_side)
        return seen & (key <= query) if self.pattern is Pattern.CS else seen

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        top = length // self.width // self.height * self.height
        return key // self.width >= top - self.margin_above

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return tiled_attention(query, key, value, self.tiles(query), dropout=self.weight_dropout)

    def tiles(self, query: Tensor) -> list[Block]:
        length, causal = query.shape[2], self.pattern is Pattern.CS
        num_rows = -(-length // self.width)
        cells = torch.arange(num_rows * self.width, device=query.device).view(num_rows, self.width)
        tiles = []
        for top in range(0, num_rows, self.height):
            bottom = top + self.height
            for left in range(0, self.width, self.block_width):
                right = left + self.block_width
                queries = cells[top:bottom, left:right].flatten()
                queries = queries[queries < length]
                if not len(queries):
                    continue
                rows = slice(max(0, top - self.margin_above), bottom if causal else bottom + self.margin_above)
                keys = cells[rows, max(0, left - self.margin_side) : right + self.margin_side].flatten()
                keys = keys[keys <= queries[-1]] if causal else keys[keys < length]
                tiles.append(Block(queries, keys, keys > queries[:, None] if causal else None))
        return tiles
