"""The local pool: every cell once, workers that are killed, workers that are told to stop."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.runner.pool import _environment, _Worker
from tests.cab.cli.command import ROOT

CELLS = ["run", "-m", "task=lstf", "dataset=synthetic", "pattern=NC", "attention=vanilla,none"]
CELLS += ["preset=smoke", "device=cpu", "trainer.max_steps=60", "trainer.validate_every=30"]


def sweep(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cab.cli.main", *CELLS, f"results_dir={folder}", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def workers(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    threads = Path(f"/proc/{parent}/task").iterdir()
    found = {*listed, *(child for thread in threads for child in (thread / "children").read_text().split())}
    return sorted(int(pid) for pid in found if b"cab.runner.worker" in Path(f"/proc/{pid}/cmdline").read_bytes())


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def wait_for_checkpoint(folder: Path) -> None:
    end = time.monotonic() + 120
    while not any(folder.glob("*/step-*.ckpt")):
        assert time.monotonic() < end, "no checkpoint in two minutes"
        time.sleep(0.05)


def test_a_pool_gives_what_one_process_gives_although_a_worker_is_killed(tmp_path: Path) -> None:
    pool = sweep(tmp_path / "pool", "cluster=local", "cluster.workers=2")
    wait_for_checkpoint(tmp_path / "pool")
    os.kill(workers(pool.pid)[0], signal.SIGKILL)
    stdout, stderr = pool.communicate(timeout=300)
    assert pool.returncode == 0, stderr
    assert "was killed by SIGKILL" in stderr
    assert len(stdout.splitlines()) == 3
    alone = sweep(tmp_path / "alone")
    _, stderr = alone.communicate(timeout=300)
    assert alone.returncode == 0, stderr
    assert len(records(tmp_path / "pool")) == 2
    assert [r["metrics"] for r in records(tmp_path / "pool")] == [r["metrics"] for r in records(tmp_path / "alone")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_pool_that_is_told_to_stop_saves_and_goes_on(number: int, tmp_path: Path) -> None:
    cells = ("cluster=local", "trainer.max_steps=200", "trainer.validate_every=200")
    pool = sweep(tmp_path, *cells)
    wait_for_checkpoint(tmp_path)
    pool.send_signal(number)
    _, stderr = pool.communicate(timeout=120)
    assert pool.returncode == 128 + number, stderr
    assert "the workers save what they are at" in stderr
    assert not records(tmp_path)
    again = sweep(tmp_path, *cells)
    _, stderr = again.communicate(timeout=300)
    assert again.returncode == 0, stderr
    assert "resuming from step" in stderr
    assert len(records(tmp_path)) == 2


def test_a_stop_while_a_worker_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting.put((None, ({}, "")))
    worker = _Worker(waiting, dict(os.environ))
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
    assert main([*CELLS, *overrides]) == 2
    assert "cluster.workers must be a whole number from 1, got 0" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
