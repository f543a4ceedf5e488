"""Axial attention (Ho et al. 2019): along the rows and columns of a grid.

Shapes: B batch, H heads, N tokens, E width of a head, W width of the grid.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Unpack

import torch
from torch import Tensor

from attentions.bases.options import check_choice
from attentions.bases.sparse import SparseAttention, by_halves, check_stride, first_heads
from attentions.kernels.grid2d import along_both, along_columns, along_rows
from cab import Pattern, register_attention
from cab.attention import CommonArguments, SoftmaxLimit


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

    def __init__(self, *, width: int = 64, spread: str = "heads", **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        check_choice(("heads", "merged"), spread=spread)
        check_stride("width", width, self.pattern)
        self.width, self.spreads = width, spread == "heads"

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        return SoftmaxLimit(({"width": num_tokens, "spread": "merged"},))

    def width_for(self, length: int) -> int:
        return self.width or math.ceil(math.sqrt(length))

    def is_visible(self, query: Tensor, key: Tensor, length: int) -> Tensor:
        width = self.width_for(length)
        row, column = query // width == key // width, query % width == key % width
        seen = torch.where(first_heads(self.num_heads, key), row, column) if self.spreads else row | column
        return seen & (key <= query) if self.pattern is Pattern.CS else seen

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        width, dropout = self.width_for(query.shape[2]), self.weight_dropout
        along: dict[str, Any] = {"width": width, "is_causal": self.pattern is Pattern.CS, "dropout": dropout}
        if not self.spreads:
            return along_both(query, key, value, is_sliding=False, **along)
        rows, columns = functools.partial(along_rows, **along), functools.partial(along_columns, **along)
        return by_halves(rows, columns, (query, key, value))
