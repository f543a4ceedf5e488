"""Run programs in processes of their own, `cab` as a user does, and read the records that they leave.

A process of `cab` is a copy of one that has imported what most commands need: to start Python and import torch takes
longer than most of the commands that are tested.
"""

import csv
import gc
import io
import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STOPPING = ROOT / "tests" / "helpers" / "runs" / "stopping"

COPIES = multiprocessing.get_context("forkserver")
COPIES.set_forkserver_preload(["cab.runner.launch", "cab.runner.run", "matplotlib.figure", "scipy.signal", "pandas"])


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
    processes: int = 1,
    stop: str = "",
    module: str = "",
    timeout: float = 300,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The finished process of ``cab ARGUMENTS``, run in ``cwd``.

    Args:
        processes: how many run it together, as under torchrun.
        stop: stopping/sitecustomize.py's.
        module: what runs instead, as with ``python -m MODULE``.
    """
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if stop:
        path = filter(None, [str(STOPPING), env.get("PYTHONPATH", "")])
        env |= {"PYTHONPATH": os.pathsep.join(path), "CAB_TEST_STOP": stop}
    words = [module or "cab", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "out"), Path(folder, "err")
        ranks = [env | rank for rank in _ranks(processes)]
        started = [COPIES.Process(target=_run, args=(words, cwd, rank, *files)) for rank in ranks]
        try:
            for process in started:
                process.start()
            while running := [process for process in started if process.exitcode is None]:
                failed = any(process.exitcode for process in started)
                for process in running if failed else ():  # as torchrun does
                    process.terminate()
                if not wait([process.sentinel for process in running], 30 if failed else timeout):
                    break
        finally:
            for process in started:
                process.kill()
                process.join()
        out, err = (file.read_text() for file in files)
        if running and not failed:
            raise subprocess.TimeoutExpired(words, timeout, out, err)
        status = next((process.exitcode for process in started if process.exitcode), 0)
        return subprocess.CompletedProcess(words, status, out, err)


def _ranks(count: int) -> list[dict[str, str]]:
    """The variables of each of several processes that run together."""
    if count == 1:
        return [{}]
    with socket.create_server(("localhost", 0)) as server:
        shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(server.getsockname()[1]), "WORLD_SIZE": str(count)}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(count)]


def run(command: Sequence[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished process of any command; the programs of this Python are found first."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, **environment}
    words = [*map(str, command)]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=900, check=False)


def run_python(*arguments: str, cwd: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The finished process of a new Python, with the project in ``root``; it must succeed."""
    done = run([sys.executable, *arguments], cwd, PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr
    return done


def run_module(*module: str | Path, processes: int = 1) -> subprocess.CompletedProcess[str]:
    """The finished process of ``python -m MODULE``, of several processes under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    return run([sys.executable, *launcher, "-m", *module], ROOT)


def run_cab(*arguments: str | Path, processes: int = 1, stop: str = "") -> subprocess.CompletedProcess[str]:
    """The finished process of ``cab run ARGUMENTS``, as in :func:`cab`."""
    return cab("run", *arguments, cwd=ROOT, processes=processes, stop=stop)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def the_record(folder: Path) -> dict[str, Any]:
    [record] = records(folder)
    return record


def _run(words: list[str], cwd: Path, environment: dict[str, str], *files: Path) -> None:
    for number, file in enumerate(files, start=1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    gc.freeze()  # a run collects garbage, but not among all that was imported
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
        if words[0] != "cab":
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        sys.exit(main(words[1:]))
    except KeyboardInterrupt:  # between these two lines
        sys.exit(130)
