"""SIGKILL at every kind of change of a file, in a run, a pool, Slurm and the cache: the repeated command loses nothing.

Workers and jobs are forks of the test, which is also the Slurm that runs the jobs.
"""

import contextlib
import functools
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from cab.config.run_config import ClusterConfig, LocalConfig, SlurmConfig
from cab.files.cache import prepared
from cab.runner.launch import run_jobs
from cab.runner.report import Job, Report
from cab.weights import load_file
from tests.helpers.command import records
from tests.helpers.runs.fixtures import troubled_config
from tests.helpers.runs.troubled import trained

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
SETTINGS = ["trainer.max_steps=6", "trainer.validate_every=2", "trainer.checkpoint_every=2", "trainer.log_every=1"]
MODES: dict[str, tuple[int, ClusterConfig]] = {
    "single": (1, ClusterConfig()),
    "pool": (2, LocalConfig(workers=1)),
    "slurm": (2, SlurmConfig(time=60, gpus=0, cpus=1, memory=1)),
}
"""Number of cells, and where they run."""
COMMANDS = {
    "sbatch": """
        n=$(($(cat $D/count 2>/dev/null || echo 100) + 1)); echo $n > $D/count
        last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
        for i in $(seq 0 ${last:-0}); do cp "$1" $D/new; mv $D/new $D/queue/$n${last:+_$i}; done
        echo "Submitted batch job $n" """,
    "squeue": "for job in $(ls $D/queue); do echo $job RUNNING; done",
    "scontrol": '[ "$2" != config ] || echo "ClusterName = one"',
    "srun": "",
}


def kill_at_change(wanted: str, folder: Path, log: Path) -> None:
    """Append a line to ``log`` before each change of a file in ``folder``, and kill the first that makes ``wanted``.

    A change is the opening to write, the renaming or the deletion, as in ``os.rename:/results/#.json``.
    """
    places = {"os.rename": 1, "os.remove": 0, "os.mkdir": 0, "os.rmdir": 0, "open": 0}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path = str(arguments[places[event]]) if event in places else ""
        if not path.startswith(str(folder)) or (event == "os.mkdir" and Path(path).exists()):
            return
        if event == "open" and not int(arguments[2]) & (os.O_WRONLY | os.O_RDWR):
            return
        change = f"{event}:{re.sub('[0-9a-f]{8,}|[0-9]+', '#', path.removeprefix(str(folder)))}"
        lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(lines, f"{change}\n".encode())
        os.close(lines)
        if change == wanted:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{log}.killed", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def fork(function: Callable[[], int], stop: tuple[str, Path, Path] | None) -> int:
    """Start a copy of this process that calls a function, with ``stop`` until a change; return its number."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        torch.set_num_threads(1)  # a fork has no other threads
        if stop:
            kill_at_change(*stop)
        status = function()
    finally:
        os._exit(status)


def command(jobs: list[Job], cluster: ClusterConfig) -> int:
    """Run the cells as `cab run` does when they are composed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cab.runner.pool.SPAWN", multiprocessing.get_context("fork"))
        patch.setattr("cab.runner.slurm.POLL_SECONDS", 0.1)
        return int(bool(run_jobs(jobs, Report(expected=len(jobs)), cluster).failures))


def run_job(script: Path) -> int:
    """Run a job of an array, as its script does."""
    from submitit.core.submission import process_job

    waits = types.SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 10))  # a minute after a killed submission
    pytest.MonkeyPatch().setattr("submitit.core.submission.time", waits)
    number, _, task = script.name.partition("_")
    variables = {"JOB_ID": number, "PROCID": "0", "LOCALID": "0", "NTASKS": "1", "JOB_NUM_NODES": "1", "NODEID": "0"}
    variables |= {"ARRAY_JOB_ID": number, "ARRAY_TASK_ID": task} if task else {}
    os.environ.update({f"SLURM_{name}": value for name, value in variables.items()}, SUBMITIT_EXECUTOR="slurm")
    [folder] = re.findall(r"submitit\.core\._submit (\S+)", script.read_text())
    process_job(folder)
    return 0


