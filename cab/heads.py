"""What every attention is built from: its options, projections, and heads.

Legend of shapes: B batch, N targets, M keys, D width, H heads, E = D / H width of a head.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from cab.errors import UserError
from cab.learning import Learner
from cab.patterns import Pattern


class Heads(Learner):
    """Projections to heads and back, for :class:`cab.Attention`."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(self, *, pattern: Pattern | str, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1:
            raise UserError(f"embed_dim and num_heads must be at least 1, got {embed_dim} and {num_heads}")
        if embed_dim % num_heads:
            raise UserError(
                f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}; "
                f"choose num_heads among the divisors of {embed_dim}"
            )
        if not 0.0 <= dropout < 1.0:
            raise UserError(f"dropout must be in [0, 1), got {dropout}")
        self.pattern = Pattern.parse(pattern)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.make_projections()

    def make_projections(self) -> None:
        """The four learnt maps: Xavier uniform, q, k, v with gain 1/sqrt(2), as most of CAB's classes have them.

        CAB's cosFormer and ProbSparse leave theirs to torch: biased, and at any width 0.82 (q, k, v) and 0.58 (out) as
        wide. Networks with a rule for all their maps draw these anew.
        """
        for name, gain in (("q_proj", 2**-0.5), ("k_proj", 2**-0.5), ("v_proj", 2**-0.5), ("out_proj", 1.0)):
            linear = nn.Linear(self.embed_dim, self.embed_dim)
            nn.init.xavier_uniform_(linear.weight, gain=gain)
            nn.init.zeros_(linear.bias)
            self.add_module(name, linear)

    def query_extras(self, _query: Tensor) -> dict[str, Tensor]:
        """What is computed from the targets' inputs [B, N, D]."""
        return {}

    def key_extras(self, _key: Tensor) -> dict[str, Tensor]:
        """What is computed from the source's inputs [B, M, D]; in self patterns the targets are the source."""
        return {}

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, N, D] and twice [B, M, D] to heads."""
        return (
            self.split_heads(self.q_proj(query)),
            self.split_heads(self.k_proj(key)),
            self.split_heads(self.v_proj(value)),
        )

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, N, H E] to [B, H, N, E] of any width E, a view."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        """[B, H, N, E] to [B, N, D]."""
        return x.transpose(1, 2).flatten(-2)

    @property
    def weight_dropout(self) -> float:
        """The probability of dropping an attention weight now: none in evaluation."""
        return self.dropout if self.training else 0.0

    @property
    def scale(self) -> float:
        """1 / sqrt(E), the usual factor of query-key products."""
        return 1.0 / math.sqrt(self.head_dim)

    def extra_repr(self) -> str:
        return f"pattern={self.pattern}, embed_dim={self.embed_dim}, num_heads={self.num_heads}"
