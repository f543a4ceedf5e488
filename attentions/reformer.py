"""Reformer (Kitaev et al. 2020): a token attends to tokens that random rotations hash to its bucket.

Shapes: B batch, H heads, R rounds, N tokens, E width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.bucketed import BucketedAttention
from attentions.kernels.buckets import Reach
from cab import Pattern, register_attention
from cab.attention import PaddingMasks
from cab.errors import UserError


@register_attention("reformer", patterns="NS CS", complexity="n", paper="Kitaev et al. 2020")
class ReformerAttention(BucketedAttention):
    """softmax over j of q_i k_j / sqrt(E), with k_j = q_j / |q_j|, in the buckets of the token  (sections 2 and 3).

    A round's bucket is argmax [q R; -q R], with R of random directions. A token sees, of each round's bucket, the 2 m
    tokens before it (in NS m on either side); a pair that meets in several rounds counts once (their Eq. 6), and
    itself a token sees only where it sees nothing else. R is drawn anew for each call in training and is a buffer in
    evaluation. The published chunks of the sorted row are other sets of keys, which depend on later tokens in CS, and
    reach into neighbouring buckets; these windows do neither.

    Time is N R (E buckets / 2 + 2 m). Decoding keeps keys, values and buckets of all tokens.

    Args:
        num_buckets: even. Published are about 2 N / m.
        chunk_size: m.
        rounds: R. The paper trains with 1 to 8, its released models with 1 or 2.
        key_norm: ``unit`` divides logits by sqrt(E), as the paper does; ``scaled``, keys of length sqrt(E), does not,
            as in trax and transformers.

    Raises:
        ValueError: for an odd number of buckets, or sizes below 1.
    """

    rotations: Tensor

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        num_buckets: int = 64,
        chunk_size: int = 64,
        rounds: int = 2,
        key_norm: str = "unit",
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if num_buckets < 2 or num_buckets % 2:
            raise UserError(f"num_buckets must be even and at least 2, got {num_buckets}")
        if chunk_size < 1 or rounds < 1:
            raise UserError(f"chunk_size and rounds must be at least 1, got {chunk_size} and {rounds}")
        if key_norm not in ("unit", "scaled"):
            raise UserError(f"key_norm must be 'unit' or 'scaled', got '{key_norm}'")
        self.num_buckets, self.rounds, self.key_norm = num_buckets, rounds, key_norm
        both = self.pattern is Pattern.NS
        self.reach = Reach(chunk_size, chunk_size, False) if both else Reach(2 * chunk_size, 0, False)
        self.register_buffer("rotations", self.new_rotations(torch.empty(0)))

    def make_projections(self) -> None:
        """Queries, from which keys are made, values, and the last."""
        super().make_projections()
        del self.k_proj

    def project(self, query: Tensor, _key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.exactly(self.q_proj, query)
        length = 1.0 if self.key_norm == "unit" else self.head_dim**0.5
        return heads, F.normalize(heads, dim=-1) * length, self.split_heads(self.v_proj(value))

    def new_rotations(self, like: Tensor) -> Tensor:
        """Random directions, [R, H, E, buckets / 2]."""
        shape = (self.rounds, self.num_heads, self.head_dim, self.num_buckets // 2)
        return torch.randn(shape, dtype=like.dtype, device=like.device)

    def sample_noise(self, query: Tensor, _key: Tensor, _padding: PaddingMasks) -> dict[str, Tensor]:
        rotations = self.new_rotations(self.rotations) if self.training else self.rotations
        return {"rotations": rotations.expand(len(query), -1, -1, -1, -1)}

    @torch.no_grad()
    def assign(self, query: Tensor, rotations: Tensor | None = None) -> Tensor:
        rotations = self.rotations if rotations is None else rotations[0]
        with torch.autocast(query.device.type, enabled=False):
            return torch.stack([self.hash(query.to(rotation.dtype) @ rotation) for rotation in rotations])

    def hash(self, projected: Tensor) -> Tensor:
        """argmax [x; -x] over the last dimension."""
        high, low = projected.max(dim=-1), projected.min(dim=-1)
        return torch.where(high.values >= -low.values, high.indices, low.indices + projected.shape[-1])
