"""Signals at random moments, and a disk that is full at any write. The seed is the day, `CAB_CONFORMANCE_SEED`."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from cab.cli.main import main
from cab.records.record import Record
from tests.cab.cli.command import cab
from tests.cab.hostile import SEED
from tests.cab.runner.full_disk import FULL, FullDisk

pytestmark = pytest.mark.slow
CELL = ["run", "task=lstf", "dataset=synthetic", "attention=vanilla", "pattern=NC", "preset=smoke", "device=cpu"]
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGKILL)
CHAINS, KILLS = 4, 4
REPLACING = 2
"""Chains that replace a record with ``force=true``, which is kept until the new one is written."""


def scores(folder: Path) -> list[Any]:
    """The metrics of all records, each of which is whole."""
    return [Record.read(path).metrics for path in sorted(folder.glob("*.json"))]


def test_a_run_that_is_killed_at_any_moment_ends_as_one_that_is_not(tmp_path: Path) -> None:
    run = [*CELL, "trainer.max_steps=40", "trainer.validate_every=10", "trainer.checkpoint_every=5"]
    assert cab(*run, "results_dir=calm", cwd=tmp_path).returncode == 0
    expected = scores(tmp_path / "calm")
    draw = random.Random(SEED)
    for chain in range(CHAINS + REPLACING):
        said = []
        results = tmp_path / f"chain-{chain}"
        if chain >= CHAINS:
            shutil.copytree(tmp_path / "calm", results)
            run = [*run, "force=true"]
        for attempt in range(KILLS):
            number, seconds = draw.choice(SIGNALS), draw.uniform(0.0, 1.0)
            begun = f"{results.name}/*/cell.json" if attempt % 2 else ""  # also on a slow machine
            process = cab(*run, f"results_dir={results}", cwd=tmp_path, kill=(number, seconds), once=begun)
            said.append(f"{number.name} after {seconds:.2f} s: status {process.returncode}, {process.stderr}")
            about = f"CAB_CONFORMANCE_SEED={SEED}, chain {chain}: {said}"
            assert process.returncode in (0, 128 + number, -number), about
            assert "internal error" not in process.stderr, about
            assert "Traceback" not in process.stderr, about
            assert scores(results) in ([[], expected] if chain < CHAINS else [expected]), about
            said += [damage(path, draw) for path in sorted(results.glob("*/step-*.ckpt"))[-1:] if draw.random() < 0.5]
            for folder in results.glob("*/") if chain >= CHAINS or not scores(results) else ():  # will run again
                (folder / ".weights.pt-0000.tmp").write_text("of a killed process")
        process = cab(*run, f"results_dir={results}", cwd=tmp_path)
        assert process.returncode == 0, f"CAB_CONFORMANCE_SEED={SEED}, chain {chain}: {said}, {process.stderr}"
        assert scores(results) == expected
        assert not list(results.rglob("*.tmp"))
        for path in results.glob("*.json"):
            assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def damage(checkpoint: Path, draw: random.Random) -> str:
    """Damage a checkpoint in one of several ways, and return which."""
    content = bytearray(checkpoint.read_bytes())
    way = draw.choice(("empty", "half", "bytes", "keys", "shapes"))
    if way == "keys":
        torch.save({"step": 3}, checkpoint)
    elif way == "shapes":
        state = torch.load(checkpoint, weights_only=True)
        torch.save(smaller(state), checkpoint)
    else:
        if way == "bytes":
            for _ in range(20 if content else 0):  # an earlier damage may have emptied it
                content[draw.randrange(len(content))] ^= 0xFF
        checkpoint.write_bytes(content[: {"empty": 0, "half": len(content) // 2}.get(way)])
    return f"checkpoint damaged: {way}"


def smaller(state: Any) -> Any:
    """The same state with tensors of other shapes."""
    if isinstance(state, dict):
        return {name: smaller(value) for name, value in state.items()}
    return state[:-1] if isinstance(state, torch.Tensor) and state.ndim and state.is_floating_point() else state


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.skipif(not Path(FULL).exists(), reason=FULL)
def test_a_disk_that_is_full_at_any_write_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    run = [*CELL, "trainer.max_steps=4", "trainer.validate_every=2", "trainer.checkpoint_every=2"]
    assert main([*run, f"results_dir={tmp_path / 'calm'}"]) == 0
    expected = scores(tmp_path / "calm")
    statuses = []
    while True:
        results = tmp_path / f"full at {len(statuses) + 1}"
        disk = FullDisk(tmp_path, at=len(statuses) + 1)
        capsys.readouterr()
        with disk.mounted():
            status = main([*run, f"results_dir={results}"])
        said = capsys.readouterr().err
        if not disk.was_met:
            break
        statuses.append(status)
        assert status == 0 or (status == 2 and said.count("cab: error: no space left") == 1), f"{results}: {said}"
        assert "Traceback" not in said, f"{results}: {said}"
        assert scores(results) in ([], expected), results
        assert status == 2 or scores(results) == expected, f"{results}: {said}"
        assert main([*run, f"results_dir={results}"]) == 0
        assert scores(results) == expected, results
    assert statuses.count(2) > 5
