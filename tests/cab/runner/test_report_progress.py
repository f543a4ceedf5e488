"""A terminal shows one live line a running cell, and a log file plain lines."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

from cab.files import cache
from tests.helpers.command import ROOT
from tests.helpers.runs.processes import environment


def test_a_slow_part_of_the_set_up_is_reported(monkeypatch):
    said = threading.Event()
    monkeypatch.setattr(cache, "SLOW", 0.001)
    monkeypatch.setattr(cache.log, "info", lambda *_: said.set())
    with cache.report_waiting("loading the data"):
        assert said.wait(10)


COMMAND = ["run", "-m", "task=lstf", "dataset=synthetic", "attention=vanilla,abc", "pattern=NC", "preset=smoke"]
COMMAND += ["device=cpu", "cluster=local", "cluster.workers=2", "trainer.max_steps=8", "trainer.validate_every=4"]


@pytest.mark.slow
def test_two_workers_in_a_real_terminal(tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "cab.cli.main", *COMMAND, f"results_dir={tmp_path / 'results'}"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
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
