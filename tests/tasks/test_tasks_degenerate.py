"""A network whose output is zero, NaN or infinite has scores, or NaN: the evaluation never raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cab.config.compose import compose
from cab.runner.cell import Cell
from cab.runner.engine import make_initial_backbone
from cab.runner.evaluation import DeviceBatches
from tests.helpers.runs.step_gradients import CELLS, write_pairs


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_degenerate_network_is_scored(name: str, tmp_path: Path) -> None:
    write_pairs(tmp_path)
    cell = Cell.from_config(
        compose([f"task={name.partition(' ')[0]}", "attention=vanilla", "preset=smoke", *CELLS[name]])
    )
    task: Any = cell.task
    task.setup(tmp_path)
    network, batches = make_initial_backbone(cell).eval(), DeviceBatches(torch.device("cpu"))
    for value in (0.0, float("nan"), float("inf")):
        with torch.no_grad():
            for weights in network.parameters():
                weights.fill_(value)
            assert isinstance(task.validate(network, batches), float)
            scores = task.evaluate(network, batches)
        assert {metric.name for metric in task.metrics} == scores.keys()
        for metric in task.metrics:
            metric.measured(scores[metric.name])
