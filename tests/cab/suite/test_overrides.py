"""Expansion of `cab run suite=NAME`, and the reference results that the leaderboard adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cab.cli.main import main
from cab.errors import UserError
from cab.records.results import MINI_DIR, load_results, with_reference_results
from cab.suite.cells import suite_cells
from cab.suite.overrides import cell_overrides, suite_sweeps
from cab.suite.results import collect
from tests.cab.made_records import make_record


def test_what_the_suite_stands_for() -> None:
    assert suite_sweeps(["task=lstf", "attention=abc"]) is None
    sweeps = suite_sweeps(["suite=core", "attention=abc", "pattern=CS,causal_cross", "task=lstf,probe"])
    chosen = [cell for cell in suite_cells() if cell.core and cell.task in ("lstf", "probe")]
    expected = [cell for cell in chosen if cell.pattern in ("CS", "CC")]
    assert sweeps == [[*cell_overrides(cell), "attention=abc", "seed=1,2,3"] for cell in expected]
    assert [sweep[4] for sweep in sweeps] == ["preset=mini"] * 3
    assert len(suite_sweeps(["suite=mini", "attention=abc", "seed=4"]) or []) == len(suite_cells())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["suite=paper", "attention=abc"], "unknown suite 'paper'"),
        (["suite=mini", "attention=abc", "preset=paper"], "sets the preset"),
        (["suite=mini", "attention=abc", "dataset=etth1"], "sets the dataset"),
        (["suite=mini", "pattern=CS"], "requires an attention"),
        (["suite=core", "attention=abc", "task=tts"], "unknown task of suite=core 'tts'"),
    ],
)
def test_a_suite_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        suite_sweeps(overrides)


def test_the_command_runs_every_cell_that_the_attention_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "suite=mini", "attention=probsparse", "seed=1", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    commands = [line for line in printed.splitlines() if "cab run" in line]
    assert len(commands) == sum(cell.pattern == "NS" for cell in suite_cells())
    assert all("preset=mini" in line for line in commands)


def test_the_leaderboard_shows_them_beside_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record of the same cell and seed is in the place of the one that comes along."""
    field = load_results(MINI_DIR)
    data = field[field["task"] == "lstf"]["record"].iloc[0].data
    names = {"dataset": "synthetic", "pattern": "CS", "config_variant": "M", "seed": 1, "data": data}
    mine = make_record({"mse": 0.5, "mae": 0.25}, **names)
    mine.write(tmp_path)
    beside = with_reference_results(load_results(tmp_path))
    same = beside.query("task == 'lstf' and pattern == 'CS' and attention == 'vanilla' and seed == 1")
    assert set(same["file"]) == {str(tmp_path / f"{mine.hash}.json")}
    assert set(field["attention"]) <= set(beside["attention"])
    assert main(["leaderboard", str(tmp_path), "--with-reference", "--format", "markdown"]) == 0
    assert "| none" in capsys.readouterr().out


def test_the_leaderboard_shows_them_alone_where_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["leaderboard", "--with-reference", "--format", "markdown"]) == 0
    assert "| none" in capsys.readouterr().out
    assert main(["leaderboard", "--format", "markdown"]) == 2


def test_the_records_that_come_along_are_of_the_suite() -> None:
    results = load_results(MINI_DIR)
    assert set(results["dataset"]) <= {cell.dataset for cell in suite_cells()}
    assert any(cell.runs for cell in collect(results.drop_duplicates("file")["record"]))
    for record in results.drop_duplicates("file")["record"]:
        assert not Path(record.config["results_dir"]).is_absolute(), "a path of the machine that trained it"
        assert " results_dir=/" not in record.command
