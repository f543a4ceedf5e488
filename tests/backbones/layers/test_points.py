"""Farthest points: the Triton kernel, interpreted and compiled, and the operator of torch.compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backbones.layers.points import MOST_POINTS, NEAR_ORIGIN, farthest_points
from cab.kernels import used
from tests.helpers.attentions.interpreter import compiled, needs_triton, run_on_a_cpu


def clouds(num_points: int) -> Tensor:
    """Four clouds: random; half of it zero padding; on a grid, with many equal distances; all points at the origin."""
    grid = torch.randint(-2, 3, (num_points, 3)).float()
    padded = torch.randn(num_points, 3)
    padded[num_points // 2 :] = 0.0
    return torch.stack([torch.randn(num_points, 3), padded, grid, torch.zeros(num_points, 3)])


@pytest.mark.slow
@needs_triton
def test_the_kernel_chooses_the_points_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: the interpreter has to be chosen before Triton is loaded."""
    if "TRITON_INTERPRET" not in os.environ:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", __file__, "-k", "of_the_loop"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        return
    given = [
        (clouds(n).transpose(1, 2).contiguous().transpose(1, 2), count) for n, count in ((37, 20), (37, 50), (1, 3))
    ]
    expected = [farthest_points(*each) for each in given]
    run_on_a_cpu("triton", monkeypatch)
    with used() as uses:
        assert all(torch.equal(farthest_points(*each), other) for each, other in zip(given, expected, strict=True))
    assert uses.counts == {"farthest_points": {"triton": 3}}


@needs_triton
def test_the_kernel_compiles_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backbones.layers.triton_kernels import farthest_points_kernel, tile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = tile(MOST_POINTS)
    constants = {"NEAR_ORIGIN": NEAR_ORIGIN, "TILE": sizes["TILE"]}
    numbers = dict.fromkeys(("num_points", "num_steps", "stride"), "i32")
    tensors = {"points": "*fp32", "chosen": "*i64"}
    made = compiled(farthest_points_kernel, tensors, numbers, constants, sizes["num_warps"])
    assert ".target sm_90" in made.asm["ptx"]
    assert made.metadata.shared <= 1024  # for the reductions: the points are in registers


@pytest.mark.slow
def test_the_compiler_reads_one_operator() -> None:
    points = clouds(37)
    read = torch.compile(lambda x: farthest_points(x, 40) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(read(points), farthest_points(points, 40) + 1)
