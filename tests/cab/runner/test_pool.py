"""The local pool: every cell once, workers that are killed, workers that are told to stop."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.runner.pool import _environment, _Worker
from cab.runner.report import Job, Report
from tests.cab.runner.processes import records, run_cab

CELLS = ["-m", "task=lstf", "dataset=synthetic", "pattern=NC", "attention=vanilla,none"]
CELLS += ["preset=smoke", "device=cpu", "trainer.max_steps=12", "trainer.checkpoint_every=4"]
POOL = [*CELLS, "cluster=local", "cluster.workers=2"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records that one process leaves."""
    folder = tmp_path_factory.mktemp("alone")
    process = run_cab(*CELLS, f"results_dir={folder}")
    assert process.returncode == 0, process.stderr
    return records(folder)


def test_a_pool_gives_what_one_process_gives_although_a_worker_is_killed(
    alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    process = run_cab(*POOL, f"results_dir={tmp_path}", stop=f"kill step-00000008.ckpt {tmp_path / 'killed'}")
    assert process.returncode == 0, process.stderr
    assert "was killed by SIGKILL" in process.stderr
    assert "resuming from step 4" in process.stderr
    assert {row.split()[0] for row in process.stdout.splitlines()[-2:]} == {"vanilla", "none"}
    assert len(alone) == 2
    assert [record["metrics"] for record in records(tmp_path)] == [record["metrics"] for record in alone]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.thorough
def test_a_pool_that_is_told_to_stop_saves_and_goes_on(
    number: signal.Signals, alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    stop = f"parent:{number.value} step-00000008.ckpt {tmp_path / 'stopped'}"
    process = run_cab(*POOL, f"results_dir={tmp_path}", stop=stop)
    assert process.returncode == 128 + number, process.stderr
    assert "the workers save what they are at" in process.stderr
    assert not records(tmp_path)
    again = run_cab(*POOL, f"results_dir={tmp_path}")
    assert again.returncode == 0, again.stderr
    assert "resuming from step " in again.stderr
    assert [record["metrics"] for record in records(tmp_path)] == [record["metrics"] for record in alone]


def test_a_stop_while_a_worker_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting.put((None, Job({}, "")))
    worker = _Worker(waiting, Report(), dict(os.environ))
    stopping = threading.Thread(target=worker.stop)
    started, start = [], subprocess.Popen

    def stop_and_start(*_: Any, **options: Any) -> subprocess.Popen[str]:
        stopping.start()
        stopping.join(timeout=0.5)
        started.append(start(["sleep", "100"], **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", stop_and_start)
    worker.start()
    worker.join(timeout=10)
    ended = not worker.is_alive()
    started[0].kill()
    assert ended


def test_a_worker_has_a_gpu_and_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    chosen = [_environment(i, 3, ["4", "GPU-7f"])["CUDA_VISIBLE_DEVICES"] for i in range(3)]
    assert chosen == ["4", "GPU-7f", "4"]
    cores = len(os.sched_getaffinity(0))
    assert _environment(0, 2, [])["OMP_NUM_THREADS"] == str(max(1, cores // 2))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert _environment(0, 2, [])["OMP_NUM_THREADS"] == "5"


def test_mistakes_are_told_before_a_worker_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["cluster=local", "cluster.workers=0", f"results_dir={tmp_path}"]
    assert main(["run", *CELLS, *overrides]) == 2
    assert "cluster.workers must be a whole number from 1, got 0" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
