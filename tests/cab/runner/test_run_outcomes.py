"""What a run answers with and leaves, whatever goes wrong in it; test_folder_states.py is about its interruptions."""

import dataclasses
import io
import logging
import math
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tqdm import tqdm

from cab import UserError
from cab.cli.terminal import TerminalHandler
from cab.errors import Preempted
from cab.records.record import Record, Status
from cab.runner.processes import Processes, StopSignals
from cab.runner.provenance import ResourceUsage
from cab.runner.run import run_cell
from engines.torch.loggers import Loggers
from tests.cab.runner.test_folder_states import flipped, payload
from tests.helpers.made_records import make_record
from tests.helpers.runs.fixtures import TROUBLED
from tests.helpers.runs.troubled import Troubled, trained

ONE_STEP = "trainer.max_steps=1"
NO_METRIC = "RuntimeError: task 'troubled' does not return its metric 'score' but"
NO_NUMBER = "RuntimeError: metric 'score' of task 'troubled' is"
TOTAL = "metric 'total' of task 'troubled' is nan"


@pytest.mark.parametrize(("sweep", "status"), [([], "interrupted"), (["-m", "seed=1,2"], "failed")])
def test_a_run_without_a_score_is_status_1_until_it_is_retried(sweep, status, troubled, tmp_path, cab):
    """Also if its record is found; without its record, it is interrupted."""
    troubled(trouble="crash")
    for _ in range(2):
        said = cab("run", *sweep, *TROUBLED, f"results_dir={tmp_path}", status=1).err
        assert said.count("failed: troubled synthetic") == len(list(tmp_path.glob("*.json"))) == (2 if sweep else 1)
    if status == "interrupted":
        next(tmp_path.glob("*.json")).unlink()
    troubled()
    cab("run", "--retry", status, f"results_dir={tmp_path}")
    assert {Record.read(path).status for path in tmp_path.glob("*.json")} == {"finished"}
    said = cab("run", "--retry", f"{status},oom,diverged", f"results_dir={tmp_path}").err
    assert f"nothing to retry: no run in {tmp_path} is {status} or oom or diverged" in said


def test_cells_that_are_run_again_keep_their_command_and_do_not_stop_each_other(troubled, tmp_path, cab):
    for seed in (1, 2):
        run_cell(troubled(f"seed={seed}", trouble="crash"), command=f"cab run seed={seed}")
    records = {record.cell["seed"]: record for record in map(Record.read, tmp_path.glob("*.json"))}
    config = {name: value for name, value in records[1].config.items() if name != "data"}
    dataclasses.replace(records[1], config=config).write(tmp_path)
    troubled()
    assert "data has no value" in cab("run", "--retry", "failed", f"results_dir={tmp_path}", status=1).err
    records = {record.cell["seed"]: record for record in map(Record.read, tmp_path.glob("*.json"))}
    assert [records[seed].status for seed in (1, 2)] == ["failed", "finished"]
    assert records[2].command == "cab run seed=2"


def test_only_the_first_process_of_a_run_reports(troubled, tmp_path, monkeypatch, cab):
    troubled()
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("cab.runner.run._attempt", lambda _: None)
    monkeypatch.setattr(Processes, "agree", lambda *_: True)
    assert cab("run", *TROUBLED, f"results_dir={tmp_path}") == ("", "")


def test_what_cannot_run_writes_and_deletes_nothing(recorded, troubled, monkeypatch):
    before = {path: path.read_bytes() for path in recorded.parent.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"task\.at: "):
        run_cell(troubled("force=yes", "task.at=2.5"))
    monkeypatch.setattr(Troubled, "packages", {"torch": "core", "no_such_module": "text"})
    with pytest.raises(UserError, match=r"task 'troubled' requires an extra: `pip install 'cab-benchmark\[text\]'`"):
        run_cell(troubled("seed=2"))
    assert {path: path.read_bytes() for path in recorded.parent.rglob("*") if path.is_file()} == before


def test_a_diverged_run_can_continue(troubled, tmp_path):
    record = run_cell(troubled("trainer.stop_when_diverged=false", "trainer.checkpoint_every=2", trouble="nan")).record
    assert (record.status, record.step) == ("diverged", 3)
    assert list(tmp_path.glob("*/step-00000006.ckpt")), "it stopped at once"


