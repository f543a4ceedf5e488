"""`cab run`: mistakes and sweeps; tests/test_howto.py installs and runs packages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from cab.cli.main import main
from tests.cab.cli.command import cab

CELL = {"task": "lstf", "dataset": "synthetic", "backbone": "informer", "attention": "vanilla", "pattern": "NC"}


def overrides(**changes: str) -> list[str]:
    return [f"{key}={value}" for key, value in {**CELL, "preset": "smoke", "device": "cpu", **changes}.items()]


Refused = Callable[..., None]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command in an empty folder; it prints one line with all the words, and writes nothing."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def check(*arguments: str, words: Sequence[str]) -> None:
        assert main(["run", *arguments]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        for word in words:
            assert word in err
        assert not list(folder.iterdir())

    return check


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention": "vanila"}, ["unknown attention 'vanila'", "did you mean 'vanilla'"]),
        ({"backbone": "infomer"}, ["unknown backbone", "'informer'"]),
        ({"task": "lst"}, ["unknown task", "'lstf'"]),
        ({"dataset": "eth1"}, ["unknown dataset", "'etth1'"]),
        ({"pattern": "XX"}, ["unknown pattern", "NS"]),
        ({"preset": "papr"}, ["unknown preset", "'paper'"]),
        ({"attention": "s4d"}, ["'s4d' does not support pattern NC", "NS CS", "cab list attentions"]),
        ({"pattern": "CC"}, ["'informer' has no attention layer with pattern CC", "NS CS NC"]),
        ({"attention.num_landmarks": "3"}, ["attention 'vanilla' has no option 'num_landmarks'"]),
        ({"backbone.depth": "3"}, ["backbone 'informer' has no option 'depth'", "encoder_layers"]),
        ({"task.horizon": "3"}, ["task 'lstf' has no option 'horizon'", "pred_len"]),
        ({"task.seq_len": "900000"}, ["shorter than one window", "seq_len"]),
        ({"other_attention": "vanila"}, ["unknown attention 'vanila'"]),
    ],
    ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else "",
)
def test_a_mistake_is_one_line_and_writes_nothing(change: dict[str, str], words: list[str], refused: Refused) -> None:
    refused(*overrides(**change), words=words)


@pytest.mark.parametrize("missing", ["a task", "a dataset", "an attention", "a pattern"])
def test_a_missing_override_is_named(missing: str, refused: Refused) -> None:
    name = missing.split()[1]
    arguments = [override for override in overrides() if not override.startswith(f"{name}=")]
    refused(*arguments, words=[f"name {missing}: {name}=NAME"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-m", "--dryrun"], ["unknown flag '--dryrun'", "did you mean '--dry-run'"]),
        (["--retry=lost"], ["--retry requires a comma-separated list of", "failed"]),
        (["--retry"], ["--retry"]),
        (["--cfg", "jobs"], ["--cfg", "job"]),
        (["-m", "--cfg", "job"], ["--cfg prints one configuration", "remove -m"]),
    ],
    ids=lambda value: "".join(value) if value[0].startswith("-") else "",
)
def test_a_flag_is_never_ignored(flags: list[str], words: list[str], refused: Refused) -> None:
    refused(*overrides(), *flags, words=words)


def test_the_configuration_is_printed_with_the_values_of_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--cfg", "job", *overrides(preset="paper", attention="abc", seed="7")]) == 0
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed)
    assert (config["seed"], config["attention"]) == (7, {"name": "abc", "num_landmarks": 16})
    assert config["trainer"]["learning_rate"] == 1e-4
    assert "${" not in printed
    assert not list(tmp_path.iterdir())


def etth1(rows: int = 17_420) -> pd.DataFrame:
    """A table in the layout of ETTh1.csv."""
    rng = np.random.default_rng(1)
    columns = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
    table = pd.DataFrame(rng.normal(size=(rows, 7)).cumsum(axis=0), columns=columns)
    table.insert(0, "date", pd.date_range("2016-07-01", periods=rows, freq="h").astype(str))
    return table


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", ["no ETTh1.csv", "cab data download etth1 --data-root ", "dataset=synthetic"]),
        ("truncated", ["ETTh1.csv"]),
        ("nan", ["ETTh1.csv, line 1002, column 'MULL'"]),
        ("column", ["columns must be date,HUFL", "TO"]),
        ("short", ["40 rows", "14,400"]),
    ],
)
def test_bad_data_is_one_line_and_writes_nothing(
    damage: str, words: list[str], tmp_path: Path, refused: Refused
) -> None:
    table = etth1(40 if damage == "short" else 17_420)
    if damage == "nan":
        table.loc[1000, "MULL"] = np.nan
    if damage == "column":
        table = table.rename(columns={"OT": "TO"})
    if damage != "missing":
        text = table.to_csv(index=False)
        (tmp_path / "ETTh1.csv").write_text(text[: len(text) // 2] if damage == "truncated" else text)
    refused(*overrides(dataset="etth1", data_root=str(tmp_path)), words=words)


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *overrides(attention="vanila"), "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_sweep_skips_what_cannot_run_and_is_done_once(tmp_path: Path) -> None:
    sweep = ["-m", *overrides(attention="probsparse,none", pattern="NC,NS", results_dir=str(tmp_path / "r"))]
    sweep += ["trainer.max_steps=2"]
    first = cab("run", *sweep, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "skipped: attention 'probsparse' does not support pattern NC" in first.stderr
    records = sorted((tmp_path / "r").glob("*.json"))
    assert len(records) == 3
    stamps = [path.stat().st_mtime_ns for path in records]
    second = cab("run", *sweep, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    assert second.stderr.count("cached: ") == 3
    assert [path.stat().st_mtime_ns for path in records] == stamps
    (records[0]).write_text(records[0].read_text()[:200])
    board = cab("leaderboard", tmp_path / "r", "--format", "markdown", cwd=tmp_path)
    assert board.returncode == 0, board.stderr
    assert records[0].name in board.stderr
    assert "synthetic" in board.stdout


def test_a_sweep_prints_a_table_per_task(tmp_path: Path) -> None:
    cells = ["task=lstf,lm", "dataset=synthetic", "pattern=CS", "attention=none", "task.features=M,S"]
    short = ["preset=smoke", "device=cpu", "trainer.max_steps=2"]
    process = cab("run", "-m", *cells, *short, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lstf, lm = (table.replace("† ", "").splitlines() for table in process.stdout.split("\n\n"))
    assert lstf[0] == "lstf synthetic informer CS smoke"  # the trivial answers differ between M and S
    assert [row.split()[:3] for row in lstf[2:]] == [["M", "none", "1"], ["S", "none", "1"]]
    assert {"mse", "mae", "ridge"} <= set(lstf[1].split())
    assert lm[0].startswith("lm synthetic gpt2 CS smoke; ppl of trivial baselines: ")
    assert lm[1].split() == ["attention", "seed", "ppl", "params", "seconds"]
    assert [row.split()[:2] for row in lm[2:]] == [["none", "1"]]
    assert all(len(line) <= 80 for line in lm[1:])
    assert " - " not in process.stdout


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    arguments = overrides(attention="abc", **{"attention.num_landmarks": "5"}, results_dir=str(tmp_path))
    process = cab("run", *arguments, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    [path] = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert path.stem == record["hash"]
    assert record["cell"]["attention"] == "abc(num_landmarks=5)"
    assert record["cell"]["dataset"] == "synthetic"
    assert record["config"]["attention"] == {"name": "abc", "num_landmarks": 5}
    assert {m["name"] for m in record["metrics"]} == {"mse", "mae"}
    assert set(record["baselines"]) == {"repeat_last_value", "repeat_last_day", "ridge"}
    assert record["cost"]["params"] > 0
    assert record["versions"]["torch"]
    assert "repeat_last_day" in process.stdout


def test_preset_paper_reports_the_published_figure_and_the_sound_one(tmp_path: Path) -> None:
    """At the paper's windows and protocol, with a network small enough for a test."""
    small = ["backbone.embed_dim=8", "backbone.num_heads=1", "backbone.ffn_dim=8", "task.features=S"]
    short = ["trainer.max_epochs=null", "trainer.max_steps=2", f"results_dir={tmp_path}"]
    process = cab("run", *overrides(preset="paper"), *small, *short, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    record = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert record["config"]["task"]["pred_len"] == 720
    metrics = {metric["name"]: metric for metric in record["metrics"]}
    assert set(metrics) == {"mse", "mae", "mse_all_windows", "mae_all_windows"}
    assert metrics["mse"]["value"] != metrics["mse_all_windows"]["value"]
    assert "mse_all_windows" in process.stdout
