"""Point clouds: farthest point sampling, nearest neighbors, edge features, the DGCNN front end of PoinTr."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab.kernels import Backend, Operation

NEAR_ORIGIN = 1e-3
"""Squared distance from the origin at or below which pointnet2_ops ignores points."""
MOST_POINTS = 2**14
"""Number of points that the Triton kernel can hold."""


@torch.no_grad()
def farthest_points(points: Tensor, count: int) -> Tensor:
    """Return the indices [B, count] of farthest point sampling, starting at the first point (Qi et al. 2017).

    As in PoinTr's library, points within sqrt(1e-3) of the origin are never chosen except as the first, so that zero
    padding is ignored. When no candidate remains, the first of the other points is repeated.

    On a GPU with Triton, one kernel chooses all points, instead of seven per point.

    Args:
        points: [B, N, 3].
    """
    return _operator(points, count) if torch.compiler.is_compiling() else _farthest_points(points, count)


def _by_steps(points: Tensor, chosen: Tensor, distance: Tensor) -> None:
    """Choose the points after the first one.

    Args:
        points: [B, N, 3], float32.
        chosen: indices [B, count], of which the second to the N-th are set here.
        distance: of each point from the chosen ones, [B, N]; negative if it is never chosen.
    """
    for i in range(1, min(chosen.shape[1], points.shape[1])):
        last = points.gather(1, chosen[:, i - 1, None, None].expand(-1, 1, 3))
        distance = torch.minimum(distance, (points - last).square().sum(dim=-1))
        chosen[:, i] = distance.argmax(dim=1)


def _by_kernel(points: Tensor, chosen: Tensor, _distance: Tensor) -> None:
    from backbones.layers.triton_kernels import choose_farthest

    choose_farthest(points, chosen, NEAR_ORIGIN)


def _refuses(points: Tensor, *_: Tensor) -> str | None:
    return f"more than {MOST_POINTS} points" if points.shape[1] > MOST_POINTS else None


choose = Operation("farthest_points", _by_steps, Backend("triton", _by_kernel, package="triton", refuses=_refuses))


def _farthest_points(points: Tensor, count: int) -> Tensor:
    batch_size, num_points, _ = points.shape
    points = points.float()
    skipped = points.square().sum(dim=-1) <= NEAR_ORIGIN
    distance = torch.full((batch_size, num_points), torch.inf, device=points.device).masked_fill_(skipped, -1.0)
    chosen = torch.zeros(batch_size, count, dtype=torch.long, device=points.device)
    chosen[:, num_points:] = distance.argmax(dim=1, keepdim=True)  # no candidate remains
    choose(points, chosen, distance)
    return chosen


_operator = torch.library.custom_op("cab::farthest_points", _farthest_points, mutates_args=())


@_operator.register_fake
def _(points: Tensor, count: int) -> Tensor:
    return points.new_empty(len(points), count, dtype=torch.long)


@torch.no_grad()
def nearest_points(queries: Tensor, points: Tensor, count: int) -> Tensor:
    """Return indices [B, M, count] into ``points`` [B, N, 3] of the nearest to each query [B, M, 3]."""
    count = min(count, points.shape[1])
    mode = "donot_use_mm_for_euclid_dist"  # matrix products lose distances away from the origin
    return torch.cdist(queries.float(), points.float(), compute_mode=mode).topk(count, dim=-1, largest=False).indices


def take(x: Tensor, index: Tensor) -> Tensor:
    """Gather ``x`` [B, N, C] at ``index`` [B, ...]: [B, ..., C]."""
    flat = index.flatten(1).unsqueeze(-1).expand(-1, -1, x.shape[-1])
    return x.gather(1, flat).unflatten(1, index.shape[1:])


def edge_features(x: Tensor, neighbors: Tensor, center: Tensor) -> Tensor:
    """Return (neighbor - center, center) for each neighbor (Wang et al. 2019, Eq. 8): [B, M, k, 2C].

    Args:
        x: [B, N, C] features of the points.
        neighbors: [B, M, k] indices into them.
        center: [B, M, C] features of the queries.
    """
    near = take(x, neighbors)
    center = center.unsqueeze(2).expand_as(near)
    return torch.cat([near - center, center], dim=-1)


class EdgeConv(nn.Module):
    """Edge convolution: linear layer, group norm and leaky ReLU on edge features, maximum over neighbors."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * channels_in, channels, bias=False)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor, neighbors: Tensor, center: Tensor) -> Tensor:
        edges = self.linear(edge_features(x, neighbors, center))
        edges = self.norm(edges.flatten(1, 2).transpose(1, 2)).transpose(1, 2).unflatten(1, edges.shape[1:3])
        return F.leaky_relu(edges, 0.2).amax(dim=2)


class PointProxies(nn.Module):
    """Reduce a point cloud [B, P, 3] to point proxies with local features (Yu et al. 2021, section 3.1).

    Args:
        num_kept: number of points after the second sampling.
        num_neighbors: neighbors per edge convolution.
    """

    channels = 128

    def __init__(self, num_kept: int, num_neighbors: int) -> None:
        super().__init__()
        self.num_kept = num_kept
        self.num_neighbors = num_neighbors
        self.input = nn.Linear(3, 8)
        self.convs = nn.ModuleList(EdgeConv(a, b) for a, b in ((8, 32), (32, 64), (64, 64), (64, 128)))

    def forward(self, points: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions [B, n, 3] and features [B, n, 128] of the proxies.

        Args:
            points: [B, P, 3].
            chosen: [B, m] indices from :func:`farthest_points`, m >= n. A second sampling among these would choose the
                first n in order, so it is not run.
        """
        x = self.input(points)
        x = self.convs[0](x, nearest_points(points, points, self.num_neighbors), x)
        kept, center = take(points, chosen), take(x, chosen)
        x = self.convs[1](x, nearest_points(kept, points, self.num_neighbors), center)
        x = self.convs[2](x, nearest_points(kept, kept, self.num_neighbors), x)
        fewer, center = kept[:, : self.num_kept], x[:, : self.num_kept]
        return fewer, self.convs[3](x, nearest_points(fewer, kept, self.num_neighbors), center)
