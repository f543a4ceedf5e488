"""The Gaussian kernel of queries and keys.

Shapes: B batch, H heads, N and M tokens, E width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attentions.kernels.chunks import sums_by_targets


def gaussian(x: Tensor, y: Tensor, masked: Tensor | None = None) -> Tensor:
    """exp(-|x_i - y_j|^2 / (2 sqrt(E))), [B, H, N, M], of x [B, H, N, E] and y [B, H, M, E]; zero where ``masked``.

    The exponent is a difference of products, which rounding may bring above zero: it is held there.
    """
    scale = x.shape[-1] ** -0.5
    norms = x.square().sum(dim=-1, keepdim=True) + y.square().sum(dim=-1).unsqueeze(-2)
    weights = (x @ y.mT - 0.5 * norms).mul(scale).clamp(max=0.0).exp()
    return weights if masked is None else weights.masked_fill(masked, 0.0)


def gaussian_sums(x: Tensor, y: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Multiply :func:`gaussian` with ``value`` [B, H, M, E] in chunks of x; ``hidden`` y [B, M] have no weight."""
    mask = None if hidden is None else hidden[:, None, None]
    return sums_by_targets(lambda some, _: gaussian(x[:, :, some], y, mask), x, value, is_causal=False)


def solve_regularized(matrix: Tensor, right: Tensor, ridge: float) -> Tensor:
    """Compute (matrix + ridge I)^-1 right for a symmetric positive semidefinite ``matrix``."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.cholesky_solve(right, torch.linalg.cholesky(matrix + ridge * identity))
