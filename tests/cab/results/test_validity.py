"""Validation of a cell of the suite, from results by hand."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.registry.registries import TASKS
from cab.results.cells import suite_cells
from cab.results.retained import suite_runs
from cab.results.validity import CHECKS, check_cell, invalid_cells, missing_evidence
from cab.results.verdict import frame_of
from tests.helpers.command import Command
from tests.helpers.suite_records import CELLS, made_anchors, suite_record, value_record
from tools.suite import tables

CELL = dataclasses.replace(CELLS["lstf"], memory_bounded_baseline="bound", long_memory=True)
GOOD = {
    "vanilla": [0.10, 0.11, 0.12],
    "none": [0.90, 0.91, 0.92],
    "abc": [0.40, 0.41, 0.42],
    "linear": [0.60, 0.62, 0.61],
    "ssd": [0.25, 0.26, 0.24],
    "local": [0.80, 0.82, 0.81],
}
ALIKE = {"abc": [0.2, 0.5, 0.8], "linear": [0.2, 0.5, 0.7], "ssd": [0.3, 0.6, 0.8]}
SOLVED = {"abc": [0.11, 0.1, 0.12], "linear": [0.11, 0.12, 0.12], "ssd": [0.1, 0.1, 0.11]}


def check(changes: dict[str, list[float]] | None = None, **baselines: float) -> dict[str, Any]:
    values = {**GOOD, **(changes or {})}
    made = made_anchors()[CELL.key]
    anchors = dataclasses.replace(made, test={name: values.pop(name) for name in ("vanilla", "none")})
    known = {name: {"mse": value} for name, value in (baselines or {"ridge": 1.0}).items()}
    records = [
        dataclasses.replace(value_record(CELL, name, value, seed), baselines=known)
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cab.results.cells.read_anchors", lambda: {CELL.key: anchors})
        runs = suite_runs(frame_of(records))
    return check_cell(CELL, anchors, runs)


def evidence(**changes: str) -> list[str]:
    return missing_evidence(pd.DataFrame([check() | changes], columns=CHECKS))


def test_a_cell_that_measures_attention_and_grades() -> None:
    found = check()
    assert (found["measures"], found["grades"], found["attentions"]) == ("yes", "yes", 4)
    assert found["gap_lost"] == pytest.approx(0.8 / 0.89)
    assert (found["different_pairs"], found["graded"]) == (1.0, 1.0)
    assert found["worse"] == found["compared"] == "local linear abc"
    assert evidence() == []


@pytest.mark.parametrize(
    ("changes", "baselines", "column", "flaw"),
    [
        ({"none": [0.10, 0.25, 0.20]}, {"ridge": 1.0}, "measures", "of the range from trivial to best"),
        ({"local": [0.11, 0.10, 0.12]}, {"ridge": 1.0}, "measures", "local is not significantly worse than vanilla"),
        ({}, {"ridge": 1.0, "bound": 0.1}, "measures", "vanilla does not exceed bound"),
        (ALIKE, {}, "grades", "of pairs differ significantly"),
        (SOLVED, {}, "grades", "have K from 5 to 95"),
    ],
)
def test_why_a_cell_does_not_measure_or_grade(
    changes: dict[str, list[float]], baselines: dict[str, float], column: str, flaw: str
) -> None:
    assert flaw in check(changes, **baselines)[column]


def test_a_cell_without_anchors_or_baseline_is_not_judged() -> None:
    found = check({"none": [0.9]})
    assert found["measures"] == "not judged: no anchors with two seeds of vanilla and none"
    assert check_cell(CELL, made_anchors()[CELL.key], suite_runs(frame_of([])))["measures"] == "not judged: no results"
    assert check(mean=1.0)["measures"] == "not judged: no record contains baseline ridge"


def test_evidence_is_missing_only_of_tested_attentions() -> None:
    assert evidence(worse="") == [
        "no causal cell in which local is significantly worse than vanilla",
        "no cell of pattern CS in which a constant-size state is significantly worse than vanilla",
    ]
    assert evidence(worse="", compared="") == []


def test_the_share_of_pairs_is_not_corrected_for_their_number() -> None:
    """Welch's p is at most 0.03 per pair. After Holm's correction, four of the ten have 0.06."""
    first = {"abc": 0.42, "linear": 0.62, "ssd": 0.24, "local": 0.82}
    changes = {name: [value, value + 0.06, value + 0.12] for name, value in first.items()}
    assert check(changes)["different_pairs"] == 1.0


def test_tuned_attentions_are_not_counted_twice() -> None:
    assert check({f"{name}(tuned)": GOOD[name] for name in ("abc", "linear", "ssd")}) == check()


def test_few_attentions_are_not_judged() -> None:
    """Pairs with none do not count. An attention with one seed counts for the share with K from 5 to 95 only."""
    found = check({"abc": [0.4]})
    assert (found["attentions"], found["graded"], found["measures"], found["grades"]) == (3, 1.0, "yes", "yes")
    assert math.isnan(found["different_pairs"])
    single = {name: values[:1] for name, values in GOOD.items()}
    found = check({**single, "abc": [0.1], "ssd": [0.1], "local": [0.9]})
    assert found["grades"] == "25% of attentions have K from 5 to 95 (minimum 50%)"


def test_the_cells_are_those_that_the_tasks_are_tested_in() -> None:
    named = {(cell.task, cell.backbone, cell.pattern) for cell in suite_cells()}
    tested = {
        (task.name, backbone, str(pattern))
        for task in TASKS
        if "synthetic" in task.datasets or task.name == "probe"
        for backbone, patterns in task.backbones.items()
        for pattern in patterns
    }
    assert named <= tested
    assert len(named) == len(suite_cells()) == 19


def test_every_cell_is_judged_by_a_primary_metric_of_its_task() -> None:
    for cell in suite_cells():
        metrics = TASKS.get(cell.task).build(dataset=cell.dataset).metrics
        assert cell.metric in {metric.name for metric in metrics if metric.primary}, cell


def test_no_results_are_no_pass(tmp_path: Path, cab: Command) -> None:
    assert "is of a cell of the suite" in cab("score", tmp_path, "--check", status=2).err


def test_the_table_and_its_csv(cab: Command) -> None:
    rows = {row["cell"]: row for row in cab("score", "--check", "--csv").rows}
    assert (rows["sr sr3 NS"]["grades"], rows["sr sr3 NS"]["measures"]) == ("not judged", "yes")
    assert float(rows["lstf informer NS"]["gap_lost"]) == pytest.approx(0.47, abs=0.01)
    assert "17 of 17 judged cells measure attention" in cab("score", "--check").out


def test_cells_without_results_are_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cab: Command) -> None:
    monkeypatch.setattr("cab.results.cells.read_anchors", made_anchors)
    suite_record("lstf", "abc", 80).write(tmp_path)
    rows = {row["cell"]: row["measures"] for row in cab("score", tmp_path, "--check", "--csv").rows}
    assert rows["lm gpt2 CS"] == "not judged: no results"
    assert rows["mlm roberta NS"] == "not judged: no anchors with two seeds of vanilla and none"


def test_the_table_of_invalid_cells_is_what_is_computed() -> None:
    """The page reads it, and no records."""
    rows = [(*key, reason) for key, reason in invalid_cells().items()]
    assert [*tables.invalid_cells()][1:] == rows, "run python -m tools.suite.tables"
