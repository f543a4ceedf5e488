"""Closed pipes, full streams, full disks as libraries report them, and warnings that are repeated."""

import errno
import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from cab import UserError
from cab.cli.terminal import log_to_terminal
from cab.files import cache
from cab.files.disk import is_full_disk
from tests.helpers.command import ROOT

FULL = Path("/dev/full")


def list_tasks(stdout: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ.copy()
    environment.pop("PYTHONUNBUFFERED", None)  # Python's buffers are written at its exit
    command = [sys.executable, "-m", "cab.cli.main", "list", "tasks", "--csv"]
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_a_reader_that_exits_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    done = list_tasks(writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full")
def test_a_full_stdout_is_one_line():
    with FULL.open("w") as full:
        done = list_tasks(full.fileno())
    line = "cab: error: no space left on the disk of the output; free some space and repeat the command\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full")
def test_a_full_disk_is_recognized():
    writers = [partial(torch.save, torch.zeros(size)) for size in (1, 10**6)]
    for write in (*writers, np.zeros(10**6).tofile, lambda path: path.write_text("much")):
        with pytest.raises((OSError, RuntimeError)) as caught:
            write(FULL)
        assert is_full_disk(caught.value), write


def test_other_errors_are_not_a_full_disk():
    for error in (OSError(errno.EACCES, "no space left on device"), RuntimeError("shape"), UserError("no space left")):
        assert not is_full_disk(error)
    assert is_full_disk(Exception("I/O error: No space left on device (os error 28)"))  # of a library in Rust


def test_a_full_cache_is_one_line(tmp_path, monkeypatch):
    def build(folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setenv("CAB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"no space left on the disk of {tmp_path}"):
        cache.prepared("part", {}, build)
    assert [path.suffix for path in tmp_path.iterdir()] in ([], [".lock"])


def test_a_warning_is_printed_once_per_command(capsys):
    for _ in range(2):
        log_to_terminal(logging.WARNING, "%(message)s", force=True)
        for text in ("first", "second", "first"):
            logging.getLogger("cab").warning("%s", text)
        logging.getLogger("cab").error("first")
    assert capsys.readouterr().err.split() == ["first", "second", "first"] * 2
