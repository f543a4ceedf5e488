"""Distances between point clouds, in memory that does not grow with the product of their sizes."""

from __future__ import annotations

import torch
from torch import Tensor

PAIRS = 1 << 24  # distances in memory at once


@torch.no_grad()
def nearest(points: Tensor, others: Tensor) -> Tensor:
    """Return the index [B, N] into ``others`` [B, M, 3] of the point nearest to each of ``points`` [B, N, 3]."""
    rows = max(1, PAIRS // (len(points) * others.shape[1]))
    points, others = points.float(), others.float()
    return torch.cat([torch.cdist(part, others).argmin(dim=2) for part in points.split(rows, dim=1)], dim=1)


def distances(points: Tensor, others: Tensor) -> Tensor:
    """Return the squared distance [B, N] from ``points`` to the nearest of ``others``, differentiable in both."""
    index = nearest(points, others).unsqueeze(-1).expand(-1, -1, 3)
    return (points - others.gather(1, index)).square().sum(dim=-1)


def chamfer_l1(points: Tensor, truth: Tensor) -> Tensor:
    """Return the mean distance to the nearest point, averaged over directions, [B] (Yu et al. 2021, section 4.1)."""
    both = [distances(a, b).clamp(min=1e-12).sqrt().mean(dim=1) for a, b in ((points, truth), (truth, points))]
    return (both[0] + both[1]) / 2


def chamfer_l2(points: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared distance to the nearest point, summed over both directions, [B]."""
    return distances(points, truth).mean(dim=1) + distances(truth, points).mean(dim=1)


def f_score(points: Tensor, truth: Tensor, threshold: float = 0.01) -> Tensor:
    """Return the harmonic mean of the fractions of points within ``threshold`` of the other cloud, [B]."""
    precision, recall = (
        (distances(a, b) < threshold**2).float().mean(dim=1) for a, b in ((points, truth), (truth, points))
    )
    total = precision + recall
    return torch.where(total > 0, 2 * precision * recall / total.clamp(min=1e-12), 0.0)
