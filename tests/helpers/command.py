"""Run `cab` as a user does, in a process of its own.

Such a process is a copy of one that has imported what most commands need: to start Python and import torch anew takes
longer than most of the commands that are tested.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STOPPING = ROOT / "tests" / "helpers" / "runs" / "stopping"

_COPIES = multiprocessing.get_context("forkserver")
_COPIES.set_forkserver_preload(["cab.runner.launch", "cab.runner.run", "matplotlib.figure", "scipy.signal", "pandas"])


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of a CSV table."""
        return list(csv.DictReader(io.StringIO(self.out)))


Command = Callable[..., Printed]


def cab(
    *arguments: str | Path,
    cwd: Path,
    stop: str = "",
    kill: tuple[int, float] | None = None,
    once: str = "",
    timeout: float = 300,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The finished process of ``cab ARGUMENTS``, run in ``cwd``.

    Args:
        stop: stopping/sitecustomize.py's.
        kill: a signal that the process gets, and the seconds before.
        once: the seconds begin when the process has written a file that matches.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if stop:
        path = os.pathsep.join(filter(None, [str(STOPPING), env.get("PYTHONPATH", "")]))
        env |= {"PYTHONPATH": path, "CAB_TEST_STOP": stop}
    words = ["cab", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "out"), Path(folder, "err")
        process = _COPIES.Process(target=_run, args=(words, cwd, env, *files))
        begin = time.time_ns()
        process.start()
        if kill is not None:
            while once and process.exitcode is None and not any(f.stat().st_mtime_ns > begin for f in cwd.glob(once)):
                process.join(0.01)
            process.join(kill[1])
            if process.exitcode is None:
                os.kill(process.pid, kill[0])
        process.join(timeout)
        status = process.exitcode
        process.kill()
        process.join()
        if status is None:
            raise subprocess.TimeoutExpired(words, timeout)
        return subprocess.CompletedProcess(words, status, *(file.read_text() for file in files))


def run_python(*arguments: str, cwd: Path, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished process of a new Python, with the project in ``root``; it must succeed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root), **environment}
    run = subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run


def _run(words: list[str], cwd: Path, environment: dict[str, str], *files: Path) -> None:
    for number, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until there is who reports it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    if "CAB_TEST_STOP" in environment:
        runpy.run_path(str(STOPPING / "sitecustomize.py"))
    sys.argv = words
    from cab.cli.main import main
    from cab.executed import FOREIGN, LIBRARIES

    FOREIGN.clear()  # these modules are of the tests; a user's process has not executed them
    LIBRARIES.clear()

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sys.exit(main(words[1:]))
    except KeyboardInterrupt:  # between these two lines
        sys.exit(130)
