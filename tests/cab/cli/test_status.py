"""`cab status` of a folder that has other files than records."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.record import SHOWN
from tests.helpers.made_records import make_record

READERS = (["status"], ["score"], ["leaderboard", "--out", "out"], ["correlation"])


@pytest.mark.parametrize("command", READERS, ids=lambda command: command[0])
def test_many_foreign_files_are_a_few_lines(
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for value, name in enumerate(("vanilla", "abc")):
        make_record({"mse": 1.0 + value, "mae": 1.0}, attention=name).write(tmp_path / "results")
    for number in range(300):
        (tmp_path / "results" / f"{number}.json").write_text(json.dumps({"number": number}))
    main([*command, "results"])
    printed = capsys.readouterr()
    text = printed.out + printed.err + caplog.text
    assert text.count(f"{300 - SHOWN} more files in results") == 1
    assert text.count("is not a result record") == SHOWN
    if command == ["status"]:
        assert (text.count("finished"), text.count("broken")) == (2, SHOWN)


@pytest.mark.parametrize(
    ("command", "settings"),
    [("cab run", {""}), ("cab run trainer.added=3", {"trainer.added=default", "trainer.added=3"})],
)
def test_an_option_that_an_earlier_run_lacks_is_shown_if_the_command_sets_it(
    command: str, settings: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_record({"mse": 1.0}, command="cab run").write(tmp_path)
    make_record({"mse": 1.0}, command=command, config={"trainer": {"added": 3}}).write(tmp_path)
    assert main(["status", str(tmp_path), "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 2
    assert {row["settings"] for row in rows} == settings
