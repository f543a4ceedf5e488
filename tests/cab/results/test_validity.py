"""Validation of a cell of the suite, from results by hand."""

import dataclasses
import math
from typing import Any

import pytest

from cab.results.retained import suite_runs
from cab.results.validity import check_cell, invalid_cells
from cab.results.verdict import frame_of
from tests.helpers.suite_records import CELLS, made_anchors, value_record
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
FEW = {**{name: values[:1] for name, values in GOOD.items()}, "abc": [0.1], "ssd": [0.1], "local": [0.9]}


def check(changes: dict[str, list[float]] | None = None, **baselines: float) -> dict[str, Any]:
    values = {**GOOD, **(changes or {})}
    made = made_anchors()[CELL.key]
    anchors = dataclasses.replace(made, test={name: values.pop(name) for name in ("vanilla", "none")})
    known = {name: {"mse": value} for name, value in (baselines or {"ridge": 1.0}).items()}
    records = [value_record(CELL, name, x, seed) for name, own in values.items() for seed, x in enumerate(own)]
    records = [dataclasses.replace(record, baselines=known) for record in records]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cab.results.cells.read_anchors", lambda: {CELL.key: anchors})
        runs = suite_runs(frame_of(records))
    return check_cell(CELL, anchors, runs)


def test_a_cell_that_measures_attention_and_grades():
    found = check()
    assert (found["measures"], found["grades"], found["attentions"]) == ("yes", "yes", 4)
    assert found["gap_lost"] == pytest.approx(0.8 / 0.89)
    assert (found["different_pairs"], found["graded"]) == (1.0, 1.0)
    assert found["worse"] == found["compared"] == "local linear abc"


@pytest.mark.parametrize(
    ("changes", "baselines", "column", "flaw"),
    [
        ({"none": [0.10, 0.25, 0.20]}, {"ridge": 1.0}, "measures", "of the range from trivial to best"),
        ({"local": [0.11, 0.10, 0.12]}, {"ridge": 1.0}, "measures", "local is not significantly worse than vanilla"),
        ({}, {"ridge": 1.0, "bound": 0.1}, "measures", "vanilla does not exceed bound"),
        (ALIKE, {}, "grades", "of pairs differ significantly"),
        (SOLVED, {}, "grades", "have K from 5 to 95"),
        (FEW, {}, "grades", "25% of attentions have K from 5 to 95 (minimum 50%)"),
        ({"none": [0.9]}, {}, "measures", "not judged: no anchors with two seeds of vanilla and none"),
        ({}, {"mean": 1.0}, "measures", "not judged: no record contains baseline ridge"),
    ],
)
def test_why_a_cell_does_not_measure_or_grade(changes, baselines, column, flaw):
    assert flaw in check(changes, **baselines)[column]


def test_a_cell_without_results_is_not_judged():
    assert check_cell(CELL, made_anchors()[CELL.key], suite_runs(frame_of([])))["measures"] == "not judged: no results"


def test_the_share_of_pairs_is_not_corrected_for_their_number():
    """Welch's p is at most 0.03 per pair. After Holm's correction, four of the ten have 0.06."""
    first = {"abc": 0.42, "linear": 0.62, "ssd": 0.24, "local": 0.82}
    changes = {name: [value, value + 0.06, value + 0.12] for name, value in first.items()}
    assert check(changes)["different_pairs"] == 1.0


def test_tuned_attentions_are_not_counted_twice():
    assert check({f"{name}(tuned)": GOOD[name] for name in ("abc", "linear", "ssd")}) == check()


def test_few_attentions_are_not_judged():
    """Pairs with none do not count. An attention with one seed counts for the share with K from 5 to 95 only."""
    found = check({"abc": [0.4]})
    assert (found["attentions"], found["graded"], found["measures"], found["grades"]) == (3, 1.0, "yes", "yes")
    assert math.isnan(found["different_pairs"])


def test_the_table_of_invalid_cells_is_what_is_computed():
    """The page reads it, and no records."""
    rows = [(*key, reason) for key, reason in invalid_cells().items()]
    assert [*tables.invalid_cells()][1:] == rows, "run python -m tools.suite.tables"
