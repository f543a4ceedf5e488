"""Two processes do what one does: batch norm, ddp, fsdp, and who writes the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def start(*module: str | Path, processes: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", *map(str, module)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


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
