"""What the steps on a GPU measure, as far as a CPU can show it."""

from __future__ import annotations

from cab.registry.build import without_memory
from cab.runner.engine import make_backbone
from tools.gpu.measurements import lm_cell


def test_lm_has_the_size_of_the_paper() -> None:
    """122,319,360 parameters (Table 14), blocks of 8,192 tokens, at least four."""
    cell = lm_cell("vanilla", (), "cpu")
    with without_memory():
        network = make_backbone(cell, has_memory=False)
    assert sum(weights.numel() for weights in network.parameters()) == 122_319_360
    assert cell.task.training_set[0].shape == (8193,)
    assert len(cell.task.training_set) >= 4  # type: ignore[arg-type]
