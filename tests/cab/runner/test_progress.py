"""A terminal shows one live line a running cell, and a log file plain lines."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import pty
import queue
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cab.runner import pool, progress
from cab.runner.report import Job, Report
from cab.runner.worker import ToPool, Unwatched

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.0)


@pytest.mark.usefixtures("_no_pause")
def test_a_worker_tells_how_far_it_is_and_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[tuple[str, int, int]] = []
    progress.report_progress(lambda *words: said.append(words))
    try:
        assert list(progress.with_progress("cell", 3, 6)) == [3, 4, 5]
    finally:
        progress.report_progress(None)
    assert said == [("cell", 3, 6), ("cell", 4, 6), ("cell", 5, 6)]
    assert list(progress.with_progress("cell", 3, 6)) == [3, 4, 5]  # where nobody looks
    assert capsys.readouterr().err == ""


def test_a_worker_is_no_terminal_and_hands_on_warnings_alone() -> None:
    assert not Unwatched(io.BytesIO()).isatty()
    answers = io.StringIO()
    logger = logging.Logger("worker")
    logger.addHandler(ToPool(answers))
    logger.info("step 4, loss 1.0")
    logger.warning("a look %d", 2)
    assert json.loads(answers.getvalue()) == {"level": logging.WARNING, "log": "a look 2"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_pool_draws_what_its_workers_tell(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the answer comes; of a worker that dies over a cell there is none."""
    messages: list[dict[str, Any]] = [{"title": "a cell", "step": step, "total": 8} for step in (0, 2, 4)]
    messages += [{"level": logging.WARNING, "log": "look"}, {"title": "another cell", "step": 1, "total": 2}]
    text = "".join(json.dumps(message) + "\n" for message in messages)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    worker = pool._Worker(queue.SimpleQueue(), Report(), {})
    for end, expected in ((json.dumps({"error": "", "outcome": "completed"}) + "\n", "completed"), ('{"outc', None)):
        process = SimpleNamespace(stdin=io.StringIO(), stdout=io.StringIO(text + end))
        monkeypatch.setattr(worker, "_live_process", lambda process=process: process)
        answer = worker._answer(Job({}, "cab run"))
        assert (answer and answer["outcome"]) == expected
    worker.line.close()
    drawn = terminal.getvalue()
    assert re.search(r"a cell:   0%.*0/8", drawn)
    assert drawn.count("a cell:   0%") == 2, "one line a cell, which goes on"
    assert re.search(r"another cell:  50%.*1/2", drawn)
    assert [record.getMessage() for record in caplog.records] == ["look", "look"]


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
    columns = 80
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
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
        assert re.search(rf"lstf synthetic M informer NC {attention} smoke 1: +\d+%", text), text
        assert re.search(rf"finished: lstf synthetic M informer NC {attention} smoke 1 \(\d of 2", text), text
    assert "loss" not in text
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "\n", text).replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines if "cab verify" not in line) <= columns


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
