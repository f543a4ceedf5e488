"""Big Bird (Zaheer et al. 2020): attention to neighboring, first, last and random blocks.

Shapes: B batch, H heads, N tokens, E width of a head, b tokens of a block, J blocks, R random blocks.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attentions.bases.options import check_at_least, check_odd
from attentions.bases.sparse import SparseAttention
from attentions.kernels.tiles import Tile, tiled_attention
from cab import Pattern, register_attention
from cab.attention import CommonArguments, SoftmaxLimit


@register_attention("bigbird", patterns="NS", complexity="n", paper="Zaheer et al. 2020")
class BigBirdAttention(SparseAttention):
    """Compute softmax attention over the tokens of the blocks visible to a token's block.

    The internal construction (ITC), section 2 and appendix D of the paper:

    * The first and the last block attend to all blocks, and all blocks attend to them.
    * Every other block attends to ``num_window`` blocks around it, including itself, and to R random blocks per head.

    Random blocks are outside of the window, the first and the last block; fewer are drawn if fewer remain. They depend
    on a seed, which is drawn at construction and saved, and on the number of blocks of the sequence. A sequence with
    padding therefore has the same blocks as alone, and evaluation the same as training. (The released code draws them
    from the first 1,024 tokens for some lengths. The code of transformers has only block 0 as random block in
    evaluation, and full attention for up to 5 + 2 R blocks.) The last block may be shorter.

    Args:
        block_size: tokens b per block.
        num_random: random blocks R per block and head.
        num_window: blocks of the window, odd.
    """

    def __init__(
        self, *, block_size: int = 64, num_random: int = 3, num_window: int = 3, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(**common)
        check_at_least(1, block_size=block_size)
        check_at_least(0, num_random=num_random)
        check_odd(num_window=num_window)
        self.block_size, self.num_random, self.window_radius = block_size, num_random, num_window // 2
        self.seed: Tensor
        self.register_buffer("seed", torch.randint(2**31, ()))

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        return SoftmaxLimit(({"num_window": 2 * num_tokens + 1},))

    def fixed_blocks(self, num_blocks: int) -> Tensor:
        """Return the visibility of blocks without random ones, bool [J, J]."""
        block = torch.arange(num_blocks)
        seen = (block[:, None] - block).abs() <= self.window_radius
        ends = (block == 0) | (block == num_blocks - 1)
        return seen | ends | ends[:, None]

    def random_blocks(self, num_blocks: int) -> Tensor:
        """Return the random blocks of each head and block, [H, J, at most R]; -1 where none is left."""
        generator = torch.Generator().manual_seed(int(self.seed) + num_blocks)
        order = torch.rand(self.num_heads, num_blocks, num_blocks, generator=generator)
        drawn = order.masked_fill(self.fixed_blocks(num_blocks), -1.0).topk(min(self.num_random, num_blocks), dim=-1)
        return drawn.indices.where(drawn.values >= 0.0, -1)

    def is_visible(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        num_blocks = -(-length // self.block_size)
        drawn = self.random_blocks(num_blocks)
        spare = torch.zeros(*drawn.shape[:2], num_blocks + 1, dtype=torch.bool)  # the last is no block
        seen = spare.scatter(2, drawn % (num_blocks + 1), True)[..., :num_blocks] | self.fixed_blocks(num_blocks)
        return seen.to(key.device)[:, query // self.block_size, key // self.block_size]

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tiles = self.tiles(query.shape[2], query.device)
        return tiled_attention(query, key, value, tiles, dropout=self.weight_dropout)

    def tiles(self, length: int, device: torch.device) -> list[Tile]:
        """Lay out the blocks and the tokens that each may attend to."""
        size = self.block_size
        num_blocks = -(-length // size)
        fixed_blocks, drawn, within = self.fixed_blocks(num_blocks), self.random_blocks(num_blocks), torch.arange(size)
        tiles = []
        for block in range(num_blocks):
            queries = slice(block * size, min((block + 1) * size, length))
            if block in (0, num_blocks - 1):
                tiles.append(Tile(queries, slice(0, length)))
                continue
            blocks = fixed_blocks[block].nonzero()[:, 0].expand(self.num_heads, -1)
            blocks = torch.cat([blocks, drawn[:, block]], dim=1)
            keys = (blocks[..., None] * size + within).flatten(1)
            hidden = ((keys < 0) | (keys >= length))[:, None]
            keys = keys.clamp(0, length - 1)
            tiles.append(Tile(queries, keys.to(device), hidden.to(device) if hidden.any() else None))
        return tiles
