"""A small suite by hand: records of the core cells of pattern CS, and their anchors."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from cab.records.record import Record
from cab.results.cells import Anchors, Key, SuiteCell, data_hash, read_anchors, suite_cells
from tests.helpers.made_records import make_record

CELLS = {cell.task: cell for cell in suite_cells() if cell.core and cell.pattern == "CS"}
ENDS = {"lstf": (0.0064, 0.70), "lm": (1.0, 16.0), "probe": (1.0, 0.03)}
"""The metric with softmax attention and without attention."""
OFFSETS = {1: 0.0, 2: 0.3, 3: -0.3, 4: 0.1, 5: -0.1}  # offset of each seed, in points of K


def suite_record(task: str, attention: str, share: float, seed: int = 1, **changes: Any) -> Record:
    """A run that retains ``share`` percent of softmax's gain, on the metric's own scale."""
    cell, (best, worst) = CELLS[task], ENDS[task]
    is_log, part = cell.scale == "log", share / 100
    value = worst * (best / worst) ** part if is_log else worst + (best - worst) * part
    return value_record(cell, attention, value, seed, **changes)


def value_record(cell: SuiteCell, attention: str, value: float, seed: int = 1, **changes: Any) -> Record:
    names: dict[str, Any] = {"task": cell.task, "backbone": cell.backbone, "pattern": cell.pattern}
    names |= {"dataset": cell.dataset, "config_variant": "", "attention": attention, "seed": seed}
    names |= {"verified": ".py" not in attention, **changes}
    baselines = {cell.trivial_baseline: {cell.metric: ENDS[cell.task][1]}}
    return make_record({cell.metric: value}, baselines=baselines, **names)


def with_config(record: Record, **groups: Any) -> Record:
    return dataclasses.replace(record, config={**record.config, **groups})


def seeds(task: str, attention: str, share: float, count: int = 3, **changes: Any) -> list[Record]:
    """Runs that differ by a few tenths of a point."""
    return [suite_record(task, attention, share + OFFSETS[seed], seed, **changes) for seed in range(1, count + 1)]


@functools.cache
def made_anchors() -> dict[Key, Anchors]:
    """Five seeds of both anchors in each cell."""
    found = {}
    for task, cell in CELLS.items():
        runs = {"vanilla": seeds(task, "vanilla", 100, 5), "none": seeds(task, "none", 0, 5)}
        test = {name: [cell.value(run) for run in own] for name, own in runs.items()}
        steps = {"vanilla": [100, 110, 120, 130, 140], "none": [9]}
        found[cell.key] = Anchors(data_hash(runs["none"][0]), test, {}, steps, read_anchors()[cell.key].run)
    return found


@pytest.fixture
def made_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of reference results: three attentions in all cells, two in one."""
    monkeypatch.setattr("cab.results.cells.read_anchors", made_anchors)
    folder = tmp_path / "reference"
    for module in ("load", "verdict"):
        monkeypatch.setattr(f"cab.results.{module}.REFERENCE_DIRS", (folder,))
    shares = {"abc": (99.9, 98.0, 99.0), "linear": (50.0, 60.0, 95.0), "local": (0.0, 20.0, 3.0)}
    records = [
        run for name, own in shares.items() for task, k in zip(CELLS, own, strict=True) for run in seeds(task, name, k)
    ]
    records += [*seeds("lstf", "gla", 30), *seeds("lstf", "ssd", 99.9)]
    for record in records:
        record.write(folder)
    return folder
