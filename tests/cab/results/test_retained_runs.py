"""Runs of the suite: which have K, and why the others have none."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.cli.main import main
from cab.errors import UserError
from cab.records.files import REFERENCE_DIRS
from cab.records.identity import hash_of
from cab.records.record import Status, records_in
from cab.results.load import load, load_results
from cab.results.retained import baselines_of, by_cell, gains_table, suite_runs, unscored
from tests.cab.results.conftest import frame_of
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record, value_record, with_config

KERNELS = REFERENCE_DIRS[0].with_name("cosformer_kernels")


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
    runs = suite_runs(frame_of(records))
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


def test_results_none_of_which_is_scored_have_their_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    gains = gains_table(load_results(KERNELS))
    assert len(gains) > 0
    assert (gains["seeds"] == 0).all()
    assert gains["note"].str.startswith("seed ").all()
    assert main(["score", str(KERNELS), "--score", "K", "--csv"]) == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out), keep_default_na=False)
    assert table["note"].tolist() == gains["note"].tolist()
    assert table[["attention", "seeds", "reached_90"]].to_numpy().tolist() == [
        [name, 0, 0] for name in gains["attention"]
    ]
    assert main(["score", str(KERNELS), "--score", "K"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "no result has K\n"
    assert f"{gains['attention'][0]}: no K in " in shown.err
    assert "nan" not in shown.out + shown.err


@pytest.mark.usefixtures("made_suite")
def test_anchors_are_frozen() -> None:
    """Results of the anchors change no score, and other data than the anchors' are excluded."""
    good = seeds("lstf", "abc", 80)
    strange = [suite_record("lstf", "vanilla", 50, 9), suite_record("lstf", "linear", 80, data={"rows": 3})]
    runs = suite_runs(frame_of([*good, *strange]))
    assert reasons(runs) == {"linear": "seed 1 has data or a version of the task other than the anchors'"}
    gains = gains_table(frame_of([*good, *strange]))
    pd.testing.assert_frame_equal(gains[gains["seeds"] > 0], gains_table(frame_of(good)))
    assert baselines_of(suite_runs(frame_of(strange[:1])), "mse") == {"ridge": 0.7}, "also of an anchor"


def test_softmax_attention_of_other_code_is_scored(tmp_path: Path) -> None:
    """Also without the reference results: an anchor is one by its code."""
    bundled = next(
        record
        for _, record in records_in(REFERENCE_DIRS[0], [])
        if tuple(record.cell[name] for name in ("task", "pattern", "attention")) == ("lm", "CS", "vanilla")
    )
    dataclasses.replace(bundled, attention_code="a36d8c3e" * 2).write(tmp_path)
    assert set(load_results(tmp_path)["reason"]) == {""}
    for with_reference in (False, True):
        gains = gains_table(load(tmp_path, with_reference=with_reference).frame).query("source == 'own'")
        assert gains[["attention", "seeds", "verdict"]].to_numpy().tolist() == [["vanilla [a36d8c3e]", 1, "one seed"]]
        assert gains["K"].item() == pytest.approx(100, abs=5)


def test_a_cell_without_anchors_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    record = suite_record("lm", "abc", 80)
    monkeypatch.setattr("cab.results.cells.read_anchors", dict)
    assert reasons(suite_runs(frame_of([record]))) == {"abc": "the cell has no anchors"}


@pytest.mark.usefixtures("made_suite")
def test_a_copy_counts_once_and_two_results_of_one_seed_are_refused() -> None:
    record = suite_record("lm", "abc", 80)
    assert scored(suite_runs(frame_of([record, record]))) == {"abc": 1}
    with pytest.raises(UserError, match="two results of abc with seed 1 in lm gpt2 CS"):
        suite_runs(frame_of([record, suite_record("lm", "abc", 70)]))


@pytest.mark.usefixtures("made_suite")
@pytest.mark.parametrize("status", ["diverged", "NaN, inf or overflow"])
def test_a_seed_without_a_score_leaves_no_k_and_is_counted(status: str) -> None:
    lost = value_record(CELLS["lstf"], "abc", math.nan, 3)
    if status == "diverged":
        lost = dataclasses.replace(lost, status=Status.DIVERGED)
    others = [suite_record("lstf", "abc", 50), suite_record("lstf", "abc", 51, 2)]
    [gain] = gains_table(frame_of([*others, lost])).query("attention == 'abc'").itertuples()
    assert (gain.seeds, gain.verdict, gain.note) == (0, "", f"1 of 3 without a score ({status})")
    assert all(map(math.isnan, (gain.K, gain.mean, gain.bound)))
    again = frame_of([*others, lost, suite_record("lstf", "abc", 50, 3)])
    assert reasons(suite_runs(again)) == {}, "the seed has another run"
    assert gains_table(again).query("attention == 'abc'")["seeds"].tolist() == [3]
    [gain] = gains_table(frame_of([lost])).query("attention == 'abc'").itertuples()
    assert gain.note.startswith("seed 3 ")


def test_baselines_of_the_cells_are_in_the_reference_results() -> None:
    for cell, runs in by_cell(suite_runs(load_results(REFERENCE_DIRS))):
        names = {cell.trivial_baseline, cell.memory_bounded_baseline} - {""}
        assert runs.empty or names <= baselines_of(runs, cell.metric).keys(), cell
