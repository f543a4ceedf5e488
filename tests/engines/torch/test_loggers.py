"""Loggers write during a run and after it is resumed; the record names the source of each number."""

from __future__ import annotations

import functools
import io
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import pytest
import torch
from tqdm import tqdm

from cab.cli.main import main
from cab.errors import UserError
from cab.runner.cell import Cell as CheckedCell
from cab.runner.provenance import nvidia_driver
from cab.runner.run import run_cell
from engines.torch import loggers
from tests.helpers.runs.fixtures import TROUBLED
from tests.helpers.runs.processes import run_cab, the_record
from tests.helpers.runs.troubled import Troubled, trained

Cell = Callable[..., dict[str, Any]]


def test_the_csv_has_a_row_per_interval_and_per_validation(troubled, tmp_path, monkeypatch):
    losses: list[float] = []
    loss = Troubled.loss

    def noted(self, backbone, batch):
        value = loss(self, backbone, batch)
        losses.extend([float(value.detach())] if torch.is_grad_enabled() else [])
        return value

    monkeypatch.setattr(Troubled, "loss", noted)
    cell = ["trainer.validate_every=4", "trainer.schedule=linear", "trainer.learning_rate=0.08"]
    cell.append("trainer.max_grad_norm=1.0e-6")
    usual = trained(troubled(*cell))
    [path] = tmp_path.glob("*/metrics.csv")
    table = pd.read_csv(path)
    assert list(table["step"]) == [4, 8], "log_every is 50"
    assert list(table["validation"]) == [entry["validation"] for entry in usual.history]
    losses.clear()
    often = trained(troubled(*cell, "trainer.log_every=3", "force=true"))
    assert (often.hash, often.history, often.metrics) == (usual.hash, usual.history, usual.metrics)
    table = pd.read_csv(path)
    assert list(table["step"]) == [3, 4, 6, 8]
    assert list(table["validation"].notna()) == [False, True, False, True]
    steps = [losses[:3], losses[3:4], losses[4:6], losses[6:]]
    assert list(table["loss"]) == pytest.approx([sum(values) / len(values) for values in steps])
    assert list(table["learning_rate"]) == pytest.approx([0.06, 0.05, 0.03, 0.01])
    assert (table["gradient_norm"] > 1e-3).all(), "before clipping"
    assert (table["examples_per_second"] > 0).all()
    assert (table["peak_memory_bytes"] > 2**20).all()
    assert list(table["epoch"] / table["epoch"].iloc[0]) == pytest.approx([1, 4 / 3, 2, 8 / 3])


def test_to_measure_gradients_changes_nothing(troubled, tmp_path, uncut):
    often = trained(troubled("trainer.log_every=1"))
    assert (often.metrics, often.history) == (uncut.metrics, uncut.history)
    [path] = tmp_path.glob("*/metrics.csv")
    assert pd.read_csv(path)["gradient_norm"].notna().sum() == 8


@pytest.mark.parametrize(("flags", "count"), [([], 10), (["-v"], 40)])
def test_a_file_has_ten_lines_per_run_and_with_v_every_row(flags, count, troubled, tmp_path, cab):
    troubled()
    settings = ["trainer.max_steps=40", "trainer.validate_every=4", "trainer.log_every=1", f"results_dir={tmp_path}"]
    said = cab("run", *TROUBLED, *settings, *flags).err
    assert said.count("step ") == count
    assert re.search(r"^step 40 of 40, loss \S+, validation \S+$", said, flags=re.MULTILINE)
    assert not {"\r", "\x1b"} & set(said)


