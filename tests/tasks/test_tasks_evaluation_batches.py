"""A validation score does not depend on the number of examples per batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cab.config.compose import compose
from cab.runner.cell import Cell
from cab.runner.engine import make_initial_backbone
from cab.runner.evaluation import DeviceBatches
from tests.helpers.runs.step_gradients import CELLS, cut, without_draws, write_pairs


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_validation_is_a_mean_over_all_examples(name: str, tmp_path: Path) -> None:
    write_pairs(tmp_path)
    cell = Cell.from_config(
        compose([f"task={name.partition(' ')[0]}", "attention=vanilla", "preset=smoke", *CELLS[name]])
    )
    task: Any = cell.task
    task.setup(tmp_path)
    without_draws(task)
    if name.startswith("tts"):
        task.splits["dev"].utterances = [cut(u, 4 + i % 7) for i, u in enumerate(task.splits["dev"].utterances)]
    network, batches = make_initial_backbone(cell).eval(), DeviceBatches(torch.device("cpu"))
    scores = []
    for size in (5, 1000):
        task.evaluation_batch_size = size
        with torch.no_grad():
            scores.append(task.validate(network, batches))
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