def jobs_of(mode: str, folder: Path) -> list[Job]:
    seeds = range(1, MODES[mode][0] + 1)
    return [Job(troubled_config(*SETTINGS, f"seed={seed}", f"results_dir={folder / 'results'}"), "") for seed in seeds]


def run(mode: str, folder: Path, stop: tuple[str, Path, Path] | None = None) -> int:
    """Return the exit code of the command with results and cache in ``folder``, after its jobs have ended."""
    programs, queue = folder.with_name(f"{folder.name}-bin"), folder.with_name(f"{folder.name}-jobs") / "queue"
    for path in (folder, programs, queue):
        path.mkdir(parents=True, exist_ok=True)
    for name, text in COMMANDS.items():
        (programs / name).write_text(f"#!/bin/bash\nD={queue.parent}\n{text}\n")
        (programs / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(folder / "cache"))
        patch.setenv("PATH", str(programs), prepend=":")
        status: int | None = None
        child = fork(functools.partial(command, jobs_of(mode, folder), MODES[mode][1]), stop)
        while status is None or any(queue.iterdir()):
            for script in sorted(queue.iterdir()):
                os.waitpid(fork(functools.partial(run_job, script), stop), 0)
                script.unlink()
            if status is None and (ended := os.waitpid(child, os.WNOHANG))[0]:
                status = os.waitstatus_to_exitcode(ended[1])
            time.sleep(0.02)
    return status


def state(folder: Path) -> tuple[Any, ...]:
    """What a run leaves: scores, history, weights and log of each cell, and the names of all files."""
    results = folder / "results"
    content = []
    for record in records(results):
        of_run = results / record["hash"]
        weights = {name: value.tolist() for name, value in load_file(of_run / "weights.pt").items()}
        table = pd.read_csv(of_run / "metrics.csv")
        columns = [name for name in ("step", "loss", "validation", "learning_rate") if name in table]
        content.append((record["hash"], record["metrics"], record["history"], weights, table[columns].to_csv()))
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if not name.startswith("results/slurm/")]  # one more job for each that was killed
    return content, names


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_run_ends_as_one_that_is_not(mode, tmp_path):
    """At each kind of change that a run makes which is not killed."""
    log = tmp_path / "log"
    trained(jobs_of(mode, tmp_path / "first")[0].config)  # imports what copies of this process need
    assert run(mode, tmp_path / "calm", ("none", tmp_path / "calm", log)) == 0
    expected, changes = state(tmp_path / "calm"), list(dict.fromkeys(log.read_text().splitlines()))
    assert len(expected[0]) == MODES[mode][0]
    assert len(changes) > 15
    for number, change in enumerate(changes):
        folder, log = tmp_path / str(number), tmp_path / f"log-{number}"
        run(mode, folder, (change, folder, log))
        assert log.with_name(f"{log.name}.killed").exists()
        for _ in range(20):
            if not run(mode, folder):
                break
            time.sleep(1)  # a worker of a killed process ends after its step
        assert state(folder) == expected, change
        shutil.rmtree(folder)


def write(folder: Path) -> None:
    for name in "ab":
        (folder / name).write_text(name)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_killed_build_of_the_cache_is_built_again(is_damaged, tmp_path):
    """A first build, and one that replaces a damaged entry."""

    def build(number, change):
        cache, log = tmp_path / f"cache-{number}", tmp_path / f"log-{number}"
        cache.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CAB_CACHE", str(cache))
            made = prepared("numbers", {}, write) if is_damaged else cache
            if is_damaged:
                (made / "a").write_text("damaged")
            child = fork(lambda: len(prepared("numbers", {}, write).name) * 0, (change, cache, log))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            files = sorted(path.name for path in prepared("numbers", {}, write).iterdir())
        left = [path.name for path in cache.iterdir() if not re.fullmatch(r"numbers-\w{16}(\.lock)?", path.name)]
        assert (files, left, status) == (["a", "b", "key.json"], [], 0 if change == "none" else -9), change
        return list(dict.fromkeys(log.read_text().splitlines()))

    changes = build("calm", "none")
    assert len(changes) > 5
    for number, change in enumerate(changes):
        build(number, change)
