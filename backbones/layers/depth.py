"""Attention over depth instead of residual sums: Attention Residuals (arXiv:2603.15031)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from backbones.layers.branches import Branch, BranchStack

DEPTH_EPS = 1e-6


class DepthStack(BranchStack):
    """The input of branch l is the mix sum_i softmax_i(w_l RMSNorm_l(v_i)) v_i of the sources v_i; so is the output.

    The sources are the embedding and the sums of ``block_size`` branch outputs; the last sum may have fewer. w starts
    at zero: the mean of the sources. Scores and sums are per token, so that decoding needs no state.

    Args:
        embed_dim: D.
        block_size: branches per source; 1 is the full form, with memory for every branch output.
    """

    def __init__(self, layers: Iterable[nn.Module], *, embed_dim: int, block_size: int) -> None:
        super().__init__(layers)
        self.block_size = block_size
        self.depth_query = nn.Parameter(torch.zeros(2 * len(self) + 1, embed_dim))
        self.depth_norm = nn.Parameter(torch.ones(2 * len(self) + 1, embed_dim))

    def join(self, branches: Sequence[Branch], x: Tensor) -> Tensor:
        sources = [x]
        for number, (branch, vector) in enumerate(zip(branches, self.depth_query * self.depth_norm, strict=False)):
            y = branch(mix(sources, vector))
            if number % self.block_size:
                sources[-1] = sources[-1] + y
            else:
                sources.append(y)
        return mix(sources, self.depth_query[-1] * self.depth_norm[-1])


def mix(sources: Sequence[Tensor], vector: Tensor) -> Tensor:
    """Return sum_i softmax_i(vector v_i / rms(v_i)) v_i for sources v [B, N, D], in float32 or wider inside."""
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in sources]
    scores = [(x * vector).sum(dim=-1) * (x.square().mean(dim=-1) + DEPTH_EPS).rsqrt() for x in wide]
    mixed = torch.zeros_like(wide[0])
    for x, weight in zip(wide, torch.stack(scores).softmax(dim=0), strict=True):
        mixed = torch.addcmul(mixed, x, weight.unsqueeze(-1))
    return mixed.to(sources[0].dtype)
