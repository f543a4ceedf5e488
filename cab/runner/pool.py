"""Run cells in worker processes on this machine, distributed over its GPUs; a cell whose worker dies runs once more."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, NoReturn

from tqdm import tqdm

from cab.errors import Preempted, UserError, first_line
from cab.files.cache import report_waiting
from cab.registry.names import files_of
from cab.runner.processes import SHARED_BY, LostProcessError, StopSignals

if TYPE_CHECKING:  # a worker sets its environment before it imports torch
    from cab.runner.cell import Cell
    from cab.runner.report import Job, Report

log = logging.getLogger("cab")

MAX_ATTEMPTS = 2
"""Attempts per cell if its worker dies, which is not always caused by the cell."""
STOPPED = "stopped"
"""Kind of outcome of a cell whose worker died, or was stopped by a signal."""
SPAWN = multiprocessing.get_context("spawn")


def run_in_pool(jobs: Iterable[Job], report: Report, *, workers: int | None, workers_per_gpu: int = 1) -> None:
    """Run every cell that has no record; without ``workers``, in ``workers_per_gpu`` processes per GPU, or in one.

    Workers that share a GPU get equal parts of its memory. Before Preempted, they have written checkpoints.
    """
    from cab.runner.report import cells_to_run  # imports torch

    gpus = visible_gpus()
    if workers_per_gpu > 1 and not gpus:
        log.warning("no GPU is available, so cluster.workers_per_gpu is ignored; use cluster.workers=N instead")
    count = workers or max(1, len(gpus) * workers_per_gpu)
    with report_waiting("composing the runs"):
        pool = Pool(cells_to_run(jobs, report), report)
    environments = [worker_environment(index, count, gpus) for index in range(min(count, pool.size))]
    if environments:
        pool.run(environments)


class Pool:
    """Cells that wait for one of several workers; each worker is a process of its own executor."""

    def __init__(self, cells: Iterable[tuple[Cell, Job]], report: Report) -> None:
        self.report = report
        self.waiting: queue.SimpleQueue[tuple[Cell, Job]] = queue.SimpleQueue()
        for item in cells:
            self.waiting.put(item)
        self.size = self.waiting.qsize()
        self.is_stopped = False
        self.starting = threading.Lock()  # a cell is either started before a stop, or not at all

    def run(self, environments: list[dict[str, str]]) -> None:
        """Run all cells in one worker per environment."""
        bar = tqdm(total=self.size, desc="runs", disable=not sys.stderr.isatty(), leave=False, dynamic_ncols=True)
        with bar, ThreadPoolExecutor(len(environments)) as slots, StopSignals().watched():
            futures = [slots.submit(self._run_slot, environment, bar) for environment in environments]
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

    def _run_slot(self, environment: dict[str, str], bar: tqdm[NoReturn]) -> None:
        """Run waiting cells one after another, in a new worker after one dies or for code of another file."""
        executor, worker, files = new_worker(environment), None, tuple[str, ...]()
        with contextlib.suppress(queue.Empty):
            while not self.is_stopped:
                cell, job = self.waiting.get_nowait()
                if files != (files := files_of(job.config)):
                    executor.shutdown()
                    executor = new_worker(environment)
                for _ in range(MAX_ATTEMPTS):
                    try:
                        with self.starting:
                            others = multiprocessing.active_children()
                            future = None if self.is_stopped else executor.submit(run_job, job)
                            started = set(multiprocessing.active_children()).difference(others)
                        worker = next(iter(started), worker)
                        kind, error = future.result() if future else (STOPPED, "")
                    except BrokenProcessPool:
                        kind, error, executor = STOPPED, end_of(worker), new_worker(environment)
                    if kind != STOPPED or self.is_stopped:
                        break
                    log.warning("the worker of %s died%s", cell.title, error and f" ({error})")
                self._report(cell, job, kind, error)
                bar.update()
        executor.shutdown()

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


def new_worker(environment: dict[str, str]) -> ProcessPoolExecutor:
    """Return an executor with one process, whose death does not affect the other workers."""
    settings = environment, logging.getLogger("engines").level
    return ProcessPoolExecutor(1, mp_context=SPAWN, initializer=start_worker, initargs=settings)


def end_of(worker: BaseProcess | None) -> str:
    """Return how a worker that died ended, such as ``SIGSEGV``; empty if this is unknown."""
    if worker is None:
        return ""
    worker.join(1)
    code = worker.exitcode or 0
    if code == -signal.SIGKILL:
        return "SIGKILL, which the system sends if memory runs out"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}" * (code > 0)


def start_worker(environment: dict[str, str], level: int) -> None:
    """Set up a worker before torch is imported; it stops after a checkpoint if the main process dies."""
    os.environ.update(environment)
    os.dup2(2, 1)  # libraries print to stdout, which is for the table of the main process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    handler = logging.StreamHandler()
    handler.setFormatter(RunFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
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


def visible_gpus() -> list[str]:
    """Return the GPUs that this process can use, with the names in CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return [str(index) for index in range(torch.cuda.device_count())]


def worker_environment(index: int, count: int, gpus: list[str]) -> dict[str, str]:
    """Return the environment variables of a worker: its GPU, the number of workers on it, its share of the cores."""
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)), "TQDM_DISABLE": "1"}
    if gpus:
        gpu = index % len(gpus)
        sharers = len(range(gpu, count, len(gpus)))
        environment |= {"CUDA_VISIBLE_DEVICES": gpus[gpu], SHARED_BY: str(sharers)}
    return environment
