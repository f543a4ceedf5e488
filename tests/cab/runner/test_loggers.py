"""Loggers write beside the run, and where a number comes from is in the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.errors import UserError
from cab.runner.provenance import nvidia_driver
from cab.runner.run import run_cell
from engines.torch import loggers

Cell = Callable[..., dict[str, Any]]


def test_the_numbers_of_every_validation_are_in_a_csv(troubled: Cell, tmp_path: Path) -> None:
    outcome = run_cell(troubled("trainer.validate_every=4"))
    assert outcome.record is not None
    [path] = tmp_path.glob("*/metrics.csv")
    table = pd.read_csv(path)
    seen = table.dropna(subset=["validation"])
    assert list(seen["step"]) == [4, 8]
    assert list(seen["validation"]) == [entry["validation"] for entry in outcome.record.history]


def test_tensorboard(troubled: Cell, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_cell(troubled("logger=tensorboard", "trainer.validate_every=4"))
    [folder] = tmp_path.glob("*/tensorboard")
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("validation")] == [4, 8]


def test_wandb_is_offline_and_grouped_by_sweep(troubled: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    given: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    original, finish = wandb.init, loggers.Wandb.close

    def init(**arguments: Any) -> Any:
        given.update(arguments)
        return original(**arguments)

    def close(logger: loggers.Wandb) -> None:
        summary.update(dict(logger._run.summary))
        finish(logger)

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(loggers.Wandb, "close", close)
    outcome = run_cell(troubled("logger=wandb", "trainer.validate_every=4"))
    assert wandb.run is None, "the next cell would write into this run"
    assert outcome.record is not None
    assert given["id"] == outcome.record.hash
    assert given["group"] == str(tmp_path)
    assert given["config"]["trainer"]["max_steps"] == 8
    assert {metric.name: metric.value for metric in outcome.record.metrics}.items() <= summary.items()
    assert list(tmp_path.glob("*/wandb/offline-run-*/*.wandb"))


def test_a_logger_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"not installed. Run: `pip install 'cab-benchmark\[tensorboard\]'`"):
        loggers.check_logger("tensorboard")
    with pytest.raises(UserError, match="unknown logger 'paper': choose csv, tensorboard, wandb"):
        loggers.check_logger("paper")


def test_the_driver_of_a_gpu(tmp_path: Path) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\n"
    (tmp_path / "version").write_text(text)
    assert nvidia_driver(tmp_path / "version") == "570.86"
    assert nvidia_driver(tmp_path / "none") == ""
