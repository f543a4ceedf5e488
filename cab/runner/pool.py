"""Run cells in worker processes on this machine, distributed over its GPUs; a cell whose worker dies runs once more."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, NoReturn

from tqdm import tqdm

from cab.errors import Preempted, UserError, first_line
from cab.files.cache import report_waiting
from cab.files.text_table import counted
from cab.runner.processes import SHARED_BY, LostProcessError, StopSignals, find_processes, without_launcher

if TYPE_CHECKING:  # a worker sets its environment before it imports torch
    from cab.runner.cell import Cell
    from cab.runner.report import Job, Report

log = logging.getLogger("cab")

MAX_ATTEMPTS = 2
"""Attempts per cell if its worker dies, which is not always caused by the cell."""
GRACE = 60.0
"""Seconds in which the processes of a run end after one of them."""
STOPPED = "stopped"
"""Kind of outcome of a cell whose worker died, or was stopped by a signal."""
SPAWN = multiprocessing.get_context("spawn")


def run_in_pool(
    jobs: Iterable[Job], report: Report, *, workers: int | None, workers_per_gpu: int = 1, gpus: int = 1
) -> None:
    """Run every cell that has no record, each on ``gpus`` GPUs with one process per GPU.

    Without ``workers``, there are ``workers_per_gpu`` cells at a time on each group of GPUs, or one without a GPU.
    Workers that share a GPU get equal parts of its memory. Before Preempted, they have written checkpoints.
    """
    from cab.runner.provenance import visible_gpus  # imports torch
    from cab.runner.report import cells_to_run

    groups = groups_of(visible_gpus(), gpus)
    if not groups and gpus > 1:
        log.warning("no GPU is available: each run has %d processes on the CPU", gpus)
    if workers_per_gpu > 1 and not groups:
        log.warning("no GPU is available, so cluster.workers_per_gpu is ignored; use cluster.workers=N instead")
    count = workers or max(1, len(groups) * workers_per_gpu)
    with report_waiting("composing the runs"):
        pool = Pool(chains_of(cells_to_run(jobs, report)), report)
    environments = [worker_environments(index, count, groups, gpus) for index in range(min(count, pool.num_chains))]
    if environments:
        pool.run(environments)


def chains_of(cells: Iterable[tuple[Cell, Job]]) -> list[list[tuple[Cell, Job]]]:
    """Return the cells, the longest first; those that train the same network are in one chain, to reuse its result."""
    from cab.runner.run import same_network

    chains: dict[str, list[tuple[Cell, Job]]] = {}
    for cell, job in cells:
        chains.setdefault(min([cell.hash, *(twin.hash for twin in same_network(cell))]), []).append((cell, job))
    return sorted(chains.values(), key=lambda chain: -(chain[0][0].expected_hours() or (0.0, ""))[0])


class Pool:
    """Chains of cells that wait for one of several slots; the processes of a slot run one cell at a time."""

    def __init__(self, chains: Sequence[Sequence[tuple[Cell, Job]]], report: Report) -> None:
        self.report = report
        self.waiting: queue.SimpleQueue[Sequence[tuple[Cell, Job]]] = queue.SimpleQueue()
        for chain in chains:
            self.waiting.put(chain)
        self.num_chains, self.size = len(chains), sum(map(len, chains))
        self.is_stopped = False
        self.starting = threading.Lock()  # a cell is either started before a stop, or not at all

    def run(self, environments: list[list[dict[str, str]]]) -> None:
        """Run all cells in one slot per list of environments, which has that of each process."""
        bar = tqdm(total=self.size, desc="runs", disable=not sys.stderr.isatty(), leave=False, dynamic_ncols=True)
        with bar, ThreadPoolExecutor(len(environments)) as slots, StopSignals().watched():
            futures = [slots.submit(self._run_slot, of_slot, bar) for of_slot in environments]
            try:
                for future in futures:
                    future.result()
            except (Preempted, KeyboardInterrupt):
                log.warning("stopping: the workers write checkpoints; a second Ctrl-C kills them")
                self.stop()
                try:
                    wait(futures)
                except (Preempted, KeyboardInterrupt):  # a run that hangs reads no signal
                    for process in multiprocessing.active_children():
                        process.kill()
                raise

    def stop(self) -> None:
        """Stop the workers after a checkpoint; no further cell is started."""
        with self.starting:
            self.is_stopped = True
            for process in multiprocessing.active_children():
                process.terminate()

    def _run_slot(self, environments: list[dict[str, str]], bar: tqdm[NoReturn]) -> None:
        """Run waiting cells one after another, in new workers after one dies or for other foreign code."""
        workers, foreign = Workers(environments), frozenset[str]()
        with contextlib.suppress(queue.Empty):
            while not self.is_stopped:
                for cell, job in self.waiting.get_nowait():
                    if foreign != (foreign := cell.foreign):
                        workers.close()
                        workers = Workers(environments)
                    kind, error = self._run_cell(workers, cell, job)
                    self._report(cell, job, kind, error)
                    bar.update()
        workers.close()

    def _run_cell(self, workers: Workers, cell: Cell, job: Job) -> tuple[str, str]:
        """Return the outcome of a cell, which runs again if its worker dies."""
        kind, error = STOPPED, ""
        for _ in range(MAX_ATTEMPTS):
            try:
                with self.starting:
                    futures = [] if self.is_stopped else workers.submit(job)
                kind, error = workers.outcome(futures) if futures else (STOPPED, "")
            except BrokenProcessPool:
                kind, error = STOPPED, workers.restart()
            if kind != STOPPED or self.is_stopped:
                break
            log.warning("the worker of %s died%s", cell.title, error and f" ({error})")
        return kind, error

    def _report(self, cell: Cell, job: Job, kind: str, error: str) -> None:
        if kind == STOPPED and self.is_stopped:
            return
        if kind == "locked":
            log.warning("another process is running %s", cell.title)
        elif kind != STOPPED and error:
            self.report.add_error(UserError(error), job.command)
        elif kind != STOPPED:
            self.report.add_recorded(cell, otherwise="its record was deleted")
        else:
            from cab.runner.report import record_lost_run  # imports torch

            why = f"its worker died {MAX_ATTEMPTS} times{error and f' ({error})'}"
            with contextlib.suppress(OSError):  # as on a full disk
                record_lost_run(cell, job.command, LostProcessError(why))
            self.report.add_recorded(cell, otherwise=why)


class Workers:
    """The processes that run a cell together, each of an executor of its own.

    So the death of one affects no other cell. Several processes are connected as by torchrun.
    """

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self._environments = environments
        self._start()

    def _start(self) -> None:
        port = {"MASTER_PORT": str(free_port())} if len(self._environments) > 1 else {}
        self._executors = [new_worker({**environment, **port}) for environment in self._environments]
        self._processes: set[BaseProcess] = set()

    def submit(self, job: Job) -> list[Future[tuple[str, str]]]:
        """Start a cell in all processes."""
        others = multiprocessing.active_children()
        job = dataclasses.replace(job)  # without its cell, of whose classes a worker may not have the modules yet
        try:
            return [executor.submit(run_job, job) for executor in self._executors]
        finally:
            self._processes.update(set(multiprocessing.active_children()).difference(others))

    def outcome(self, futures: Sequence[Future[tuple[str, str]]]) -> tuple[str, str]:
        """Return the outcome of the first process, when it and the others have ended; BrokenProcessPool if one dies."""
        first, *others = futures
        running, error = set(futures), ""
        while first in running and not error:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            error = next((text for future in done if (text := future.result()[1]) and future is not first), "")
        running = wait(futures, timeout=GRACE if others else None)[1]
        kind = first.result() if first not in running else (STOPPED, error)
        if running or any(future.exception() for future in others):  # they wait for a process that failed
            self.restart()
        return kind

    def restart(self) -> str:
        """Replace all processes, after the death of one; return how it ended, and how others did that died with it."""
        died = connection.wait([process.sentinel for process in self._processes], timeout=1)
        for process in self._processes:
            process.kill()
        self.close()  # first, since the threads of the executors read the exit codes, which can be read only once
        ends = {end_of(process) for process in self._processes if process.sentinel in died}
        self._start()
        return " and ".join(sorted(filter(None, ends)))

    def close(self) -> None:
        """End all processes after their cell."""
        for executor in self._executors:
            executor.shutdown()


def free_port() -> int:
    """Return a port that no program uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def new_worker(environment: dict[str, str]) -> ProcessPoolExecutor:
    """Return an executor with one process, whose death does not affect the other workers."""
    settings = environment, logging.getLogger("engines").level
    return ProcessPoolExecutor(1, mp_context=SPAWN, initializer=start_worker, initargs=settings)


