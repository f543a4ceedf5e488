"""A run that is killed goes on where it was: the same numbers to the bit as a run that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cab.config.compose import compose
from cab.runner.run import run_cell
from engines.torch.checkpoints import Checkpoints, checkpoint_files
from tests.cab.runner.processes import records, run_cab, the_record

CELL = ["task=lstf", "dataset=synthetic", "attention=performer", "pattern=NC", "preset=smoke", "device=cpu"]
CELL += ["backbone.dropout=0.2", "trainer.max_steps=16", "trainer.batch_size=16"]
CELL += ["trainer.validate_every=7", "trainer.checkpoint_every=3"]


def finished(folder: Path) -> dict[str, Any]:
    process = run_cab(*CELL, f"results_dir={folder}")
    assert process.returncode == 0, process.stderr
    return the_record(folder)


def run_killed(folder: Path, step: int) -> Path:
    """SIGKILL just before the checkpoint of ``step`` gets its name; the folder of the run."""
    stop = f"kill step-{step:08d}.ckpt {folder / f'killed-{step}'}"
    process = run_cab(*CELL, f"results_dir={folder}", stop=stop)
    assert process.returncode == -9, process.stderr
    assert not records(folder)
    return next(path for path in folder.iterdir() if path.is_dir())


def make_longer(folder: Path, *, seconds: float) -> None:
    """Let the newest checkpoint say that its run took so much longer."""
    path = checkpoint_files(folder)[-1]
    state = torch.load(path, weights_only=True)
    assert state["history"]["seconds"] > 0
    state["history"]["seconds"] += seconds
    torch.save(state, path)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uncut")
    run_cell(compose([*CELL, f"results_dir={folder}"]))
    return folder


@pytest.mark.slow
def test_two_kills_and_a_broken_checkpoint_change_nothing(uncut: Path, tmp_path: Path) -> None:
    expected = the_record(uncut)
    folder = run_killed(tmp_path, 6)
    assert [path.name for path in checkpoint_files(folder)] == ["step-00000003.ckpt"]
    make_longer(folder, seconds=1000)
    run_killed(tmp_path, 15)
    older, newest = checkpoint_files(folder)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    found: list[Any] = []
    assert Checkpoints(folder).restore_newest(found.append)
    [newest_whole] = found
    assert older.stem == f"step-{newest_whole['step']:08d}"
    resumed = finished(tmp_path)
    for same in ("metrics", "history", "hash"):
        assert resumed[same] == expected[same]
    assert resumed["cost"]["steps"] == expected["cost"]["steps"] == 16
    assert 1000 < resumed["cost"]["train_seconds"] <= resumed["cost"]["wall_seconds"] < 2000


@pytest.mark.slow
def test_only_the_record_and_its_weights_stay(uncut: Path) -> None:
    folder = uncut / the_record(uncut)["hash"]
    assert not list(folder.glob("step-*"))
    assert [path.name for path in folder.glob("*.pt")] == ["weights.pt"]
    assert {"forecasts.png", "loss.png", "metrics.csv"} <= {path.name for path in folder.iterdir()}
