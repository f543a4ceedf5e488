"""A run that is killed goes on where it was: the same numbers to the bit as a run that is not."""

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
import torch

from engines.torch.checkpoints import Checkpoints, checkpoint_files

CELL = [
    "task=lstf",
    "dataset=synthetic",
    "attention=performer",
    "pattern=NC",
    "preset=smoke",
    "backbone.dropout=0.2",
    "trainer.max_steps=60",
    "trainer.batch_size=16",
    "trainer.validate_every=7",
    "trainer.checkpoint_every=3",
    "device=cpu",
]


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cab.cli.main", "run", *CELL, f"results_dir={folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(folder: Path) -> dict[str, Any]:
    process = start(folder)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    [record] = folder.glob("*.json")
    return json.loads(record.read_text())


def steps_saved(folder: Path) -> int:
    return max((int(path.stem[5:]) for path in folder.glob("*/step-*.ckpt")), default=0)


def kill_after(folder: Path, step: int) -> None:
    """SIGKILL once a checkpoint of ``step`` or later is on disk."""
    process = start(folder)
    deadline = time.monotonic() + 200
    while steps_saved(folder) < step:
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def make_longer(folder: Path, *, seconds: float) -> None:
    """Let the newest checkpoint say that its run took so much longer."""
    path = checkpoint_files(next(path for path in folder.iterdir() if path.is_dir()))[-1]
    state = torch.load(path, weights_only=True)
    assert state["history"]["seconds"] > 0
    state["history"]["seconds"] += seconds
    torch.save(state, path)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return finish(tmp_path_factory.mktemp("uncut"))


def test_two_kills_change_nothing(uncut: dict[str, Any], tmp_path: Path) -> None:
    kill_after(tmp_path, 3)
    assert not list(tmp_path.glob("*.json")), "killed too late to mean anything"
    first = steps_saved(tmp_path)
    make_longer(tmp_path, seconds=1000)
    kill_after(tmp_path, first + 6)
    assert not list(tmp_path.glob("*.json")), "killed too late to mean anything"
    resumed = finish(tmp_path)
    assert resumed["metrics"] == uncut["metrics"]
    assert resumed["history"] == uncut["history"]
    assert resumed["hash"] == uncut["hash"]
    assert resumed["cost"]["steps"] == uncut["cost"]["steps"] == 60
    assert 1000 < resumed["cost"]["train_seconds"] <= resumed["cost"]["wall_seconds"] < 2000


def test_a_broken_checkpoint_is_passed_over(uncut: dict[str, Any], tmp_path: Path) -> None:
    kill_after(tmp_path, 6)
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    *_, older, newest = checkpoint_files(folder)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    newest_whole = Checkpoints(folder).newest()
    assert newest_whole is not None
    assert older.stem == f"step-{newest_whole['step']:08d}"
    assert finish(tmp_path)["metrics"] == uncut["metrics"]


def test_only_the_record_and_its_weights_stay(uncut: dict[str, Any], tmp_path: Path) -> None:
    record = finish(tmp_path)
    folder = tmp_path / record["hash"]
    assert not list(folder.glob("step-*"))
    assert [path.name for path in folder.glob("*.pt")] == ["weights.pt"]
    assert {"forecasts.png", "loss.png"} <= {path.name for path in folder.iterdir()}
    assert record["metrics"] == uncut["metrics"]
