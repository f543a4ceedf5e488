"""`cab demo` on made records in place of its runs: the table, the check with its reference, next steps."""

import argparse
import dataclasses
import itertools
from pathlib import Path

import pytest

from cab.cli import demo
from cab.records.files import REFERENCE_DIRS
from cab.records.record import Record
from cab.runner.report import Outcome, Report
from tests.helpers.made_records import bundled, make_record, number


def rehearsed(sweep: list[str], folder: Path) -> list[Record]:
    values = dict(override.split("=", 1) for override in sweep)
    metrics = {"lstf": ("mse", "mae"), "pcc": ("cd_l1", "cd_l2", "f_score"), "sum": ("rouge1", "rouge2", "rougeL")}
    names = {name: values[name] for name in ("task", "backbone", "pattern", "dataset", "preset")}
    names["config_variant"] = values.get("task.features", "")
    records = []
    for attention, seed in itertools.product(values["attention"].split(","), map(int, values["seed"].split(","))):
        scores = {metric: number(metric, seed, attention, *names.values()) for metric in metrics[names["task"]]}
        records.append(make_record(scores, **names, attention=attention, seed=seed))
        records[-1].write(folder)
    return records


@pytest.mark.parametrize(("change", "status"), [(0.0, 0), (-0.2, 1)])
def test_the_road_in_small(change, status, tmp_path, monkeypatch, capsys):
    commands: list[list[str]] = []

    def run_sweeps(sweeps):
        *rehearsal, checked = sweeps
        assert {"attention=vanilla", "seed=1", "task=probe", "pattern=CC"} <= set(checked)
        checked_place = dict(zip(("task", "backbone", "pattern"), demo.CHECKED, strict=True))
        record = bundled(REFERENCE_DIRS[0], attention="vanilla", seed=1, **checked_place)
        metrics = [dataclasses.replace(metric, value=(metric.value or 0) + change) for metric in record.metrics]
        records = [record for sweep in rehearsal for record in rehearsed(sweep, tmp_path)]
        records.append(dataclasses.replace(record, metrics=tuple(metrics)))
        return Report(outcomes=[Outcome("", "completed", record) for record in records])

    monkeypatch.setattr("cab.runner.launch.run_sweeps", run_sweeps)
    monkeypatch.setattr("cab.cli.demo.main", lambda command: commands.append(command) or 0)
    assert demo.run(argparse.Namespace(out=tmp_path)) == status
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert len(lines) <= 30
    assert "Table 3c (NC); own values: rehearsal on generated data" in lines
    kinds = ["sd", "published"]
    assert [line.split()[0] for line in lines[4:13]] == ["vanilla", *kinds, "cosformer", *kinds, "abc", *kinds]
    assert all("-" not in line.split() for line in lines[4:13]), "NC is complete, with an index"
    assert f"{1 + change:.3f}; the reference is 1.000 ± 0.000 (5 seeds)" in printed
    assert ("Your installation works." in printed) == (status == 0)
    assert (tmp_path / "leaderboard" / "index.html").as_uri() in printed
    assert commands == [["leaderboard", str(tmp_path), "--with-reference", "--out", str(tmp_path / "leaderboard")]]


def test_a_failed_run_has_no_verdict(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cab.runner.launch.run_sweeps", lambda _: Report(failures=["abc: out of memory"]))
    assert demo.run(argparse.Namespace(out=tmp_path)) == 1
    assert "Your installation" not in capsys.readouterr().out
