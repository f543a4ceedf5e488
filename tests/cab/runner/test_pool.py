"""The local pool: every cell once, workers that are killed, workers that are stopped."""

import logging
import os
import signal
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from cab import UserError
from cab.errors import Preempted
from cab.runner import pool
from cab.runner.cell import Cell
from cab.runner.pool import Pool, chains_of, run_in_pool, worker_environments
from cab.runner.processes import SHARED_BY, limit_gpu_memory
from cab.runner.provenance import device_lists, hardware, visible_gpus
from cab.runner.report import Job, Report
from tests.helpers.command import records, run_cab

CELLS = ["-m", "task=lstf", "dataset=synthetic", "pattern=NC", "attention=vanilla,none"]
CELLS += ["preset=smoke", "device=cpu", "trainer.max_steps=12", "trainer.checkpoint_every=4"]
POOL = [*CELLS, "cluster=local", "cluster.workers=2"]
KILLED = "SIGKILL, which the system sends if memory runs out"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    process = run_cab(*CELLS, f"results_dir={folder}")
    assert process.returncode == 0, process.stderr
    return records(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_a_pool_that_is_stopped_resumes(number, alone, tmp_path):
    stop = f"parent:{number.value} step-00000008.ckpt {tmp_path / 'stopped'}"
    process = run_cab(*POOL, f"results_dir={tmp_path}", stop=stop)
    assert process.returncode == 128 + number, process.stderr
    assert "stopping: the workers write checkpoints" in process.stderr
    assert not records(tmp_path)
    again = run_cab(*POOL, f"results_dir={tmp_path}")
    assert again.returncode == 0, again.stderr
    assert "resuming from step " in again.stderr
    assert not [mark for mark in ("\r", "\x1b", "%|") if mark in again.stderr], "it is not a terminal"
    assert {row.removeprefix("†").split()[0] for row in again.stdout.splitlines()[-2:]} == {"vanilla", "none"}
    assert [record["metrics"] for record in records(tmp_path)] == [record["metrics"] for record in alone]


def die(job: Job) -> tuple[str, str]:
    """A job whose worker is killed once, or always."""
    mark = Path(job.command)
    if not mark.exists():
        if mark.suffix == ".once":
            mark.touch()
        os.kill(os.getpid(), signal.SIGSEGV if mark.suffix == ".fault" else signal.SIGKILL)
    return "locked", ""


@pytest.mark.parametrize(("name", "causes"), [("killed.once", []), ("killed", [KILLED]), ("killed.fault", ["SIGSEGV"])])
def test_a_cell_whose_worker_dies_runs_once_more(name, causes, troubled, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pool, "run_job", die)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    config, report = troubled(), Report()
    waiting = Pool([[(Cell.from_config(config), Job(config, str(tmp_path / name)))]], report)
    waiting.run([worker_environments(0, 1, [])])
    assert len(report.failures) == len(causes)
    errors = [record["error"] for record in records(tmp_path)]
    assert errors == [f"LostProcessError: its worker died 2 times ({cause})" for cause in causes]
    assert "runs:   0%" in capsys.readouterr().err, "a bar in a terminal"


class Process(NamedTuple):
    sentinel: int  # the end of a pipe that closes with the process
    exitcode: int
    kill: Callable[[], object]


def test_all_that_died_are_named_but_not_who_is_killed_for_that():
    workers, killed = pool.Workers([]), list[int]()
    for code, is_dead in ((signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False)):
        sentinel, end = os.pipe()
        if is_dead:
            os.close(end)
        workers._processes.add(Process(sentinel, -code, partial(killed.append, code)))
    assert workers.restart() == "SIGABRT and SIGSEGV"
    assert signal.SIGKILL in killed
    assert not workers._processes


@pytest.mark.parametrize(("is_terminal", "start"), [(True, "\r\x1b[K"), (False, "")])
def test_a_line_of_a_worker_names_its_run_and_wipes_the_bar(is_terminal, start, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    line = {"msg": "step 3", "run": "a cell"}
    assert pool.RunFormatter().format(logging.makeLogRecord(line)) == f"{start}a cell: step 3"


@pytest.mark.slow
def test_two_processes_of_a_cell_are_killed_and_resume_and_the_next_cell_reuses_their_result(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cells = ["-m", "task=sum", "dataset=synthetic", "pattern=NS,CS", "attention=vanilla", "preset=smoke", "device=cpu"]
    cells += ["trainer.max_steps=8", "trainer.checkpoint_every=4", "task.limit=8"]
    alone = run_cab(*cells, "trainer.micro_batch_size=2", f"results_dir={tmp_path / 'one'}")
    assert alone.returncode == 0, alone.stderr
    shared = ["cluster=local", "cluster.gpus=2", f"results_dir={tmp_path / 'two'}"]
    process = run_cab(*cells, *shared, stop=f"kill step-00000008.ckpt {tmp_path / 'killed'}")
    assert process.returncode == 0, process.stderr
    assert " died" in process.stderr
    assert process.stderr.count("resuming from step 4") == 1, "of the first process"
    assert "Warning" not in process.stderr
    for folder in ("one", "two"):
        assert sorted(bool(record["weights_reused_from"]) for record in records(tmp_path / folder)) == [False, True]
    found = [sorted(str(record["metrics"]) for record in records(tmp_path / folder)) for folder in ("one", "two")]
    assert found[0] == found[1]
    assert {record["cost"]["processes"] for record in records(tmp_path / "two")} == {2}


def hang(job: Job) -> tuple[str, str]:
    """A job that ignores signals, as one does that waits for a step."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(job.command).touch()
    time.sleep(600)
    return "locked", ""


@pytest.mark.slow
def test_a_second_signal_kills_a_worker_that_hangs(troubled, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "run_job", hang)
    mark = tmp_path / "hangs"

    def interrupt():
        while not mark.exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    config = troubled()
    waiting = Pool([[(Cell.from_config(config), Job(config, str(mark)))]] * 2, Report())
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Preempted):
        waiting.run([worker_environments(0, 1, [])])
    assert not records(tmp_path)


def test_no_cell_starts_after_a_stop(monkeypatch):
    cells: list[Any] = [(types.SimpleNamespace(title="a cell", foreign=frozenset()), Job({"attention": "abc"}, ""))] * 2
    waiting = Pool([cells], Report())
    submitted: list[Job] = []

    def submit(self, function, job):  # noqa: ARG001
        submitted.append(job)
        threading.Thread(target=waiting.stop).start()
        raise BrokenProcessPool  # its worker was starting

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor.submit", submit)
    monkeypatch.setattr(pool.log, "warning", lambda *_: time.sleep(0.5))
    waiting.run([[{}]])
    assert len(submitted) == 1


def test_a_worker_has_its_share_of_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert worker_environments(0, 2, [])[0]["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert worker_environments(0, 2, [])[0]["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(
    ("visible", "workers", "each", "gpus", "expected"),
    [
        ("4,7", None, 1, 1, "4:1 7:1"),
        ("4,7", None, 3, 1, "4:3 4:3 4:3 7:3 7:3 7:3"),
        ("4,7", 3, 1, 1, "4:2 4:2 7:1"),
        ("", None, 8, 1, ":"),
        ("0,1,2,3,4,5,6,7", None, 1, 4, " ".join(["0,1,2,3:1"] * 4 + ["4,5,6,7:1"] * 4)),
        ("4,7,5", None, 2, 2, "4,7:2 4,7:2 4,7:2 4,7:2"),
        ("", None, 1, 2, ": :"),
    ],
)  # fmt: skip
def test_workers_are_spread_over_gpus_and_know_how_many_share_one(visible, workers, each, gpus, expected, monkeypatch):
    started: list[dict[str, str]] = []
    monkeypatch.setattr(Pool, "run", lambda self, slots: started.extend(one for slot in slots for one in slot))  # noqa: ARG005
    monkeypatch.setattr("cab.runner.report.cells_to_run", lambda *_: [])
    monkeypatch.setattr("cab.runner.pool.chains_of", lambda _: [[(None, None)]] * 7)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible.split(",")) if visible else 0)
    run_in_pool([], Report(), workers=workers, workers_per_gpu=each, gpus=gpus)
    shown = sorted(f"{found.get('CUDA_VISIBLE_DEVICES', '')}:{found.get(SHARED_BY, '')}" for found in started)
    assert " ".join(shown) == expected
    with pytest.raises(UserError, match=r"cluster.gpus=9, but only \d GPUs? found") if visible else nullcontext():
        run_in_pool([], Report(), workers=None, gpus=9)
    ranks = [(found.get("RANK"), found.get("LOCAL_RANK"), found.get("WORLD_SIZE")) for found in started[:gpus]]
    assert ranks == ([(None, None, None)] if gpus == 1 else [(str(i), str(i), str(gpus)) for i in range(gpus)])


@pytest.mark.parametrize(
    ("variables", "hip", "count", "expected"),
    [
        ({}, None, 2, "CUDA_VISIBLE_DEVICES=0,1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, None, 0, "CUDA_VISIBLE_DEVICES="),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None, 0, "CUDA_VISIBLE_DEVICES="),
        ({"CUDA_VISIBLE_DEVICES": "3, 1,-1,2"}, None, 2, "CUDA_VISIBLE_DEVICES=3,1"),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, None, 1, "CUDA_VISIBLE_DEVICES=1"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-7f3a,GPU-8"}, None, 2, "CUDA_VISIBLE_DEVICES=GPU-7f3a,GPU-8"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, None, 1, "CUDA_VISIBLE_DEVICES=MIG-a,MIG-b"),
        ({"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "3"}, None, 1, "CUDA_VISIBLE_DEVICES=2"),
        ({"HIP_VISIBLE_DEVICES": "3,4"}, "6.2", 2, "HIP_VISIBLE_DEVICES=3,4"),
        ({"CUDA_VISIBLE_DEVICES": "5"}, "6.2", 1, "CUDA_VISIBLE_DEVICES=5"),
        ({"ROCR_VISIBLE_DEVICES": "6,7"}, "6.2", 2, "HIP_VISIBLE_DEVICES=0,1"),  # numbers among those of ROCR
    ],
)  # fmt: skip
def test_lists_of_gpus_have_the_rules_of_their_drivers(variables, hip, count, expected, monkeypatch):
    for name in ("CUDA", "HIP"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert f"{','.join(device_lists())}={','.join(visible_gpus())}" == expected
    [environment] = worker_environments(0, 1, [["9"]])
    assert {environment[name] for name in device_lists()} == {"9"}


def test_long_cells_are_first_and_one_network_is_trained_once(troubled):
    config = troubled()
    cells = [(Cell.from_config(change), Job(change, "")) for change in ({**config, "seed": seed} for seed in (1, 2, 3))]
    hours = dict(zip((cell.hash for cell, _ in cells), (2.0, None, 5.0), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cell, "expected_hours", lambda self: hours[self.hash] and (hours[self.hash], "GPU"))
        assert [[cell.config.seed for cell, _ in chain] for chain in chains_of(cells)] == [[3], [1], [2]]
        patch.setattr("cab.runner.run.same_network", lambda cell: [] if cell.config.seed == 1 else [cells[1][0]])
        assert [[cell.config.seed for cell, _ in chain] for chain in chains_of(cells)] == [[1], [2, 3]]


def test_a_worker_keeps_to_its_part_of_the_memory_and_its_record_says_so(monkeypatch):
    limits: list[tuple[float, int | None]] = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(total_memory=80 * 2**30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given))
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for count in (1, 4):
        monkeypatch.setenv(SHARED_BY, str(count))
        for device in (cpu, gpu):
            assert not limits
            limit_gpu_memory(device)
        assert hardware(gpu).get("gpu_shared_by", 1) == count
        assert "gpu_shared_by" not in hardware(cpu)
    assert limits == [(pytest.approx(0.25 - 0.5 / 80), None)]
    monkeypatch.setenv(SHARED_BY, "200")
    with pytest.raises(UserError, match="200 workers are too many for a GPU with 80 GiB: use at most 80"):
        limit_gpu_memory(gpu)
