"""Big Bird (Zaheer et al. 2020) and ETC (Ainslie et al. 2020): windows, global tokens, random blocks.

Shapes: B batch, H heads, N tokens, E width of a head, b tokens of a block, J blocks, R random blocks, g global
tokens, r radius, K largest label.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from attentions.bases.sparse import SparseAttention
from attentions.kernels.chunks import by_length, in_chunks
from attentions.kernels.layers import check_odd
from attentions.kernels.numerics import attention_weights
from attentions.kernels.over_blocks import Block, tiled_attention
from attentions.kernels.window_attention import Distances, Slots, Window, window_attention
from cab import Attention, PaddingMasks, register_attention
from cab.attention import CommonArguments
from cab.claims import Claims, softmax_if
from cab.registry.options import Positive


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

    claims = Claims(softmax_limit=softmax_if(num_window=49))
    masks_padding = False  # the last block of a sequence is global

    def __init__(
        self,
        *,
        block_size: Positive = 64,
        num_random: int = 3,
        num_window: Positive = 3,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        check_odd(num_window=num_window)
        self.block_size, self.num_random, self.window_radius = block_size, num_random, num_window // 2
        self.seed: Tensor
        self.register_buffer("seed", torch.randint(2**31, ()))

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

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        assert hidden is None
        tiles = self.tiles(query.shape[2], query.device)
        return tiled_attention(query, key, value, tiles, dropout=self.weight_dropout)

    def tiles(self, length: int, device: torch.device) -> list[Block]:
        """Lay out the blocks and the tokens that each may attend to."""
        size = self.block_size
        num_blocks = -(-length // size)
        fixed_blocks, drawn, within = self.fixed_blocks(num_blocks), self.random_blocks(num_blocks), torch.arange(size)
        tiles = []
        for block in range(num_blocks):
            queries = slice(block * size, min((block + 1) * size, length))
            if block in (0, num_blocks - 1):
                tiles.append(Block(queries, slice(0, length)))
                continue
            blocks = fixed_blocks[block].nonzero()[:, 0].expand(self.num_heads, -1)
            blocks = torch.cat([blocks, drawn[:, block]], dim=1)
            keys = (blocks[..., None] * size + within).flatten(1)
            hidden = ((keys < 0) | (keys >= length))[:, None]
            keys = keys.clamp(0, length - 1)
            tiles.append(Block(queries, keys.to(device), hidden.to(device) if hidden.any() else None))
        return tiles


PUBLISHED_GLOBALS, PUBLISHED_LENGTH = 230, 4096
"""Sizes of the global and the long input of the paper's base model."""
GLOBALS_AT_ONCE = 64


