"""The kernel of farthest points against the loop, under Triton's interpreter: run by test_points.py.

The interpreter has to be chosen before Triton is loaded, so this runs in a process of its own (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import pytest
import torch

from backbones.layers.points import farthest_points
from cab.kernels import used
from tests.backbones.layers.test_points import clouds
from tests.helpers.attentions.interpreter import run_on_a_cpu


@pytest.mark.parametrize(("num_points", "count"), [(37, 20), (37, 37), (37, 50), (64, 64), (300, 280), (1, 1), (1, 3)])
def test_the_kernel_chooses_the_points_of_the_loop(
    num_points: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = clouds(num_points).transpose(1, 2).contiguous().transpose(1, 2)
    expected = farthest_points(points, count)
    run_on_a_cpu("triton", monkeypatch)
    with used() as uses:
        assert torch.equal(farthest_points(points, count), expected)
    assert uses.counts == {"farthest_points": {"triton": 1}}
