"""A terminal shows one live line a running cell, and a log file plain lines."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from cab.runner import progress

ROOT = Path(__file__).resolve().parents[3]


def test_a_slow_part_of_the_set_up_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()
    monkeypatch.setattr(progress, "FIRST_REPORT", 0.001)
    monkeypatch.setattr(progress.log, "info", lambda *_: said.set())
    with progress.report_waiting("loading the data"):
        assert said.wait(10)


COMMAND = ["run", "-m", "task=lstf", "dataset=synthetic", "attention=vanilla,abc", "pattern=NC", "preset=smoke"]
COMMAND += ["device=cpu", "cluster=local", "cluster.workers=2", "trainer.max_steps=8", "trainer.validate_every=4"]


@pytest.mark.slow
def test_two_workers_in_a_real_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = start(tmp_path, theirs)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            block = os.read(ours, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not block:
            break
        drawn += block
    assert process.wait() == 0, drawn.decode()
    text = drawn.decode()
    for attention in ("vanilla", "abc"):
        assert re.search(rf"finished: lstf synthetic M informer NC {attention} smoke 1 \(\d of 2", text), text
    assert re.search(r"runs: +\d+%.*[12]/2", text), text


@pytest.mark.slow
def test_two_workers_into_a_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        assert start(tmp_path, file.fileno()).wait() == 0
    text = (tmp_path / "log").read_text()
    for attention in ("vanilla", "abc"):
        assert f"lstf synthetic M informer NC {attention} smoke 1: step 4, loss" in text
    assert "\r" not in text
    assert "\x1b" not in text
    assert "%|" not in text


def start(folder: Path, stderr: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cab.cli.main", *COMMAND, f"results_dir={folder / 'results'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
