"""Loggers and profiles: what they write during a run and after it is resumed; they change no number."""

import csv
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from cab.runner.run import run_cell
from engines.torch import loggers
from engines.torch.profiling import STEP_PARTS
from tests.helpers.runs.troubled import Troubled, trained


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


@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_a_resumed_run_has_each_step_once(logger, troubled, tmp_path, monkeypatch, uncut):
    """Interrupted after step 6 with its last checkpoint at step 4: steps 5 and 6 are trained again."""
    import wandb
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given: list[dict[str, Any]] = []
    steps: list[int] = []
    summary: dict[str, Any] = {}

    def init(**arguments):
        given.append(arguments)
        return SimpleNamespace(summary=summary, log=lambda _, step: steps.append(step), finish=lambda: None)

    for name in ("WANDB_MODE", "WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
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
    record = trained(config)
    assert (record.metrics, record.history) == (uncut.metrics, uncut.history)
    [folder] = [path.parent for path in tmp_path.glob("*/metrics.csv")]
    assert list(pd.read_csv(folder / "metrics.csv")["step"]) == list(range(1, 9))
    if logger == "tensorboard":
        events = EventAccumulator(str(folder / "tensorboard"))
        events.Reload()
        assert [event.step for event in events.Scalars("loss")] == list(range(1, 9))
    if logger == "wandb":
        assert len({arguments["id"] for arguments in given}) == 1, "another W&B run"
        assert given[-1]["mode"] == "offline", "nobody is logged in"
        assert given[-1]["group"] == str(tmp_path)
        assert steps[-4:] == [5, 6, 7, 8]
        assert given[-1]["config"]["hash"] == summary["hash"] == record.hash
        assert {metric.name: metric.value for metric in record.metrics}.items() <= summary.items()


def test_a_profile_adds_up_and_changes_no_score(troubled, tmp_path, uncut):
    record = trained(troubled("profile=true"))
    assert (record.hash, record.metrics, record.history) == (uncut.hash, uncut.metrics, uncut.history)
    assert (tmp_path / record.hash / "trace.json").exists()
    with (tmp_path / record.hash / "profile.csv").open(newline="") as file:
        parts = {row["name"]: float(row["seconds"]) for row in csv.DictReader(file) if row["kind"] == "part"}
    assert list(parts) == [*STEP_PARTS, "other", "step"]
    assert sum(parts.values()) == pytest.approx(2 * parts["step"], rel=1e-3)
    assert min(parts["forward"], parts["backward"], parts["optimizer"]) > 0
