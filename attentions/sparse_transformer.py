"""Factorized attention: Sparse Transformers (Child et al. 2019) and axial attention (Ho et al. 2019).

Shapes: B batch, H heads, N tokens, E width of a head, l stride, c summary, W width of the grid.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from attentions.bases.sparse import SparseAttention, Spread, by_halves, check_stride, first_heads
from attentions.kernels.grid2d import along, along_both
from attentions.kernels.over_blocks import Block, tiled_attention
from attentions.kernels.window_attention import Window, window_attention
from cab import Pattern, UserError, register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if


@register_attention("sparse_transformer", patterns="NS CS", complexity="n^2", paper="Child et al. 2019")
class SparseTransformerAttention(SparseAttention):
    """Compute softmax attention over two sets of keys j of token i (section 4.3), as published for CS.

    * ``strided``: A1, the last l tokens (i - j < l); A2, every l-th earlier token ((i - j) mod l = 0).
    * ``fixed``: A1, the tokens of the own block of l (floor(j/l) = floor(i/l)); A2, the last c tokens of every block (j
      mod l >= l - c).

    In NS, which the paper does not define, j may be later as well: |i - j| < l. The paper's A1 includes i - j = l, the
    released code does not; the unions are equal. A token without a visible key, which occurs in A2 alone, gets zero.

    The sets have about l + N/l and l + c N/l keys. With a constant stride, time is quadratic, N^2/l or c N^2/l; with l
    near sqrt(N) it is N sqrt(N). Decoding stores all keys and values (strided), or those of the open block and c of
    each finished block (fixed).

    Args:
        layout: ``strided`` (published for images, with l the width of a row) or ``fixed`` (published for text).
        stride: l, in tokens; in NS, 0 selects the square root of the length, rounded up.
        summary: c of the fixed layout, at most the stride.
        spread: ``merged`` for one softmax over both sets; ``heads`` for A1 in the first half of the heads and A2 in the
            rest.
    """

    claims = Claims(softmax_limit=softmax_if(stride=NUM_TOKENS, summary=1))

    def __init__(
        self,
        *,
        layout: Literal["strided", "fixed"] = "fixed",
        stride: int = 128,
        summary: int = 32,
        spread: Literal["heads", "merged"] = "merged",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        check_stride("stride", stride, self.pattern)
        if summary < 1 or (layout == "fixed" and 0 < stride < summary):
            raise UserError(f"summary must be between 1 and stride ({stride}), got {summary}")
        self.layout, self.stride, self.summary, self.spreads = layout, stride, summary, spread == "heads"
        self.masks_padding = stride > 0  # else the stride depends on the length of a sequence

    def width(self, length: int) -> int:
        return self.stride or math.ceil(math.sqrt(length))

    def is_visible(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        width, near = self.width(length), query - key
        if self.layout == "strided":
            a_1, a_2 = near.abs() < width, near % width == 0
        else:
            a_1 = query // width == key // width
            a_2 = (key % width >= width - self.summary) & torch.ones_like(a_1)
        seen = torch.where(first_heads(self.num_heads, key), a_1, a_2) if self.spreads else a_1 | a_2
        return seen & (near >= 0) if self.pattern is Pattern.CS else seen

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        if self.layout == "strided":
            return super().required_keys(key, length)
        is_open = key // self.stride == length // self.stride
        return is_open | (key % self.stride >= self.stride - self.summary)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        if not self.spreads:
            return self.merged(query, key, value, hidden)
        width, causal, dropout = self.width(query.shape[2]), self.pattern is Pattern.CS, self.weight_dropout
        lines: dict[str, Any] = {"width": width, "is_causal": causal, "hidden": hidden, "dropout": dropout}
        seen: dict[str, Any] = {"key_padding_mask": hidden, "dropout": dropout}
        if self.layout == "strided":
            window = Window(width - 1, 0 if causal else width - 1)
            a_1: Spread = functools.partial(window_attention, window=window, **seen)
            a_2: Spread = functools.partial(along, by_column=True, **lines)
        else:
            a_1 = functools.partial(along, by_column=False, **lines)
            a_2 = functools.partial(tiled_attention, tiles=self.tiles(query, is_own=False), **seen)
        return by_halves(a_1, a_2, (query, key, value))

    def merged(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
        """Attend to both sets in one softmax."""
        dropout = self.weight_dropout
        if self.layout == "fixed":
            tiles = self.tiles(query, is_own=True)
            return tiled_attention(query, key, value, tiles, key_padding_mask=hidden, dropout=dropout)
        width, causal = self.width(query.shape[2]), self.pattern is Pattern.CS
        return along_both(query, key, value, width, is_causal=causal, is_sliding=True, hidden=hidden, dropout=dropout)

    def tiles(self, query: Tensor, *, is_own: bool) -> list[Block]:
        """Lay out blocks of the fixed pattern, which attend to block summaries and (``is_own``) to their own tokens."""
        length, causal = query.shape[2], self.pattern is Pattern.CS
        position = torch.arange(length, device=query.device)
        width, count = self.width(length), self.summary
        cells = torch.arange(-(-length // width) * width, device=query.device).view(-1, width)
        summaries = cells[:, -count:].flatten()
        summaries = summaries[: len(summaries) - min(count, cells.numel() - length)]
        tiles = []
        for number, begin in enumerate(range(0, length, width)):
            block = position[begin : begin + width]
            keys = summaries[: (number + 1) * count] if causal else summaries
            if is_own:
                keys = torch.cat([keys[: number * count], keys[(number + 1) * count :], block])
            hidden = keys > block[:, None] if causal else None
            tiles.append(Block(slice(begin, begin + len(block)), keys, hidden))
        return tiles


@register_attention("axial", patterns="NS CS", complexity="n^2", paper="Ho et al. 2019")
class AxialAttention(SparseAttention):
    """Compute softmax attention over the row and the column of a token, cell (t // W, t % W) of a grid of width W.

    The paper alternates the axes from layer to layer; in one slot half of the heads attend along rows, half along
    columns. In CS both end with the token: cells to the right of it in earlier rows are then out of reach, in a layer
    and through many of them (the paper's decoder sees them through layers of their own, over the rows before).

    There are W + N/W keys for a token: with a width that does not grow time is quadratic, N^2/W; with W near sqrt(N)
    it is N sqrt(N). Decoding keeps all keys and values.

    Args:
        width: W; the image's, where the sequence is one. In NS 0 is the square root of a row's length, rounded up.
        spread: ``heads``; or ``merged``, one softmax over row and column for all heads.
    """

    claims = Claims(softmax_limit=softmax_if(width=NUM_TOKENS, spread="merged"))

    def __init__(
        self, *, width: int = 64, spread: Literal["heads", "merged"] = "heads", **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(**common)
        check_stride("width", width, self.pattern)
        self.width, self.spreads = width, spread == "heads"
        self.masks_padding = width > 0  # else the width depends on the length of a sequence

    def width_for(self, length: int) -> int:
        return self.width or math.ceil(math.sqrt(length))

    def is_visible(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        width = self.width_for(length)
        row, column = query // width == key // width, query % width == key % width
        seen = torch.where(first_heads(self.num_heads, key), row, column) if self.spreads else row | column
        return seen & (key <= query) if self.pattern is Pattern.CS else seen

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        width, causal = self.width_for(query.shape[2]), self.pattern is Pattern.CS
        lines: dict[str, Any] = {"width": width, "is_causal": causal, "hidden": hidden, "dropout": self.weight_dropout}
        if not self.spreads:
            return along_both(query, key, value, is_sliding=False, **lines)
        rows, columns = (functools.partial(along, by_column=by_column, **lines) for by_column in (False, True))
        return by_halves(rows, columns, (query, key, value))
