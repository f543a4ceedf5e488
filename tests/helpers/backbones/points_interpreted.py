"""The kernel of farthest points against the loop, under Triton's interpreter: run by test_points.py.

The interpreter has to be chosen before Triton is loaded, so this runs in a process of its own (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import pytest
import torch

from backbones.layers import points as layers
from backbones.layers.points import farthest_points
from tests.backbones.layers.test_points import clouds


@pytest.mark.parametrize(("num_points", "count"), [(37, 20), (37, 37), (37, 50), (64, 64), (300, 280), (1, 1), (1, 3)])
def test_the_kernel_chooses_the_points_of_the_loop(
    num_points: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = clouds(num_points).transpose(1, 2).contiguous().transpose(1, 2)
    expected = farthest_points(points, count)
    monkeypatch.setattr(layers, "uses_triton", lambda _: True)
    assert torch.equal(farthest_points(points, count), expected)
