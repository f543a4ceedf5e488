"""K of a cell: its variance, its marks, and the anchors. tests/cab/results/test_columns.py recomputes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cab.errors import UserError
from cab.records.record import REFERENCE_DIRS, Cost, Status
from cab.results.cells import ANCHORS_FILE, Anchors, collect, read_anchors, read_suite, records_of
from cab.results.gain import CellGain, cell_gains, gains_of, is_diverged, is_unfinished, suite_gains
from cab.results.verdict import gain_text
from tests.cab.results.suite_records import (
    CELLS,
    made_suite as made_suite,
    seeds,
    suite_record,
    value_record,
    with_config,
)
from tools.suite.suite_anchors import write_anchors

CELL = CELLS["lstf"]
MADE = Anchors("", {"vanilla": [0.0064, 0.0065, 0.0063], "none": [0.70, 0.702, 0.698]}, {})


def gains(**values: list[float]) -> dict[str, CellGain]:
    return gains_of(CELL, MADE, values)


def test_the_steps_of_an_anchor_are_shown_if_every_seed_solves_the_cell(made_suite: Path) -> None:
    own = suite_gains(read_suite([made_suite]))[CELL.key]
    assert own["vanilla"].steps is not None
    assert own["vanilla"].steps.value == 120
    assert own["none"].steps is None


@pytest.mark.usefixtures("made_suite")
def test_seeds_without_a_score_because_they_diverged_are_counted() -> None:
    lost = dataclasses.replace(suite_record("lstf", "abc", 50, 3), status=Status.DIVERGED)
    own = suite_gains(collect([suite_record("lstf", "abc", 50), suite_record("lstf", "abc", 51, 2), lost]))
    assert (len(own[CELL.key]["abc"].points), own[CELL.key]["abc"].diverged) == (2, 1)


def test_clipping_and_solved_seeds() -> None:
    found = gains(worse=[0.8, 0.81, 0.82], mixed=[0.0064, 0.01, 0.5])
    assert found["worse"].estimate.value < 0
    assert found["worse"].retained == 0
    assert (found["mixed"].solved, len(found["mixed"].points)) == (2, 3)


@pytest.mark.parametrize(
    ("losses", "unfinished", "diverged"),
    [
        ([2.0, 1.5, 1.2, 1.1, 1.05], True, False),  # 2.5 points in the last fifth of the steps
        ([2.0, 1.5, 1.2, 1.1, 1.07], False, False),
        ([2.0, 1.5, 1.2, 1.1, 1.31], False, True),  # 10.5 points below the best
        ([2.0, 1.5, 1.2, 1.1, 1.29], False, False),
    ],
)
def test_training_that_is_unfinished_or_diverges(losses: list[float], unfinished: bool, diverged: bool) -> None:
    """K of the validation loss is 0 at 2.0 and 100 at 0.0; the budget is 500 steps."""
    anchors = Anchors("", MADE.test, {"vanilla": [0.0], "none": [2.0]})
    history = [{"step": 100 * n, "loss": 1.0, "validation": loss} for n, loss in enumerate(losses, 1)]
    record = dataclasses.replace(suite_record("lstf", "abc", 50), history=history)
    record = with_config(record, trainer={**record.config["trainer"], "max_steps": 500})
    assert (is_unfinished(record, anchors), is_diverged(record, anchors)) == (unfinished, diverged)
    solved = dataclasses.replace(record, cost=Cost(steps_to_solve=400))
    assert not is_unfinished(solved, anchors)
    assert not is_diverged(solved, anchors)
    assert not is_unfinished(record, MADE), "no anchors of the loss"


def test_a_lower_bound_is_below_the_ceiling_and_did_not_diverge() -> None:
    gain = dataclasses.replace(gains(abc=[0.1, 0.11])["abc"], unfinished=1)
    assert gain.is_lower_bound
    assert gain_text(gain).startswith("≥ ")
    assert not dataclasses.replace(gain, diverged=1).is_lower_bound
    assert not dataclasses.replace(gains(abc=[0.0064, 0.0065])["abc"], unfinished=1).is_lower_bound


@pytest.mark.usefixtures("made_suite")
def test_few_slots_are_noted() -> None:
    """Four slots for 64 facts; a memory of another kind has no such limit."""
    records = [suite_record("probe", name, 10) for name in ("abc", "linear")]
    few = suite_record("probe", "abc", 10, 2)
    records.append(with_config(few, attention={**few.config["attention"], "num_landmarks": 4}))
    [found] = [cell_gains(results) for results in collect(records) if results.runs]
    assert (found["abc"].slots, found["linear"].slots) == ("4 slots for 64 facts", "")


@pytest.mark.usefixtures("made_suite")
def test_anchors_are_frozen() -> None:
    """Results of the anchors change no score, and other data than the anchors' are excluded."""
    good = seeds("lstf", "abc", 80)
    strange = [suite_record("lstf", "vanilla", 50, 9), suite_record("lstf", "linear", 80, data={"rows": 3})]
    [lone], [both] = ([r for r in collect(records) if r.runs] for records in (good, [*good, *strange]))
    assert both.left_out == {"linear": "seed 1 has data or a version of the task other than the anchors'"}
    assert suite_gains([lone]) == suite_gains([both])


def test_two_results_of_one_seed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cab.results.cells.read_anchors", dict
    )  # made results have other data than the committed anchors
    with pytest.raises(UserError, match="two results of abc with seed 1 in lm gpt2 CS"):
        collect([suite_record("lm", "abc", 80), suite_record("lm", "abc", 70)])


def test_anchors_are_written(tmp_path: Path) -> None:
    path = tmp_path / "anchors.csv"
    values = {"vanilla": 0.1, "none": 0.9}
    records = [value_record(CELL, name, value, seed) for name, value in values.items() for seed in (1, 2)]
    assert write_anchors([*records, value_record(CELL, "abc", 0.1)], path) == 4
    assert read_anchors(path)[CELL.key].test == {name: [value, value] for name, value in values.items()}
    with pytest.raises(UserError, match="different data"):
        write_anchors([*records, value_record(CELL, "none", 0.9, 3, data={"rows": 3})], path)
    with pytest.raises(UserError, match="no cell of the suite has results of vanilla and none"):
        write_anchors([], path)


def test_committed_anchors_are_of_committed_results(tmp_path: Path) -> None:
    written = tmp_path / "anchors.csv"
    write_anchors(records_of(REFERENCE_DIRS), written)
    assert set(ANCHORS_FILE.read_text().splitlines()) <= set(written.read_text().splitlines())
