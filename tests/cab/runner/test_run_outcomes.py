"""What a single run answers with, and that yes and no mean yes and no."""

from __future__ import annotations

import io
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from cab import UserError
from cab.cli.main import main
from cab.cli.terminal import TerminalHandler
from cab.records.record import Record
from cab.runner.cell import Cell as CheckedCell
from cab.runner.processes import Processes
from cab.runner.run import run_cell
from tests.helpers.runs.fixtures import TROUBLED
from tests.helpers.runs.troubled import trained

Cell = Callable[..., dict[str, Any]]


def test_a_single_run_without_a_score_is_status_1(troubled, tmp_path, capsys):
    troubled(trouble="crash")
    command = ["run", *TROUBLED, f"results_dir={tmp_path}"]
    assert main(command) == 1
    assert "failed: troubled synthetic" in capsys.readouterr().err
    assert main(command) == 1, "found"
    troubled()
    assert main([*command, "force=true"]) == 0


def test_a_run_without_a_score_is_status_1_in_a_sweep_as_well(troubled, tmp_path, capsys):
    troubled(trouble="nan")
    command = ["run", "-m", *TROUBLED, "seed=1,2", f"results_dir={tmp_path}"]
    assert main(command) == 1
    assert capsys.readouterr().err.count("failed: troubled synthetic") == 2
    troubled()
    assert main(["run", "--retry", "diverged", f"results_dir={tmp_path}"]) == 0
    capsys.readouterr()
    assert main(["run", "--retry", "failed,oom,diverged", f"results_dir={tmp_path}"]) == 0
    assert f"nothing to retry: no run in {tmp_path} is failed or oom or diverged" in capsys.readouterr().err
    for command in (
        ["run", "--retry", "failed", f"results_dir={tmp_path / 'none'}"],
        ["status", str(tmp_path / "none")],
    ):
        assert main(command) == 2


def test_only_the_first_process_of_a_run_reports(troubled, tmp_path, monkeypatch, capsys):
    troubled()
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("cab.runner.run._attempt", lambda _: None)
    monkeypatch.setattr(Processes, "agree", lambda *_: True)
    assert main(["run", *TROUBLED, f"results_dir={tmp_path}"]) == 0
    assert capsys.readouterr() == ("", "")


def test_yes_and_no_mean_true_and_false(troubled, tmp_path):
    for word, meant in {"no": False, "off": False, "No": False, "yes": True, "on": True, "TRUE": True}.items():
        assert CheckedCell.from_config(troubled(f"force={word}")).config.force is meant
    record = trained(troubled("trainer.max_steps=1"))
    before = (tmp_path / f"{record.hash}.json").read_bytes()
    assert run_cell(troubled("trainer.max_steps=1", "force=no")).kind == "cached"
    assert (tmp_path / f"{record.hash}.json").read_bytes() == before
    assert run_cell(troubled("trainer.max_steps=1", "force=yes")).kind == "completed"


def test_a_wrong_option_deletes_nothing(troubled, tmp_path):
    trained(troubled("trainer.max_steps=1"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"task\.at: "):
        run_cell(troubled("trainer.max_steps=1", "force=yes", "task.at=2.5"))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_log_lines_do_not_break_the_progress_bar(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    handler = TerminalHandler()
    with tqdm(total=10, file=terminal, desc="cell", mininterval=0, ascii=True) as bar:
        bar.update(3)
        handler.emit(logging.LogRecord("cab", logging.INFO, "", 0, "checkpoint\x1b[2J at 3", (), None))
    said = terminal.getvalue()
    line = said[: said.index("checkpoint")].rsplit("\r", 1)
    assert line[1] == "", "the bar is wiped before the line"
    assert set(line[0].rsplit("\r", 1)[1]) == {" "}
    assert "checkpoint\ufffd[2J at 3\n" in said
    assert "3/10" in said[said.index("at 3\n") :], "and drawn again below it"


def test_a_record_names_no_terminal_codes(troubled, tmp_path, capsys):
    record = trained(troubled("trainer.max_steps=1"))
    (tmp_path / f"{record.hash}.json").unlink()
    evil = Record(**{**vars(record), "cell": {**record.cell, "attention": "a\x1b]0;x\x07bc"}, "command": "run\x1b[0m"})
    evil.write(tmp_path)
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\x07" not in said.out + said.err


def test_a_cut_cell_is_gone_on_with(troubled, tmp_path, capsys):
    record = trained(troubled("trainer.max_steps=1"))
    path = tmp_path / f"{record.hash}.json"
    path.unlink()
    assert main(["run", "--retry", "interrupted", f"results_dir={tmp_path}"]) == 0
    assert "finished" in capsys.readouterr().out
    assert path.exists()


def test_a_program_that_changes_the_working_directory_has_a_record(troubled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cell = troubled("trainer.max_steps=1") | {"results_dir": "relative"}
    monkeypatch.setattr("cab.runner.run.evaluate", lambda *_: os.chdir("/") or Path("relative/none").read_text())
    record = run_cell(cell).record
    assert record is not None
    assert "changed the working directory to /, where relative paths are other files (" in record.error
    assert Path.cwd() == tmp_path
    assert list(Path("relative").glob(f"{record.hash}*.json"))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "task 'troubled' does not return its metric 'score' but nothing"),
        ({"SCORE": 3.0}, "task 'troubled' does not return its metric 'score' but SCORE"),
        ({"score": math.nan}, "metric 'score' of task 'troubled' is nan"),
        ({"score": math.inf}, "metric 'score' of task 'troubled' is inf"),
        ({"score": 1e39}, "metric 'score' of task 'troubled' is 1e+39"),
    ],
)
def test_a_metric_without_a_number_fails_the_run_by_name(scores, message, troubled, monkeypatch):
    monkeypatch.setattr("cab.runner.run.evaluate", lambda *_: scores)
    record = run_cell(troubled("trainer.max_steps=1")).record
    assert record is not None
    assert (record.status, record.error) == ("failed", f"RuntimeError: {message}")


def test_a_further_metric_without_a_number_is_named(troubled, monkeypatch, caplog):
    """Such as that of a length that does not fit in memory, which must not cost the score."""
    monkeypatch.setattr("cab.runner.run.evaluate", lambda *_: {"score": 1.0, "total": math.nan})
    record = run_cell(troubled("trainer.max_steps=1")).record
    assert record is not None
    assert [metric.value for metric in record.metrics] == [1.0, None]
    assert record.engine_facts["warnings"] == ["metric 'total' of task 'troubled' is nan"]
    assert "metric 'total' of task 'troubled' is nan: the record has no value of it" in caplog.text
