"""The gate of GTrXL, which replaces the residual sum (Parisotto et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GRUGate(nn.Module):
    """Gate a branch's output into the residual stream, per feature.

    For stream x and branch y, D x D matrices W and U without bias, and a learned vector b:

        r = sigmoid(W_r y + U_r x)
        z = sigmoid(W_z y + U_z x - b)
        h = tanh(W_g y + U_g (r * x))
        (1 - z) * x + z * h

    Args:
        bias: initial value of b; the larger, the closer a layer starts to the identity.
    """

    def __init__(self, embed_dim: int, bias: float) -> None:
        super().__init__()
        self.from_branch = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        """W_r, W_z, W_g."""
        self.from_stream = nn.Linear(embed_dim, 2 * embed_dim, bias=False)
        """U_r, U_z."""
        self.candidate = nn.Linear(embed_dim, embed_dim, bias=False)
        """U_g."""
        self.bias = nn.Parameter(torch.full((embed_dim,), bias))
        for maps in (self.from_branch, self.from_stream, self.candidate):
            for square in maps.weight.split(embed_dim):
                nn.init.xavier_uniform_(square)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Combine stream and branch [..., D] into the new stream [..., D]."""
        branch_r, branch_z, branch_h = self.from_branch(y).chunk(3, dim=-1)
        stream_r, stream_z = self.from_stream(x).chunk(2, dim=-1)
        r, z = torch.sigmoid(branch_r + stream_r), torch.sigmoid(branch_z + stream_z - self.bias)
        return torch.lerp(x, torch.tanh(branch_h + self.candidate(r * x)).to(x.dtype), z.to(x.dtype))
