"""`cab demo` on committed records in place of its runs: scores beside the reference, verdict, next steps."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from pathlib import Path

import pytest

from cab.cli import demo
from cab.records.record import Record
from cab.records.results import CORE_DIR, whole_records
from cab.runner.report import Outcome, Report


@functools.cache
def records_of_the_cell() -> dict[str, Record]:
    records = {}
    for _, record in whole_records(CORE_DIR, skipped=[]):
        names = [record.cell[name] for name in ("task", "backbone", "pattern", "seed")]
        if names == [*demo.CELL, 1] and record.cell["attention"] in demo.TRAINED:
            records[str(record.cell["attention"])] = record
    return records


@pytest.mark.parametrize(("change", "status"), [(0.0, 0), (-0.2, 1)])
def test_scores_are_compared_with_the_reference(
    change: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def run_sweeps(sweeps: list[list[str]]) -> Report:
        [sweep] = sweeps
        chosen = dict(override.split("=", 1) for override in sweep)
        assert (chosen["attention"], chosen["seed"]) == ("vanilla,linear", "1")
        records = records_of_the_cell()
        assert {records[name].cell["dataset"] for name in records} == {chosen["dataset"]}
        metrics = [dataclasses.replace(m, value=(m.value or 0) + change) for m in records["linear"].metrics]
        linear = dataclasses.replace(records["linear"], metrics=tuple(metrics))
        return Report(outcomes=[Outcome("", "completed", record) for record in (records["vanilla"], linear)])

    monkeypatch.setattr("cab.runner.launch.run_sweeps", run_sweeps)
    monkeypatch.setattr("cab.cli.main.main", lambda command: commands.append(command) or 0)
    assert demo.run(argparse.Namespace(out=tmp_path)) == status
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert len(lines) <= 20
    own = next(line for line in lines if line.startswith("linear attention"))
    assert own.endswith("  as expected" if status == 0 else "not as expected")
    assert f"{records_of_the_cell()['linear'].metrics[0].value + change:.3f}" in own  # type: ignore[operator]
    assert next(line for line in lines if line.startswith("softmax")).split()[-6:-2] == ["1.000", "±", "0.000", "5"]
    assert ("linear attention retains 43%" in printed) == (status == 0)
    assert ("Your installation works." in printed) == (status == 0)
    assert (tmp_path / "leaderboard" / "index.html").as_uri() in printed
    assert commands == [["leaderboard", str(tmp_path), "--with-reference", "--out", str(tmp_path / "leaderboard")]]


def test_a_failed_run_has_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cab.runner.launch.run_sweeps", lambda _: Report(failures=["linear: out of memory"]))
    assert demo.run(argparse.Namespace(out=tmp_path)) == 1
    assert "Your installation" not in capsys.readouterr().out
