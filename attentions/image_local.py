"""The local attention of the Image Transformer (Parmar et al. 2018): blocks of queries and the memory around them.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.bases.sparse import SparseAttention
from attentions.kernels.windows.tiles import Tile, tiled_attention
from cab import Pattern, register_attention
from cab.attention_types import CommonArguments, SoftmaxLimit
from cab.errors import UserError


@register_attention("image_local", patterns="NS CS", complexity="n", paper="Parmar et al. 2018")
class ImageLocalAttention(SparseAttention):
    """Softmax over a memory that all queries of a block share (section 3.3), in CS up to the token itself.

    * 1D: the block and the ``memory`` tokens before it; in NS (ours) as many after it.
    * 2D, with a ``width``: the block of an image in raster order, and around it ``flange_height`` rows above and
      ``flange_width`` columns on either side; in NS as many rows below. The paper generates an image block by block;
      here the order is the raster's, so that what lies below the token on its left is hidden in CS.

    Decoding keeps the keys and values of the open blocks and their memory: a state of constant size.

    Args:
        block: tokens of a block in 1D.
        memory: tokens before it, as many as in a block when not given.
        width: of the image, 0 for 1D.
        block_height, block_width: cells of a block in 2D.
        flange_height, flange_width: cells around it.

    Raises:
        ValueError: for blocks without a token.
    """

    has_constant_size_state = True

    def __init__(
        self,
        *,
        block: int = 256,
        memory: int | None = None,
        width: int = 0,
        block_height: int = 16,
        block_width: int = 16,
        flange_height: int = 16,
        flange_width: int = 32,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        sizes = {"block": block, "block_height": block_height, "block_width": block_width}
        for name, size in sizes.items():
            if size < 1:
                raise UserError(f"{name} must be at least 1, got {size}")
        flanges = {"memory": block if memory is None else memory, "width": width}
        flanges |= {"flange_height": flange_height, "flange_width": flange_width}
        for name, size in flanges.items():
            if size < 0:
                raise UserError(f"{name} must be at least 0, got {size}")
        # 1D is an image of one column: what is beside a block there is nothing.
        self.width = width or 1
        self.height, self.block_width = (block_height, block_width) if width else (block, 1)
        self.margin_above, self.margin_side = (flange_height, flange_width) if width else (flanges["memory"], 0)
        self.max_kept = (self.height + self.margin_above) * self.width

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        """One block."""
        return SoftmaxLimit(({"block": num_tokens},))

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        (row, column), (key_row, key_column) = ((x // self.width, x % self.width) for x in (query, key))
        top, left = row // self.height * self.height, column // self.block_width * self.block_width
        below = 0 if self.pattern is Pattern.CS else self.margin_above
        seen = (key_row >= top - self.margin_above) & (key_row < top + self.height + below)
        seen = (
            seen & (key_column >= left - self.margin_side) & (key_column < left + self.block_width + self.margin_side)
        )
        return seen & (key <= query) if self.pattern is Pattern.CS else seen

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        top = length // self.width // self.height * self.height
        return key // self.width >= top - self.margin_above

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return tiled_attention(query, key, value, self.tiles(query), dropout=self.weight_dropout)

    def tiles(self, query: Tensor) -> list[Tile]:
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
                tiles.append(Tile(queries, keys, keys > queries[:, None] if causal else None))
        return tiles
