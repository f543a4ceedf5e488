"""Farthest points: the Triton kernel, interpreted and compiled for a GPU, and the operator of torch.compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backbones.layers.points import MOST_POINTS, NEAR_ORIGIN, farthest_points
from tests.helpers.attentions.interpreter import compiled, needs_triton

INTERPRETED = Path(__file__).parents[2] / "helpers" / "backbones" / "points_interpreted.py"


def clouds(num_points: int) -> Tensor:
    """Four clouds: random; half of it zero padding; on a grid, with many equal distances; all points at the origin."""
    grid = torch.randint(-2, 3, (num_points, 3)).float()
    padded = torch.randn(num_points, 3)
    padded[num_points // 2 :] = 0.0
    return torch.stack([torch.randn(num_points, 3), padded, grid, torch.zeros(num_points, 3)])


@needs_triton
def test_the_kernel_chooses_the_points_of_the_loop() -> None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", str(INTERPRETED)]
    run = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@needs_triton
@pytest.mark.parametrize("num_points", [2048, MOST_POINTS])
def test_the_kernel_compiles_for_a_gpu(num_points: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backbones.layers.triton_kernels import farthest_points_kernel, tile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = tile(num_points)
    constants = {"NEAR_ORIGIN": NEAR_ORIGIN, "TILE": sizes["TILE"]}
    numbers = dict.fromkeys(("num_points", "num_steps", "stride"), "i32")
    tensors = {"points": "*fp32", "chosen": "*i64"}
    made = compiled(farthest_points_kernel, tensors, numbers, constants, sizes["num_warps"])
    assert ".target sm_90" in made.asm["ptx"]
    assert made.metadata.shared <= 1024  # for the reductions: the points are in registers


def test_the_compiler_reads_one_operator() -> None:
    points = clouds(37)
    read = torch.compile(lambda x: farthest_points(x, 40) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(read(points), farthest_points(points, 40) + 1)
