"""Standard streams that are closed or full, and full disks as libraries report them."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cab import UserError
from cab.cli.terminal import log_to_terminal
from cab.files import cache
from cab.files.disk import is_full_disk
from cab.runner.worker import RunFormatter
from tests.cab.cli.command import ROOT
from tests.cab.runner.processes import records

FULL = Path("/dev/full")
RUN = ["run", "task=lstf", "dataset=synthetic", "attention=vanilla", "pattern=NC", "preset=smoke", "device=cpu"]
RUN += ["trainer.max_steps=2"]


def start(*arguments: str | Path, closed: tuple[int, ...] = (), **streams: int) -> subprocess.CompletedProcess[bytes]:
    """``python ARGUMENTS`` without the ``closed`` streams."""

    def close() -> None:
        for number in closed:
            os.close(number)

    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # Python's buffers are written at its exit
    return subprocess.run(command, cwd=ROOT, env=environment, preexec_fn=close, check=False, **streams)


OPEN = """
import os, sys
from cab.cli.terminal import open_missing_streams, print_note
open_missing_streams()
print("out", flush=True)
print_note("note")
assert sys.stdin.read() == "" and not sys.stderr.isatty()
assert os.open(os.devnull, os.O_RDONLY) > 2
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_a_closed_stream_is_opened_and_no_file_gets_its_number(closed: tuple[int, ...]) -> None:
    null = subprocess.DEVNULL
    assert start("-c", OPEN, closed=closed, stdin=null, stdout=null, stderr=null).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["-m", "seed=1,2", "cluster=local", "cluster.workers=2"]])
def test_a_run_without_streams_finishes(more: list[str], tmp_path: Path) -> None:
    done = start("-m", "cab.cli.main", *RUN, *more, f"results_dir={tmp_path}", closed=(0, 1, 2))
    assert done.returncode == 0
    assert {record["status"] for record in records(tmp_path)} == {"finished"}


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full")
def test_a_full_stdout_is_one_line() -> None:
    with FULL.open("w") as full:
        done = start("-m", "cab.cli.main", "completion", "bash", stdout=full.fileno(), stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert (
        done.stderr == b"cab: error: no space left on the disk of the output; free some space and repeat the command\n"
    )


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full")
def test_a_full_stderr_does_not_change_the_status() -> None:
    with FULL.open("w") as full:
        done = start("-m", "cab.cli.main", "status", "/no/such/folder", stderr=full.fileno())
    assert done.returncode == 2


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full")
@pytest.mark.parametrize(
    "write",
    [
        lambda: torch.save(torch.zeros(1), FULL),
        lambda: torch.save(torch.zeros(10**6), FULL),
        lambda: np.zeros(10**6).tofile(FULL),
        lambda: FULL.write_text("much"),
    ],
    ids=["torch-small", "torch-large", "numpy", "text"],
)
def test_a_full_disk_is_recognized(write: Callable[[], object]) -> None:
    with pytest.raises((OSError, RuntimeError)) as caught:
        write()
    assert is_full_disk(caught.value)


def test_other_errors_are_not_a_full_disk() -> None:
    for error in (OSError(errno.EACCES, "no space left on device"), RuntimeError("shape"), UserError("no space left")):
        assert not is_full_disk(error)
    assert is_full_disk(Exception("I/O error: No space left on device (os error 28)"))  # of a library in Rust


def test_a_full_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setenv("CAB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"no space left on the disk of {tmp_path}"):
        cache.prepared("part", {}, build)
    assert [path.suffix for path in tmp_path.iterdir()] in ([], [".lock"])


def test_a_line_of_a_worker_has_the_name_of_its_run() -> None:
    record = logging.LogRecord("cab", logging.INFO, "", 0, "step %d, loss 1", (4,), None)
    assert RunFormatter("%(message)s").format(record) == "step 4, loss 1"
    record.run = "lstf NC abc 1"
    assert RunFormatter("%(message)s").format(record) == "lstf NC abc 1: step 4, loss 1"


def test_a_warning_is_printed_once_per_command(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        log_to_terminal(logging.WARNING, "%(message)s", force=True)
        for text in ("first", "second", "first"):
            logging.getLogger("cab").warning("%s", text)
        logging.getLogger("cab").error("first")
    assert capsys.readouterr().err.split() == ["first", "second", "first"] * 2
