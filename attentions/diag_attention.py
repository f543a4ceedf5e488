"""DiagAttention (Qin et al. 2022, TransNormer): attention within non-overlapping blocks.

Shapes: B batch, H heads, N tokens, E width of a head, w tokens of a block.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.options import check_at_least, check_choice
from attentions.bases.sparse import SparseAttention
from attentions.kernels.grid2d import along_rows, in_rows
from attentions.kernels.layers import MergedNorm
from attentions.kernels.numerics import upcast
from attentions.norm_attention import make_rotary, rotated, rotated_by_matrices
from cab import DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, SoftmaxLimit

WEIGHTS = ("softmax", "rela")


@register_attention("diag_attention", patterns="NS CS", complexity="n", paper="Qin et al. 2022")
class DiagAttention(SparseAttention):
    """Compute sum_j f(q_i k_j / sqrt(E)) v_j over the tokens j of the own block of w tokens, with j <= i in CS.

    Section 4.3 of the paper. f is softmax (TransNormer T2), or ReLU followed by an RMS norm over all heads of a token,
    x / (rms + 1e-8) (T1, after Zhang et al. 2021, whose norm has a gate). The last block has as many keys as tokens;
    the released code pads it with zero keys, which take a share of its softmax, and does not mask padding. The decode
    state has constant size: the keys and values of the open block.

    Args:
        block_size: tokens w per block.
        weights: ``softmax`` or ``rela`` (ReLU).
        positions: ``none``, as in the paper's text; ``lrpe``, as in the released configurations: queries and keys are
            reflected and rotated by their position in the block.
    """

    has_constant_size_state = True

    def __init__(
        self,
        *,
        block_size: int = 64,
        weights: str = "softmax",
        positions: str = "none",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        check_at_least(1, block_size=block_size)
        check_choice(WEIGHTS, weights=weights)
        self.block_size, self.is_softmax = block_size, weights == "softmax"
        self.max_kept = block_size - 1
        self.norm = MergedNorm("none" if self.is_softmax else "simplerms", self.embed_dim)
        self.rotary = make_rotary(positions, self.head_dim)

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, num_tokens: int) -> SoftmaxLimit:
        return SoftmaxLimit(({"block_size": num_tokens},))

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        seen = query // self.block_size == key // self.block_size
        return seen & (key <= query) if self.pattern is Pattern.CS else seen

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        return key // self.block_size == length // self.block_size

    def seen_weights(self, logits: Tensor, seen: Tensor) -> Tensor:
        return super().seen_weights(logits, seen) if self.is_softmax else logits.relu().masked_fill(~seen, 0.0)

    def attend_unpadded(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, causal = query.shape[2], self.pattern is Pattern.CS
        width = min(self.block_size, length)
        if self.is_softmax:
            return along_rows(query, key, value, width, is_causal=causal, dropout=self.weight_dropout)
        with torch.autocast(query.device.type, enabled=False):  # what no sum divides outgrows float16 before its norm
            query, key, value = (in_rows(upcast(x), width) for x in (query, key, value))
            weights = (query * self.scale @ key.mT).relu()  # none of the keys that fill the last block up
            weights = F.dropout(weights.tril() if causal else weights, self.weight_dropout)
            return (weights @ value).flatten(2, 3)[:, :, :length]

    def read(self, query: Tensor, key: Tensor, value: Tensor, query_position: Tensor, position: Tensor) -> Tensor:
        if self.is_softmax:
            return super().read(query, key, value, query_position, position)
        with torch.autocast(query.device.type, enabled=False):
            return super().read(upcast(query), upcast(key), upcast(value), query_position, position)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        query, key = (rotated(self.rotary, x, period=self.block_size) for x in (query, key))
        return self.normalize(super().attend(query, key, value, padding), query.dtype)

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **_: Tensor
    ) -> tuple[Tensor, DecodeState]:
        query, key = (rotated(self.rotary, x, state["length"], self.block_size) for x in (query, key))
        output, state = super().decode(query, key, value, state, padding)
        return self.normalize(output, query.dtype), state

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.rotary is not None:
            query, key = (rotated_by_matrices(self.rotary, x) for x in (query, key))
        return self.norm(super().reference(query, key, value)[None])[0]

    def normalize(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.norm(upcast(x)).to(dtype)