def test_an_interrupted_evaluation_finds_its_scores(troubled, tmp_path, monkeypatch):
    """Until the run has a record."""
    evaluate, scored = Troubled.evaluate, []

    def interrupted(task, backbone, batches):
        def score(batch):
            scored.append(len(batch))
            if len(scored) == 2:
                raise KeyboardInterrupt
            return len(batch)

        assert batches.map(task.training_set, 5, score) == [5, 5, 2]
        return evaluate(task, backbone, batches)

    monkeypatch.setattr(Troubled, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_cell(troubled())
    assert run_cell(troubled()).record is not None
    assert scored == [5, 5, 5, 2]
    assert not list(tmp_path.glob("*/scores-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_outside_training_a_signal_stops_at_once(number):
    before = signal.getsignal(number)
    with StopSignals().watched(), pytest.raises(Preempted, match=number.name):
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_progress_in_the_folder_of_another_user_is_left_alone(recorded, troubled, monkeypatch):
    left = recorded.with_suffix("") / "step-00000006.ckpt"
    left.touch()
    monkeypatch.setattr("cab.runner.folder.discard_progress", lambda _: Path("/proc/version").unlink())
    assert run_cell(troubled()).kind == "cached"
    assert left.exists()


def test_seconds_of_training_add_up(troubled, tmp_path):
    settings = ["trainer.checkpoint_every=2", "retry=[failed]"]
    [checkpoint] = (tmp_path / trained(troubled(*settings, trouble="crash")).hash).glob("step-*.ckpt")
    state = torch.load(checkpoint, weights_only=True)
    state["history"]["seconds"] += 1000
    torch.save(state, checkpoint)
    cost = trained(troubled(*settings)).cost
    assert 1000 < (cost.train_seconds or 0) <= (cost.wall_seconds or 0) < 2000


class Odd(BaseException):
    """Not an Exception, as those of some frameworks."""

    def __str__(self) -> str:
        return "half of a pair: \ud83d"


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({}, f"{NO_METRIC} nothing"),
        ({"SCORE": 3.0}, f"{NO_METRIC} SCORE"),
        ({"score": math.nan}, f"{NO_NUMBER} nan"),
        ({"score": 1e39}, f"{NO_NUMBER} 1e+39"),
        (Odd(), "ExitError: the code raised Odd: half of a pair: \\ud83d"),
    ],
)
def test_an_evaluation_without_a_score_fails_the_run(result, error, troubled, tmp_path, monkeypatch):
    monkeypatch.setattr(Troubled, "evaluate", Mock(side_effect=[result]))
    record = trained(troubled(ONE_STEP))
    assert (record.status, record.error) == (Status.FAILED, error)
    assert (tmp_path / record.hash / "traceback.txt").exists()


@pytest.mark.parametrize(
    ("owner", "method", "result", "warning", "logged"),
    [
        (Troubled, "save_plots", ValueError("bad backend"), "the plots failed: ValueError: bad backend", ""),
        (ResourceUsage, "memory", SystemExit(3), "the measurement of the cost failed: ExitError: ", ""),
        (Loggers, "write_record", SystemExit(3), "", "a logger failed: ExitError"),
        (Troubled, "evaluate", {"score": 1.0, "total": math.nan}, TOTAL, f"{TOTAL}: the record has no value of it"),
    ],
)
def test_a_score_survives_other_failures(owner, method, result, warning, logged, uncut, troubled, monkeypatch, caplog):
    monkeypatch.setattr(owner, method, Mock(side_effect=[result]))
    record = trained(troubled())
    assert record.status is Status.FINISHED
    expected = [1.0, None] if method == "evaluate" else [metric.value for metric in uncut.metrics]
    assert [metric.value for metric in record.metrics] == expected
    assert len(record.engine_facts.get("warnings", [])) == bool(warning)
    assert "".join(record.engine_facts.get("warnings", [])).startswith(warning)
    assert logged in caplog.text


def test_a_program_that_changes_the_working_directory_has_a_record(troubled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cab.runner.run.evaluate", lambda *_: os.chdir("/") or Path("relative/none").read_text())
    record = trained(troubled(ONE_STEP) | {"results_dir": "relative"})
    assert "changed the working directory to /, where relative paths are other files (" in record.error
    assert Path.cwd() == tmp_path
    assert list(Path("relative").glob(f"{record.hash}*.json"))


WEIGHTS = {
    "pickle": lambda path, state: payload(path),  # noqa: ARG005
    "flipped": flipped,
    "shape": lambda path, state: {name: value[:1] for name, value in state.items()},  # noqa: ARG005
    "list": lambda path, state: [state],  # noqa: ARG005
    "missing": lambda path, state: dict([*state.items()][1:]),  # noqa: ARG005
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_that_cannot_be_loaded_are_a_user_error(kind, recorded, refused):
    path = recorded.with_suffix("") / "weights.pt"
    content = WEIGHTS[kind](path, torch.load(path, weights_only=True))
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    assert "weights_only" not in refused("paper", "dilution", str(recorded), words=[str(path), "force=true"])
    assert not (recorded.parents[1] / "executed").exists()


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


def test_a_record_names_no_terminal_codes(tmp_path, cab):
    make_record({"mse": 1.0}, attention="a\x1b]0;x\x07bc", command="run\x1b[0m").write(tmp_path)
    assert not {"\x1b", "\x07"} & set("".join(cab("status", tmp_path)))