def test_a_terminal_has_a_bar_and_no_lines(troubled, tmp_path, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(tqdm, "__init__", functools.partialmethod(tqdm.__init__, mininterval=0))
    troubled()
    assert main(["run", *TROUBLED, "trainer.validate_every=4", f"results_dir={tmp_path}"]) == 0
    drawn = terminal.getvalue()
    assert "step 4 of 8" not in drawn
    assert re.search(r"troubled synthetic gpt2 CS vanilla smoke 1: .*[4-7]/8 .*loss=?.*validation", drawn), drawn
    assert [line for line in drawn.splitlines() if line.startswith("finished: troubled")]


def test_tensorboard(troubled, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_cell(troubled("logger=tensorboard", "trainer.validate_every=4"))
    [folder] = tmp_path.glob("*/tensorboard")
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("validation")] == [4, 8]
    assert {"loss", "learning_rate", "gradient_norm", "examples_per_second"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("writes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_wandb_is_offline_and_grouped_by_sweep(writes, troubled, tmp_path, monkeypatch):
    """With a run of W&B itself, which writes a file, or a stand-in for it."""
    import wandb

    given: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    steps: list[int] = []
    original, finish = wandb.init, loggers.Wandb.close

    def init(**arguments):
        given.update(arguments)
        if writes:
            return original(**arguments)
        return SimpleNamespace(summary={}, log=lambda _, step: steps.append(step), finish=lambda: None)

    def close(logger):
        summary.update(dict(logger._run.summary))
        finish(logger)

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(loggers.Wandb, "close", close)
    options = ["logger.tags=[small,first]", "logger.entity=us", "logger.job_type=train", "logger.notes=why"]
    outcome = run_cell(troubled("logger=wandb", "trainer.validate_every=4", *options))
    assert wandb.run is None, "the next cell would write into this run"
    assert given["id"].startswith(f"{outcome.record.hash}-")
    assert (given["mode"], given["group"], given["entity"]) == ("offline", str(tmp_path), "us")
    assert (given["job_type"], given["tags"], given["notes"]) == ("train", ["small", "first"], "why")
    assert given["config"]["trainer"]["max_steps"] == 8
    assert given["config"]["hash"] == summary["hash"] == outcome.record.hash
    assert {metric.name: metric.value for metric in outcome.record.metrics}.items() <= summary.items()
    assert summary["cost/params"] == outcome.record.cost.params
    for name, metrics in outcome.record.baselines.items():
        assert all(summary[f"baseline/{name}/{metric}"] == value for metric, value in metrics.items())
    assert steps == ([] if writes else [4, 8])
    assert bool(list(tmp_path.glob("*/wandb/offline-run-*/*.wandb"))) == writes


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "0" * 40}, "online"),
        ({"NETRC": "netrc"}, "online"),
        ({"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
    ],
)
def test_wandb_is_online_for_a_user_who_is_logged_in(variables, mode, troubled, tmp_path, monkeypatch):
    import wandb

    chosen: list[str] = []
    monkeypatch.chdir(tmp_path)
    host = urlsplit(wandb.setup().settings.base_url).hostname
    Path("netrc").write_text(f"machine {host} login user password secret\n")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(wandb, "init", lambda **options: chosen.append(options["mode"]))
    loggers.Wandb(CheckedCell.from_config(troubled("logger=wandb")), tmp_path, 0)
    assert chosen == [mode]


@pytest.mark.parametrize("mine", [False, True])
def test_variables_of_wandb_come_before_the_defaults(mine, troubled, tmp_path, monkeypatch):
    """An argument that is None is left to W&B."""
    import wandb

    given: dict[str, Any] = {}
    monkeypatch.setattr(wandb, "init", lambda **options: given.update(options))
    for variable in loggers.WANDB_VARIABLES.values():
        monkeypatch.setenv(variable, "mine") if mine else monkeypatch.delenv(variable, raising=False)
    cell = CheckedCell.from_config(troubled("logger=wandb", "logger.job_type=train"))
    loggers.Wandb(cell, tmp_path, 0)
    usual = {"project": "cab", "group": str(tmp_path), "name": cell.title, "tags": [], "dir": tmp_path}
    assert {name: given[name] for name in loggers.WANDB_VARIABLES} == (dict.fromkeys(usual) if mine else usual)
    loggers.Wandb(CheckedCell.from_config(troubled("logger=wandb", "logger.run_name=a", "logger.group=b")), tmp_path, 0)
    assert (given["name"], given["group"]) == ("a", "b")


def test_disabled_wandb_writes_nothing(troubled, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run_cell(troubled("logger=wandb"))
    assert list(tmp_path.glob("*/metrics.csv"))
    assert not list(tmp_path.glob("*/wandb"))


@pytest.mark.parametrize("logger", ["csv", "tensorboard", "wandb"])
def test_a_resumed_run_has_each_step_once(logger, troubled, tmp_path, monkeypatch):
    """Interrupted after step 6 with its last checkpoint at step 4: steps 5 and 6 are trained again."""
    import wandb
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sent: list[tuple[str, int]] = []

    def init(**arguments):
        log = lambda _, step: sent.append((arguments["id"], step))  # noqa: E731
        return SimpleNamespace(summary={}, log=log, finish=lambda: None)

    monkeypatch.setattr(wandb, "init", init)
    config = troubled(f"logger={logger}", "trainer.log_every=1", "trainer.checkpoint_every=4")
    write = loggers.MetricsFile.write

    def interrupted(self, step, numbers):
        write(self, step, numbers)
        if step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(loggers.MetricsFile, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_cell(config)
    monkeypatch.setattr(loggers.MetricsFile, "write", write)
    assert trained(config).metrics
    [folder] = [path.parent for path in tmp_path.glob("*/metrics.csv")]
    assert list(pd.read_csv(folder / "metrics.csv")["step"]) == list(range(1, 9))
    if logger == "tensorboard":
        events = EventAccumulator(str(folder / "tensorboard"))
        events.Reload()
        assert [event.step for event in events.Scalars("loss")] == list(range(1, 9))
    if logger == "wandb":
        assert len({run for run, _ in sent}) == 1, "another W&B run"
        assert [step for _, step in sent][-4:] == [5, 6, 7, 8]


def test_rows_of_a_resumed_run_are_those_of_another(troubled, tmp_path):
    """Its checkpoint is between two rows, whose loss is the mean over the steps since the last one."""
    options = ["trainer.log_every=3", "trainer.checkpoint_every=2", "task.at=6"]
    trained(troubled(*options, f"results_dir={tmp_path / 'calm'}"))
    with pytest.raises(UserError, match="no space left"):
        run_cell(troubled(*options, f"results_dir={tmp_path / 'cut'}", trouble="full"))
    trained(troubled(*options, f"results_dir={tmp_path / 'cut'}"))
    calm, cut = (pd.read_csv(path) for path in sorted(tmp_path.glob("*/*/metrics.csv")))
    assert list(calm["step"]) == [3, 6, 8]
    assert list(cut["loss"]) == list(calm["loss"])


def test_two_users_have_two_runs(tmp_path):
    folders = [tmp_path / user / "hash" for user in ("one", "other")]
    for folder in folders:
        folder.mkdir(parents=True)
    assert loggers._run_id(folders[0]) == loggers._run_id(folders[0]) != loggers._run_id(folders[1])


def test_a_logger_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"not installed. Run: `pip install 'cab-benchmark\[tensorboard\]'`"):
        loggers.check_logger("tensorboard")


def test_the_driver_of_a_gpu(tmp_path):
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\n"
    (tmp_path / "version").write_text(text)
    assert nvidia_driver(tmp_path / "version") == "570.86"
    assert nvidia_driver(tmp_path / "none") == ""


RUN = ["task=lm", "dataset=synthetic", "attention=vanilla", "pattern=CS", "preset=smoke", "device=cpu"]
RUN += ["trainer.max_steps=8", "trainer.log_every=1", "trainer.checkpoint_every=4", "trainer.validate_every=4"]
RUN += ["task.limit=4", "task.context_lengths=[]"]
BLOCK, HEADER = 2**15, struct.Struct("<IHB")  # checksum, length and kind
FULL, LAST = 1, 4


def killed_and_resumed(folder: Path, *overrides: str, at: str = "step-00000008.ckpt") -> dict[str, Any]:
    arguments = [*RUN, *overrides, f"results_dir={folder}"]
    assert run_cab(*arguments, stop=f"kill {at} {folder.with_name('killed')}").returncode != 0
    process = run_cab(*arguments)
    assert process.returncode == 0, process.stderr
    assert "resuming from step 4" in process.stderr
    return the_record(folder)


def records_of(file: Path) -> Iterator[Any]:
    """Yield the records of an offline file of W&B, whose library has no reader: blocks as in a log of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = file.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while place + HEADER.size <= len(content):
        left = BLOCK - place % BLOCK
        _, length, kind = HEADER.unpack_from(content, place)
        if left < HEADER.size:
            place += left
            continue
        parts += content[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@pytest.mark.slow
def test_a_killed_run_is_one_run_of_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    record = killed_and_resumed(tmp_path / "runs", "logger=wandb", "logger.project=attention", "logger.group=sweep")
    files = sorted(tmp_path.glob("runs/*/wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert files, "that of the killed process may not be written yet"
    kinds: dict[str, list[Any]] = {}
    for file in files:
        for entry in records_of(file):
            kind = entry.WhichOneof("record_type")
            kinds.setdefault(kind, []).append(getattr(entry, kind))
    assert len({(run.run_id, run.project, run.run_group) for run in kinds["run"]}) == 1, "one run after `wandb sync`"
    assert (kinds["run"][0].project, kinds["run"][0].run_group) == ("attention", "sweep")
    assert [entry.step.num for entry in kinds["history"]][-8:] == list(range(1, 9)), "the last file has the whole curve"
    summary = {item.key or item.nested_key[0]: item.value_json for entry in kinds["summary"] for item in entry.update}
    assert summary["hash"] == f'"{record["hash"]}"'
    assert {"cost/params", "ppl", "baseline/unigram/ppl"} <= set(summary)


@pytest.mark.slow
def test_a_killed_run_is_one_curve_of_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed_and_resumed(tmp_path / "runs", "logger=tensorboard")
    [folder] = tmp_path.glob("runs/*/tensorboard")
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 9))
    assert [event.step for event in events.Scalars("validation")] == [4, 8]
