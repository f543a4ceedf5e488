"""YOSO (Zeng et al. 2021): weights by the probability that a query and a key fall into one bucket of a random hash."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.pairwise import PairwiseAttention
from cab import Pattern, register_attention
from cab.errors import UserError

EDGE = 1e-6
"""How near to 1 a cosine may come, where the slope of arccos is infinite."""


@register_attention("yoso", patterns="NS NC CC", complexity="n^2", paper="Zeng et al. 2021")
class YosoAttention(PairwiseAttention):
    """The expectation of YOSO: sum_j (1 - arccos(q_i k_j) / pi)^tau v_j of unit queries and keys, made a unit vector
    (their Eq. 3 and 6).

    tau hyperplanes hash a query and a key to one bucket with that probability. YOSO itself estimates it from some
    hashes in linear time, with a state of 2^tau sums a hash; this is the exact mean of the estimates, in quadratic
    time, and with its own gradient (the released code takes tau/2 times the weight for the slope, in both).
    ``dropout`` is not used (as released): the norm would undo it.

    Args:
        hash_length: hyperplanes tau of a hash.

    Raises:
        ValueError: for ``hash_length`` below 1.
    """

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        hash_length: int = 9,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if hash_length < 1:
            raise UserError(f"hash_length must be at least 1, got {hash_length}")
        self.hash_length = hash_length

    autocast_dtypes = (torch.bfloat16,)  # weights of keys that are all opposite vanish in float16

    @property
    def weight_dropout(self) -> float:
        return 0.0

    def weigh(self, query: Tensor, key: Tensor, unseen: Tensor | None, _count: Tensor) -> Tensor:
        cosine = (_unit(query) @ _unit(key).mT).clamp(EDGE - 1.0, 1.0 - EDGE)
        weights = (1.0 - cosine.arccos() / math.pi) ** self.hash_length
        return weights if unseen is None else weights.masked_fill(unseen, 0.0)

    def finish(self, sums: Tensor) -> Tensor:
        size = sums.detach().abs().amax(-1, keepdim=True)  # of opposite keys tau powers leave 1e-9, which counts too
        return _unit(sums / size.where(size > 0.0, 1.0))

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = (x / x.norm(dim=-1, keepdim=True) for x in (query, key))
        probability = 1.0 - (query @ key.mT).clamp(EDGE - 1.0, 1.0 - EDGE).arccos() / math.pi
        sums = probability**self.hash_length @ value
        return sums / sums.norm(dim=-1, keepdim=True)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=1e-6)
