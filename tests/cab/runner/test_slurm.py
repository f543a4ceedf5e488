"""A sweep on a real Slurm, with what happens on clusters. Start one with `scripts/start_slurm.sh FOLDER`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import ROOT, records

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SLURM_CONF" not in os.environ, reason="a Slurm; make test-slow starts one (Debian, root)"),
]
CELLS = ["run", "-m", "task=lstf", "dataset=synthetic", "pattern=NC", "attention=vanilla,abc,performer,none"]
CELLS += ["seed=1,2,3", "preset=smoke", "device=cpu", "trainer.max_steps=200", "trainer.validate_every=20"]
CLUSTER = ["cluster=slurm", "cluster.partition=low", "cluster.gpus=0", "cluster.cpus=1", "cluster.memory=2"]


def cab(*arguments: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-m", "cab.cli.main", *arguments], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def jobs() -> dict[str, str]:
    """The state of each job of the sweep in the queue, by its place in the array."""
    lines = slurm("squeue", "--noheader", "--array", "--partition=low", "--format=%i %T").split("\n")
    found = dict(line.split() for line in lines if line)
    return {name.rpartition("_")[2]: state for name, state in found.items()}


def eventually(what: Callable[[], Any], seconds: float = 600.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError(f"waited {seconds:.0f} s in vain; the queue: {jobs()}")


def array() -> str:
    """The number of the sweep's array."""
    lines = slurm("squeue", "--noheader", "--partition=low", "--format=%F").split()
    return lines[0] if lines else ""


def running(place: int) -> bool:
    return jobs().get(str(place)) == "RUNNING"


def kill(place: int) -> bool:
    """SIGKILL for the Python process of a job; whether there was one."""
    for entry in Path("/proc").iterdir():
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        program, *arguments = command.split(b"\0")
        is_job = b"submitit.core._submit" in arguments and not program.endswith(b"srun")
        if is_job and f"SLURM_ARRAY_TASK_ID={place}".encode() in environment.split(b"\0"):
            os.kill(int(entry.name), signal.SIGKILL)
            return True
    return False


def take_memory(number: str, place: int) -> bool:
    """Leave a job's cgroup less memory than torch alone takes; whether it could be done."""
    job = slurm("squeue", "--noheader", "--format=%A", f"--jobs={number}_{place}").strip()
    for limit in Path("/sys/fs/cgroup/memory").glob(f"slurm*/uid_*/job_{job}/step_0/memory.limit_in_bytes"):
        with contextlib.suppress(OSError):  # too late for this little: the next step of the loop asks for more
            limit.write_text("150M")
            return True
    return False


def has_checkpoint(folder: Path, **wanted: Any) -> bool:
    for about in folder.glob("*/cell.json"):
        cell = json.loads(about.read_text())["cell"]
        if all(cell[key] == value for key, value in wanted.items()):
            return any(about.parent.glob("step-*.ckpt"))
    return False


def test_a_sweep_with_faults_ends_as_one_without(tmp_path):
    faulty, calm = tmp_path / "faulty", tmp_path / "calm"
    sweep = cab(*CELLS, *CLUSTER, f"results_dir={faulty}")
    number = eventually(array)
    eventually(lambda: running(1))
    slurm("scancel", f"{number}_1")
    eventually(lambda: has_checkpoint(faulty, attention="vanilla", seed=3) and kill(2))
    confined = "task/cgroup" in slurm("scontrol", "show", "config")
    assert not confined or eventually(lambda: running(4) and take_memory(number, 4))
    eventually(lambda: running(6) and has_checkpoint(faulty, attention="performer", seed=1))
    before = jobs()
    slurm("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    started = [place for place, state in before.items() if state == "RUNNING"]
    preempted = eventually(lambda: [place for place in started if jobs().get(place) == "PENDING"])
    for place in preempted:  # Slurm would let it wait for two minutes
        slurm("scontrol", "update", f"JobId={number}_{place}", "StartTime=now")
    _, errors = sweep.communicate(timeout=1800)
    assert sweep.returncode == 1, errors
    assert f"its job {number}_1 is CANCELLED" in errors
    assert f"its job {number}_2 is FAILED" in errors
    found = records(faulty)
    assert len(found) == 10, errors
    assert [record["status"] for record in found].count("oom") == (1 if confined else 0)

    again = cab(*CELLS, *CLUSTER, f"results_dir={faulty}", "--retry", "oom")
    uncut = cab(*CELLS, f"results_dir={calm}")
    for process in (uncut, again):
        _, errors = process.communicate(timeout=1800)
        assert process.returncode == 0, errors
    assert errors.count("cached") == (9 if confined else 10)
    found = records(faulty)
    assert (len(found), {record["status"] for record in found}) == (12, {"finished"})
    assert len({json.dumps(record["cell"]) for record in found}) == 12
    same = ("hash", "attention_code", "metrics")
    assert [[r[name] for name in same] for r in found] == [[r[name] for name in same] for r in records(calm)]
