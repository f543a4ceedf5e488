"""Two processes do what one does: batch norm, ddp, fsdp, and who writes the record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cab.cli.command import ROOT

CELL = [
    "task=lstf",
    "dataset=synthetic",
    "attention=vanilla",
    "pattern=NC",
    "preset=smoke",
    "device=cpu",
    "backbone.dropout=0",
    "trainer.max_steps=20",
    "trainer.batch_size=16",
    "trainer.validate_every=5",
]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*module: str | Path, processes: int) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    return [sys.executable, *launcher, "-m", *map(str, module)]


def start(*module: str | Path, processes: int) -> None:
    words = command(*module, processes=processes)
    done = subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def kill_after(step: int, folder: Path, *module: str | Path, processes: int) -> None:
    """SIGKILL for all processes once a checkpoint of the step is there."""
    words = command(*module, processes=processes)
    launcher = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 200
    while not list(folder.glob(f"*/step-{step:08d}.ckpt")):
        assert launcher.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    launcher.kill()
    launcher.wait()


LM = [
    "task=lm",
    "dataset=synthetic",
    "attention=vanilla",
    "pattern=CS",
    "preset=smoke",
    "device=cpu",
    "backbone.dropout=0",
    "backbone.attention_dropout=0",
    "trainer.max_steps=20",
    "trainer.batch_size=8",
    "trainer.validate_every=5",
]


def record(folder: Path, *overrides: str, processes: int, cell: list[str] = CELL) -> dict[str, Any]:
    start("cab.cli.main", "run", *cell, *overrides, f"results_dir={folder}", processes=processes)
    [path] = folder.glob("*.json")
    return json.loads(path.read_text())


def test_batch_norm_has_the_statistics_of_all_processes(tmp_path: Path) -> None:
    start("tests.cab.runner.two_processes", tmp_path / "worst.json", processes=2)
    worst = json.loads((tmp_path / "worst.json").read_text())
    assert set(worst) == {"output", "gradient", "state", "evaluation"}
    assert max(worst.values()) < 1e-5, worst


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(tmp_path_factory.mktemp("alone"), processes=1)


@pytest.mark.parametrize("overrides", [("ddp",), ("ddp", "trainer.micro_batch_size=4"), ("fsdp",)])
def test_two_processes_train_as_one(overrides: tuple[str, ...], alone: dict[str, Any], tmp_path: Path) -> None:
    strategy, *more = overrides
    both = record(tmp_path, f"trainer.strategy={strategy}", *more, processes=2)
    assert both["hash"] == alone["hash"]
    assert both["cost"]["processes"] == 2
    assert [entry["step"] for entry in both["history"]] == [5, 10, 15, 20]
    if not more:  # batch norm sees micro-batches, so smaller ones are another computation
        for one, two in zip(alone["history"], both["history"], strict=True):
            assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
        assert both["metrics"][0]["value"] == pytest.approx(alone["metrics"][0]["value"], abs=1e-3)
    else:
        assert both["history"][-1]["loss"] == pytest.approx(alone["history"][-1]["loss"], abs=0.05)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(tmp_path_factory.mktemp("alone"), processes=1, cell=LM)


@pytest.mark.parametrize("overrides", [("ddp", "trainer.micro_batch_size=2"), ("fsdp",)])
def test_two_processes_train_a_language_model_as_one(
    overrides: tuple[str, ...], language_model: dict[str, Any], tmp_path: Path
) -> None:
    """No batch norm here: micro-batches change nothing either."""
    strategy, *more = overrides
    alone = language_model
    both = record(tmp_path, f"trainer.strategy={strategy}", *more, processes=2, cell=LM)
    assert both["hash"] == alone["hash"]
    losses = [[entry["loss"] for entry in run["history"]] for run in (alone, both)]
    assert len(losses[0]) == 4
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    [one], [two] = ([m["value"] for m in run["metrics"] if m["primary"]] for run in (alone, both))
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_of_two_processes_goes_on_in_one(strategy: str, language_model: dict[str, Any], tmp_path: Path) -> None:
    options = [*LM, "trainer.checkpoint_every=1", f"trainer.strategy={strategy}"]
    kill_after(3, tmp_path, "cab.cli.main", "run", *options, f"results_dir={tmp_path}", processes=2)
    assert not list(tmp_path.glob("*.json")), "killed too late to mean anything"
    resumed = record(tmp_path, processes=1, cell=options)
    assert (resumed["cost"]["processes"], resumed["cost"]["steps"]) == (1, 20)
    losses = [[entry["loss"] for entry in run["history"]] for run in (language_model, resumed)]
    # Before the cut the first entry has the losses of the first process alone.
    assert losses[1][1:] == pytest.approx(losses[0][1:], abs=1e-4)