@register_attention("etc", patterns="NS", complexity="n", paper="Ainslie et al. 2020")
class ETCAttention(Attention):
    """Compute softmax((q_i k_j + q_i a_l + b_l) / sqrt(E)) v_j with the label l of the pair (i, j) (section 3.2).

    * A long token attends to long tokens up to r away and to all global tokens.
    * A global token attends to all tokens.

    Labels are distances j - i clipped to -K .. K, with separate labels for the long and the global part, and one label
    for each of the two cross parts. In the paper the global tokens are a second stream through all layers. A single
    attention layer has no second stream: its global tokens are the first g of the sequence, as in BigBird's ITC, and
    all tokens share one set of projections (the paper's ``share_kv_projections``, ``share_qkv_projections`` and
    ``share_att_output_projection``).

    The paper's 230 global tokens accompany 4,096 long ones. By default, shorter sequences have proportionally fewer,
    ceil(230 N / 4096), and longer ones have 230, which keeps the cost linear.

    Not causal: a long token attends to global tokens, which attended to all long tokens one layer before.

    Args:
        radius: r.
        num_globals: g, for any length. None: proportional to the length, at most 230.
        max_distance: K.
    """

    requires_right_padding = True
    selects_tokens = True

    def __init__(
        self,
        *,
        radius: int = 84,
        num_globals: int | None = None,
        max_distance: int = 12,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.radius, self.num_globals, self.max_distance = radius, num_globals, max_distance
        # Distances of the long part, of the global part, long to global, global to long.
        count = 2 * (2 * max_distance + 1) + 2
        self.label_key = nn.Parameter(nn.init.trunc_normal_(torch.empty(self.num_heads, count, self.head_dim), std=0.5))
        self.label_bias = nn.Parameter(torch.zeros(self.num_heads, count))

    def count_globals(self, length: int) -> int:
        """Return the number of global tokens of a sequence."""
        if self.num_globals is not None:
            return min(self.num_globals, length)
        return min(PUBLISHED_GLOBALS, -(-PUBLISHED_GLOBALS * length // PUBLISHED_LENGTH))

    def relative_labels(self, query: Tensor, key: Tensor, num_globals: int) -> Tensor:
        """Return the indices of the labels of pairs of positions."""
        reach = self.max_distance
        distance = (key - query).clamp(-reach, reach) + reach
        across = 2 * (2 * reach + 1)
        of_global = torch.where(key < num_globals, distance + 2 * reach + 1, across + 1)
        return torch.where(query < num_globals, of_global, torch.where(key < num_globals, across, distance))

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        j = torch.arange(key.shape[1], device=key.device)
        i = j[:, None]
        g = self.count_globals(len(j))
        label = self.relative_labels(i, j, g)
        logits = query @ key.mT + torch.einsum("hie,hije->hij", query, self.label_key[:, label])
        logits = (logits + self.label_bias[:, label]) * self.scale
        hidden = ((i - j).abs() > self.radius) & (i >= g) & (j >= g)
        return logits.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return by_length(self.attend_unpadded, (query, key, value), padding.key)

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[2]
        g = self.count_globals(length)
        outputs = [self.of_globals(query[:, :, :g], key, value)] if g else []
        if g < length:
            q, k, v = (x[:, :, g:] for x in (query, key, value))
            outputs.append(self.of_long(q, k, v, key[:, :, :g], value[:, :, :g]))
        return torch.cat(outputs, dim=2)

    def of_long(self, query: Tensor, key: Tensor, value: Tensor, global_key: Tensor, global_value: Tensor) -> Tensor:
        """Return the outputs of long tokens, which attend to their windows and to the global tokens as slots."""
        reach = min(self.radius, query.shape[2] - 1)
        back = torch.arange(-reach, reach + 1, device=query.device)
        label = back.clamp(-self.max_distance, self.max_distance) + self.max_distance
        distances = Distances(self.label_key[:, label], self.label_bias[:, label] * self.scale)
        across = 2 * (2 * self.max_distance + 1)
        bias = (self.label_bias[:, across] * self.scale)[:, None].expand(-1, global_key.shape[2])
        global_key = global_key + self.label_key[:, across, None].to(global_key.dtype)
        slots = Slots(global_key, global_value, bias) if global_key.shape[2] else None
        window, dropout = Window(reach, reach), self.weight_dropout
        return window_attention(query, key, value, window, slots=slots, distances=distances, dropout=dropout)

    def of_globals(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the outputs of global tokens, which attend to all tokens, for a few of them at a time."""
        g, dropout = query.shape[2], self.weight_dropout
        position = torch.arange(g, device=query.device)
        labels = self.relative_labels(position[:, None], position, g).split(GLOBALS_AT_ONCE)
        across = 2 * (2 * self.max_distance + 1) + 1

        def mean(label: Tensor, query: Tensor, key: Tensor, value: Tensor, *shared: Tensor) -> Tensor:
            label_key, label_bias = shared
            by_label = query @ label_key.mT + label_bias[:, None]
            among = by_label.gather(2, label.expand(len(query), -1, -1))
            beyond = by_label[..., across, None].expand(-1, -1, key.shape[1] - g)
            logits = (query @ key.mT + torch.cat([among, beyond], dim=-1)) * self.scale
            return attention_weights(logits, None, dropout) @ value

        shared, cost = (self.label_key, self.label_bias), 3 * GLOBALS_AT_ONCE * key.shape[2]
        outputs = [
            in_chunks(partial(mean, label), (q, key, value), shared, cost=cost, dropout=dropout)
            for label, q in zip(labels, query.split(GLOBALS_AT_ONCE, dim=2), strict=True)
        ]
        return torch.cat(outputs, dim=2)
