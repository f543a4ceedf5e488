"""Triton kernel of farthest point sampling: one program per cloud, which holds all its points in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def farthest_points_kernel(
    points: tl.tensor,
    chosen: tl.tensor,
    num_points: tl.tensor,
    num_steps: tl.tensor,
    stride: tl.tensor,
    NEAR_ORIGIN: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Choose the second point and the next ones up to ``num_steps``, each the farthest from those before it."""
    cloud = points + tl.program_id(0).to(tl.int64) * num_points * 3
    of_cloud = chosen + tl.program_id(0).to(tl.int64) * stride
    index = tl.arange(0, TILE)
    inside = index < num_points
    x = tl.load(cloud + 3 * index, mask=inside, other=0.0)
    y = tl.load(cloud + 3 * index + 1, mask=inside, other=0.0)
    z = tl.load(cloud + 3 * index + 2, mask=inside, other=0.0)
    distance = tl.where(x * x + y * y + z * z <= NEAR_ORIGIN, -1.0, float("inf"))
    distance = tl.where(inside, distance, -float("inf"))
    last = 0
    for step in tl.range(1, num_steps):
        dx = x - tl.load(cloud + 3 * last)
        dy = y - tl.load(cloud + 3 * last + 1)
        dz = z - tl.load(cloud + 3 * last + 2)
        distance = tl.minimum(distance, dx * dx + dy * dy + dz * dz)
        last = tl.argmax(distance, axis=0)
        tl.store(of_cloud + step, last)


def choose_farthest(points: Tensor, chosen: Tensor, near_origin: float) -> None:
    """Fill ``chosen`` [B, count] from its second column, one of each of ``points`` [B, N, 3], float32."""
    points, num_points = points.contiguous(), points.shape[1]
    with torch.cuda.device_of(points):
        farthest_points_kernel[(len(points),)](
            points,
            chosen,
            num_points,
            min(chosen.shape[1], num_points),
            chosen.stride(0),
            NEAR_ORIGIN=near_origin,
            **tile(num_points),
            enable_fp_fusion=False,  # distances are rounded as in PyTorch
        )


def tile(num_points: int) -> dict[str, int]:
    """Return the size of a tile around all points, and its number of warps, of which a thread has up to 16 points."""
    size = triton.next_power_of_2(num_points)
    return {"TILE": size, "num_warps": min(max(size // 256, 1), 32)}
