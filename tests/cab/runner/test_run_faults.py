"""Runs that go wrong: their records, what is run again, signals, full disks, hostile checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cab import UserError, load_results
from cab.cli.main import main
from cab.errors import Preempted
from cab.records.record import Record
from cab.runner.folder import cell_statuses
from cab.runner.processes import StopSignals
from cab.runner.run import run_cell
from tests.cab.runner.test_folder_hostile import Payload
from tests.helpers.runs.troubled import Troubled, trained


@pytest.mark.parametrize(
    ("trouble", "status", "words"),
    [
        ("oom", "oom", "OutOfMemoryError: CUDA out of memory"),
        ("crash", "failed", "RuntimeError: something broke"),
        ("nan", "diverged", "the training loss is NaN or infinite from step 3"),
    ],
)
def test_a_run_without_a_score_leaves_a_record(trouble, status, words, troubled, tmp_path):
    outcome = run_cell(troubled(trouble=trouble))
    assert outcome.record is not None
    assert outcome.record.status == status
    assert words in outcome.record.error
    assert outcome.record.step == (3 if trouble == "nan" else None)
    assert [metric.value for metric in outcome.record.metrics] == [None, None]
    [path] = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["status"] == status
    assert "Traceback" in (tmp_path / path.stem / "traceback.txt").read_text()
    table = load_results(tmp_path)
    assert list(table["metric"]) == ["score", "total"]
    assert table["value"].isna().all()
    assert [found.status for found in cell_statuses(tmp_path)] == [status]


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


@pytest.mark.parametrize("kind", ["finished", "force", "read-only"])
def test_what_a_process_left_that_was_killed_after_its_record_is_deleted(kind, troubled, tmp_path, monkeypatch):
    """Not the checkpoints of a run that starts again, nor in a folder of somebody else."""

    def killed(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("cab.runner.run.discard_progress", killed)
        with pytest.raises(KeyboardInterrupt):
            run_cell(troubled())
    [record] = tmp_path.glob("*.json")
    if kind == "force":
        with pytest.raises(UserError, match="no space left"):
            run_cell(troubled("force=true", "trainer.checkpoint_every=2", trouble="full"))
    if kind == "read-only":
        monkeypatch.setattr("cab.runner.folder.discard_progress", lambda _: Path("/proc/version").unlink())
    before = record.read_bytes()
    assert run_cell(troubled()).kind == "cached"
    assert record.read_bytes() == before
    assert bool(list(tmp_path.glob("*/step-*"))) == (kind != "finished")


def test_a_failed_cell_is_run_again_only_when_asked(troubled, tmp_path):
    run_cell(troubled(trouble="crash"))
    again = run_cell(troubled())
    assert again.kind == "cached"
    assert again.record is not None
    assert again.record.status == "failed"
    assert run_cell(troubled("retry=[oom]")).kind == "cached"
    retried = run_cell(troubled("retry=[failed]"))
    assert retried.record is not None
    assert retried.record.status == "finished"
    assert [found.status for found in cell_statuses(tmp_path)] == ["finished"]


def test_cells_that_are_run_again_keep_their_command_and_do_not_stop_each_other(troubled, tmp_path, capsys):
    for seed in (1, 2):
        run_cell(troubled(f"seed={seed}", trouble="crash"), command=f"cab run seed={seed}")
    records = {record.cell["seed"]: record for record in map(Record.read, tmp_path.glob("*.json"))}
    config = {name: value for name, value in records[1].config.items() if name != "data"}
    dataclasses.replace(records[1], config=config).write(tmp_path)
    troubled()
    assert main(["run", "--retry", "failed", f"results_dir={tmp_path}"]) == 1
    assert "data has no value" in capsys.readouterr().err
    records = {record.cell["seed"]: record for record in map(Record.read, tmp_path.glob("*.json"))}
    assert [records[seed].status for seed in (1, 2)] == ["failed", "finished"]
    assert records[2].command == "cab run seed=2"


def test_a_diverged_run_can_go_on(troubled, tmp_path):
    outcome = run_cell(troubled("trainer.stop_when_diverged=false", "trainer.checkpoint_every=2", trouble="nan"))
    assert outcome.record is not None
    assert outcome.record.status == "diverged"
    assert outcome.record.step == 3
    assert list(tmp_path.glob("*/step-00000006.ckpt")), "it stopped at once"


def interrupted_by(number: int, folder: Path) -> Callable[..., Any]:
    """The loss, with a signal at its fifth call."""
    loss = Troubled.loss

    def interrupted(self, backbone, batch):
        if self.calls == 4:
            assert [status.status for status in cell_statuses(folder)] == ["running"]
            os.kill(os.getpid(), number)
        return loss(self, backbone, batch)

    return interrupted


@pytest.mark.parametrize(
    ("trouble", "again"), [("", "force=true"), ("", "retry=[finished]"), ("crash", "retry=[failed]")]
)
def test_a_cell_that_is_run_again_and_cut_goes_on(trouble, again, troubled, tmp_path, monkeypatch, caplog):
    first = trained(troubled(trouble=trouble))
    relic = tmp_path / first.hash / "relic.txt"
    relic.touch()
    with monkeypatch.context() as patched:
        patched.setattr(Troubled, "loss", interrupted_by(signal.SIGTERM, tmp_path))
        with pytest.raises(Preempted):
            run_cell(troubled(again))
    assert Record.read(tmp_path / f"{first.hash}.json") == first, "kept until it is replaced"
    assert relic.exists() == ("retry" in again)
    [found] = cell_statuses(tmp_path)
    assert (found.status, found.detail) == ("interrupted", "checkpoint at step 4"), "the old record is of another run"
    with caplog.at_level("INFO"):
        record = trained(troubled(again))
    assert record.status == "finished"
    assert "resuming from step 4" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_outside_training_a_signal_stops_at_once(number):
    before = signal.getsignal(number)
    with StopSignals().watched(), pytest.raises(Preempted, match=number.name):
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_missing_package_is_named_with_its_extra(troubled, tmp_path, monkeypatch):
    monkeypatch.setattr(Troubled, "packages", {"torch": "core", "no_such_module": "text"})
    with pytest.raises(UserError, match=r"task 'troubled' requires an extra: `pip install 'cab-benchmark\[text\]'`"):
        run_cell(troubled())
    assert not list(tmp_path.iterdir())


def test_seconds_of_training_add_up(troubled, tmp_path):
    settings = ["trainer.checkpoint_every=2", "retry=[failed]"]
    cut = trained(troubled(*settings, trouble="crash"))
    [checkpoint] = (tmp_path / cut.hash).glob("step-*.ckpt")
    state = torch.load(checkpoint, weights_only=True)
    state["history"]["seconds"] += 1000
    torch.save(state, checkpoint)
    cost = trained(troubled(*settings)).cost
    assert 1000 < (cost.train_seconds or 0) <= (cost.wall_seconds or 0) < 2000
    assert not list((tmp_path / cut.hash).glob("step-*"))


@pytest.mark.parametrize("kind", ["flipped", "only", "missing", "optimizer", "history", "step"])
def test_a_checkpoint_of_another_run_is_passed_over(kind, uncut, troubled, tmp_path, caplog):
    """The run resumes from the one before, or starts from the beginning without one."""
    with pytest.raises(UserError, match="no space left"):
        run_cell(troubled("trainer.checkpoint_every=2", trouble="full"))
    folder = tmp_path / uncut.hash
    [good] = sorted(folder.glob("step-*.ckpt"))
    state: Any = torch.load(good, weights_only=True)
    name = max(state["network"], key=lambda name: state["network"][name].numel())
    wrong_moments = {"step": torch.ones(()), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    contents: dict[str, Any] = {
        "flipped": flipped(good, state["network"][name]),
        "only": {"step": state["step"]},
        "missing": {"step": state["step"]},
        "optimizer": state | {"optimizer": {0: wrong_moments}},
        "history": state | {"history": {"entries": 3}},
        "step": state | {"step": 10_000},
    }
    content, path = contents[kind], good if kind == "only" else folder / "step-00000007.ckpt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with caplog.at_level("INFO"):
        record = trained(troubled("trainer.checkpoint_every=2"))
    assert record.metrics == uncut.metrics
    assert ("unreadable" if kind == "flipped" else "which is not of this run") in caplog.text
    assert ("resuming from step 2" in caplog.text) == (kind != "only")


def flipped(path: Path, tensor: torch.Tensor) -> bytes:
    """The content of a file with one wrong bit in the data of a tensor, which torch does not notice."""
    content = bytearray(path.read_bytes())
    content[content.index(tensor.numpy().tobytes())] ^= 1
    return bytes(content)


@pytest.mark.parametrize("kind", ["pickle", "text", "empty", "flipped", "shape", "list", "missing"])
def test_weights_that_cannot_be_loaded_are_a_user_error(kind, uncut, tmp_path, capsys):
    results = Path(shutil.copytree(uncut.config["results_dir"], tmp_path / "results"))
    path = results / uncut.hash / "weights.pt"
    state = torch.load(path, weights_only=True)
    name = max(state, key=lambda name: state[name].numel())
    contents: dict[str, Any] = {
        "pickle": pickle.dumps(Payload(tmp_path / "owned")),
        "text": b"hello",
        "empty": b"",
        "flipped": flipped(path, state[name]),
        "shape": state | {name: state[name][:1]},
        "list": [state],
        "missing": {key: value for key, value in state.items() if key != name},
    }
    content = contents[kind]
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    capsys.readouterr()
    assert main(["paper", "dilution", str(results / f"{uncut.hash}.json")]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert "force=true" in said
    assert "weights_only" not in said
    assert said.count("\n") == 1
    assert not (tmp_path / "owned").exists()
