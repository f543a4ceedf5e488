"""`cab status` of a folder that has other files than records."""

import json

import pytest

from cab.cli.main import main
from cab.records.record import MOST_SHOWN
from tests.helpers.made_records import make_record


@pytest.mark.parametrize("command", ["status", "score", "leaderboard --out out", "correlation"])
def test_many_foreign_files_are_a_few_lines(command, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value, name in enumerate(("vanilla", "abc")):
        make_record({"mse": 1.0 + value, "mae": 1.0}, attention=name).write(tmp_path / "results")
    for number in range(300):
        (tmp_path / "results" / f"{number}.json").write_text(json.dumps({"number": number}))
    main([*command.split(), "results"])
    printed = capsys.readouterr()
    text = printed.out + printed.err + caplog.text
    assert text.count(f"{300 - MOST_SHOWN} more files in results") == 1
    assert text.count("is not a result record") == MOST_SHOWN
    if command == "status":
        assert (text.count("finished"), text.count("broken")) == (2, MOST_SHOWN)


@pytest.mark.parametrize(
    ("command", "settings"),
    [("cab run", {""}), ("cab run trainer.added=3", {"trainer.added=default", "trainer.added=3"})],
)
def test_an_option_that_an_earlier_run_lacks_is_shown_if_the_command_sets_it(command, settings, tmp_path, cab):
    make_record({"mse": 1.0}, command="cab run").write(tmp_path)
    make_record({"mse": 1.0}, command=command, config={"trainer": {"added": 3}}).write(tmp_path)
    rows = cab("status", tmp_path, "--csv").rows
    assert len(rows) == 2
    assert {row["settings"] for row in rows} == settings
