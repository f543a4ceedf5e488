"""A run that is killed goes on where it was: the same numbers to the bit as a run that is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cab.config.compose import compose
from cab.runner.run import run_cell
from engines.torch.checkpoints import checkpoint_files
from tests.helpers.runs.processes import records, run_cab, the_record

CELL = ["task=lstf", "dataset=synthetic", "attention=performer", "pattern=NC", "preset=smoke", "device=cpu"]
CELL += ["backbone.dropout=0.2", "trainer.max_steps=16", "trainer.batch_size=16"]
CELL += ["trainer.validate_every=7", "trainer.checkpoint_every=3"]


def run_killed(folder: Path, step: int) -> Path:
    """SIGKILL just before the checkpoint of ``step`` gets its name; the folder of the run."""
    stop = f"kill step-{step:08d}.ckpt {folder / f'killed-{step}'}"
    process = run_cab(*CELL, f"results_dir={folder}", stop=stop)
    assert process.returncode == -9, process.stderr
    assert not records(folder)
    return next(path.parent for path in folder.glob("*/cell.json"))


@pytest.mark.slow
def test_two_kills_and_a_broken_checkpoint_change_nothing(tmp_path: Path) -> None:
    run_cell(compose([*CELL, f"results_dir={tmp_path / 'uncut'}"]))
    expected = the_record(tmp_path / "uncut")
    folder = run_killed(tmp_path, 6)
    [first] = checkpoint_files(folder)
    state = torch.load(first, weights_only=True)
    state["history"]["seconds"] += 1000
    torch.save(state, first)
    run_killed(tmp_path, 15)
    _, newest = checkpoint_files(folder)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    process = run_cab(*CELL, f"results_dir={tmp_path}")
    assert process.returncode == 0, process.stderr
    assert "resuming from step 9" in process.stderr
    resumed = the_record(tmp_path)
    for same in ("metrics", "history", "hash"):
        assert resumed[same] == expected[same]
    assert resumed["cost"]["steps"] == expected["cost"]["steps"] == 16
    assert 1000 < resumed["cost"]["train_seconds"] <= resumed["cost"]["wall_seconds"] < 2000
    assert {"forecasts.png", "metrics.csv"} <= {path.name for path in folder.iterdir()}
    assert not list(folder.glob("step-*"))