def end_of(worker: BaseProcess) -> str:
    """Return how a worker that died ended, such as ``SIGSEGV``; empty if this is unknown."""
    code = worker.exitcode or 0
    if code == -signal.SIGKILL:
        return "SIGKILL, which the system sends if memory runs out"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}" * (code > 0)


def start_worker(environment: dict[str, str], level: int) -> None:
    """Set up a worker before torch is imported; it stops after a checkpoint if the main process dies."""
    for name in os.environ.keys() - without_launcher().keys():
        del os.environ[name]
    os.environ.update(environment)
    os.dup2(2, 1)  # libraries print to stdout, which is for the table of the main process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    handler = logging.StreamHandler()
    handler.setFormatter(RunFormatter())
    logging.basicConfig(level=logging.INFO if find_processes().is_first else logging.ERROR, handlers=[handler])
    logging.getLogger("engines").setLevel(level)

    def follow_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow_parent, daemon=True).start()


class RunFormatter(logging.Formatter):
    """Formatter that puts the name of the run, if the record has one, before the message."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        text = f"{record.run}: {text}" if hasattr(record, "run") else text
        return f"\r\x1b[K{text}" if sys.stderr.isatty() else text  # in place of the progress bar


def run_job(job: Job) -> tuple[str, str]:
    """Run one cell in a worker; return the kind of its outcome, and an error message for a cell without a record."""
    from cab.runner.run import run_cell

    try:
        return run_cell(job.config, command=job.command).kind, ""
    except Preempted:
        return STOPPED, ""
    except UserError as error:
        return "", str(error)
    except Exception as error:
        log.exception("internal error")
        return "", f"{type(error).__name__}: {first_line(error)}"


def groups_of(gpus: Sequence[str], size: int) -> list[Sequence[str]]:
    """Return groups of ``size`` GPUs; none without GPUs, UserError if they are too few for one group."""
    if gpus and size > len(gpus):
        raise UserError(f"cluster.gpus={size}, but only {counted(len(gpus), 'GPU')} found ({', '.join(gpus)})")
    if rest := len(gpus) % size:
        log.warning("%d of %d GPUs are not used: they are no group of cluster.gpus=%d", rest, len(gpus), size)
    return [gpus[start : start + size] for start in range(0, len(gpus) - size + 1, size)]


def worker_environments(index: int, count: int, groups: Sequence[Sequence[str]], size: int = 1) -> list[dict[str, str]]:
    """Return the environment variables of each of the ``size`` processes of slot ``index`` of ``count``.

    They are its GPUs, the number of slots on them, its share of the cores, and the ranks of several processes.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // (count * size))
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)), "TQDM_DISABLE": "1"}
    if groups:
        from cab.runner.provenance import device_lists  # imports torch

        group = index % len(groups)
        sharers = len(range(group, count, len(groups)))
        environment |= {**dict.fromkeys(device_lists(), ",".join(groups[group])), SHARED_BY: str(sharers)}
    if size == 1:
        return [environment]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "cab"}
    return [environment | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
