"""Runs of the suite: which have a score, and what their history shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.cli.main import main
from cab.errors import UserError
from cab.records.files import REFERENCE_DIRS
from cab.records.identity import hash_of
from cab.records.record import Cost, Record, Status
from cab.results.cells import Anchors
from cab.results.gain import gains_of
from cab.results.runs import baselines_of, by_cell, is_diverged, is_unfinished, read_runs, suite_runs, unscored
from tests.helpers.suite_records import made_suite as made_suite, seeds, suite_record, with_config

MADE = Anchors("", {"vanilla": [0.0064, 0.0065], "none": [0.70, 0.702]}, {})


def scored(runs: pd.DataFrame) -> dict[str, int]:
    """Number of seeds with a score, without the anchors."""
    own = runs[(runs["reason"] == "") & ~runs["attention"].isin(["vanilla", "none"])]
    return own.groupby("attention").size().to_dict()


def reasons(runs: pd.DataFrame) -> dict[str, str]:
    """Why attentions have a seed without a score."""
    return dict(unscored(runs)[["attention", "reason"]].itertuples(index=False, name=None))


@pytest.mark.usefixtures("made_suite")
def test_runs_with_other_settings_have_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A tuned learning rate is not another setting, nor is a newer option with its default."""
    changes: dict[str, dict[str, Any]] = {
        "same": {"trainer": {"newer": 1, "batch_size": 32, "learning_rate": 0.003}},
        "short": {"trainer": {"max_steps": 9}, "backbone": {"embed_dim": 6}},
        "rate": {"trainer": {"learning_rate": 0.7}},
        "tuned": {"trainer": {"learning_rate": 0.7}, "tuning": {"seed": 1000, "grid": []}},
        "others": {"other_attention": "linear"},
        "newer": {"trainer": {"newer": 1}},
    }
    records = [suite_record("lstf", name, 80, config=groups) for name, groups in changes.items()]
    defaults = {name: value for name, value in records[0].changed.items() if name != "trainer.newer"}
    records[0] = dataclasses.replace(records[0], changed=defaults, hash=hash_of(defaults))
    records.append(with_config(suite_record("lstf", "lacking", 80), task={"name": "lstf"}))
    runs = suite_runs(records)
    start = "seed 1 has other settings than the suite's: "
    assert scored(runs) == {"same": 1, "tuned": 1}
    assert reasons(runs) == {
        "short": start + "backbone.embed_dim=6, trainer.max_steps=9",
        "rate": start + "trainer.learning_rate=0.7",
        "others": start + "other_attention=linear",
        "newer": start + "trainer.newer=1",
        "lacking": start + "task.hours=null, task.pred_len=null, task.seq_len=null",
    }
    for run in records[:2]:
        run.write(tmp_path / "own")
    main(["score", str(tmp_path / "own"), "--check"])
    assert f"not scored in lstf informer CS: short ({reasons(runs)['short']})" in caplog.messages
    main(["score", str(tmp_path / "own"), "--score", "K"])
    shown = capsys.readouterr()
    assert "short" not in shown.out
    assert f"short: no K in lstf CS: {reasons(runs)['short']}" in shown.err


@pytest.mark.usefixtures("made_suite")
def test_anchors_are_frozen() -> None:
    """Results of the anchors change no score, and other data than the anchors' are excluded."""
    good = seeds("lstf", "abc", 80)
    strange = [suite_record("lstf", "vanilla", 50, 9), suite_record("lstf", "linear", 80, data={"rows": 3})]
    runs = suite_runs([*good, *strange])
    assert reasons(runs) == {"linear": "seed 1 has data or a version of the task other than the anchors'"}
    gains = gains_of(runs)
    pd.testing.assert_frame_equal(gains[gains["seeds"] > 0], gains_of(suite_runs(good)))
    assert baselines_of(suite_runs(strange[:1]), "mse") == {"ridge": 0.7}, "also of an anchor"


def test_a_cell_without_anchors_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cab.results.cells.read_anchors", dict)
    assert reasons(suite_runs([suite_record("lm", "abc", 80)])) == {"abc": "the cell has no anchors"}


@pytest.mark.usefixtures("made_suite")
def test_a_copy_counts_once_and_two_results_of_one_seed_are_refused() -> None:
    record = suite_record("lm", "abc", 80)
    assert scored(suite_runs([record, record])) == {"abc": 1}
    with pytest.raises(UserError, match="two results of abc with seed 1 in lm gpt2 CS"):
        suite_runs([record, suite_record("lm", "abc", 70)])


@pytest.mark.usefixtures("made_suite")
def test_seeds_without_a_score_because_they_diverged_are_counted() -> None:
    lost = dataclasses.replace(suite_record("lstf", "abc", 50, 3), status=Status.DIVERGED)
    runs = suite_runs([suite_record("lstf", "abc", 50), suite_record("lstf", "abc", 51, 2), lost])
    [gain] = gains_of(runs).query("attention == 'abc'").itertuples()
    assert (gain.seeds, gain.diverged, gain.note) == (2, 1, "diverged")
    assert reasons(runs) == {"abc": "seed 3 is diverged"}
    again = suite_runs([lost, suite_record("lstf", "abc", 50, 3)])
    assert reasons(again) == {}, "the seed has another run"


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
    anchors = dataclasses.replace(MADE, validation={"vanilla": [0.0], "none": [2.0]})
    record = with_history(suite_record("lstf", "abc", 50), losses)
    assert (is_unfinished(record, anchors), is_diverged(record, anchors)) == (unfinished, diverged)
    solved = dataclasses.replace(record, cost=Cost(steps_to_solve=400))
    assert not is_unfinished(solved, anchors)
    assert not is_diverged(solved, anchors)
    assert not is_unfinished(record, MADE), "no anchors of the loss"


def with_history(record: Record, losses: list[float]) -> Record:
    history: list[Mapping[str, float]] = [
        {"step": 100 * n, "loss": 1.0, "validation": loss} for n, loss in enumerate(losses, 1)
    ]
    record = dataclasses.replace(record, history=history)
    return with_config(record, trainer={**record.config["trainer"], "max_steps": 500})


@pytest.mark.usefixtures("made_suite")
def test_few_slots_are_noted() -> None:
    """Four slots for 64 facts; a memory of another kind has no such limit."""
    records = [suite_record("probe", name, 10) for name in ("abc", "linear")]
    few = suite_record("probe", "abc", 10, 2)
    records.append(with_config(few, attention={**few.config["attention"], "num_landmarks": 4}))
    found = gains_of(suite_runs(records)).set_index("attention")[["slots", "note"]]
    assert found.loc["abc"].tolist() == ["4 slots for 64 facts", "few slots"]
    assert found.loc["linear"].tolist() == ["", ""]


def test_baselines_of_the_cells_are_in_the_reference_results() -> None:
    for cell, runs in by_cell(read_runs(REFERENCE_DIRS)):
        names = {cell.trivial_baseline, cell.memory_bounded_baseline} - {""}
        assert runs.empty or names <= baselines_of(runs, cell.metric).keys(), cell
