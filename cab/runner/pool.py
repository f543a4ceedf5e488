"""Run cells in a pool of worker processes on this machine, distributed over its GPUs; killed workers are restarted."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from tqdm import tqdm

from cab.errors import Preempted, UserError
from cab.runner.cell import Cell
from cab.runner.failures import LostProcessError, StopSignals, record_lost_run
from cab.runner.gpu_share import SHARED_BY
from cab.runner.progress import report_waiting
from cab.runner.report import Job, Report, cells_without_record
from cab.runner.worker import PROGRESS_ENV

log = logging.getLogger("cab")

MAX_ATTEMPTS = 2
"""Attempts per cell if its worker dies, which is not always caused by the cell."""


def run_in_pool(jobs: Iterable[Job], report: Report, *, workers: int | None, workers_per_gpu: int = 1) -> None:
    """Run every cell that has no record.

    Args:
        jobs: cells to run.
        report: report to fill.
        workers: number of processes; None means ``workers_per_gpu`` per GPU, or one without a GPU.
        workers_per_gpu: number of workers that share a GPU; each gets an equal part of its memory.

    Raises:
        Preempted: a signal stopped the pool; the workers have written checkpoints.
    """
    gpus = _visible_gpus()
    if workers_per_gpu > 1 and not gpus:
        log.warning("no GPU is available, so cluster.workers_per_gpu is ignored; use cluster.workers=N instead")
    count = workers or max(1, len(gpus) * workers_per_gpu)
    waiting: queue.SimpleQueue[tuple[Cell, Job]] = queue.SimpleQueue()
    with report_waiting("composing the runs"):
        for item in cells_without_record(jobs, report):
            waiting.put(item)
    pool = [_Worker(waiting, report, _environment(i, count, gpus), i) for i in range(min(count, waiting.qsize()))]
    signals = StopSignals()
    try:
        with signals.watched():
            for worker in pool:
                worker.start()
            for worker in pool:
                while worker.is_alive():  # with a timeout, so that signals are handled
                    worker.join(timeout=0.2)
    except (Preempted, KeyboardInterrupt):
        log.warning("stopping: the workers write checkpoints")
        for worker in pool:
            worker.stop()
        for worker in pool:
            worker.join()
        raise


def _visible_gpus() -> list[str]:
    """Return the GPUs that this process can use, with the names in CUDA_VISIBLE_DEVICES."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return [str(index) for index in range(torch.cuda.device_count())]


def _environment(index: int, count: int, gpus: list[str]) -> dict[str, str]:
    """Return the environment of a worker: its GPU, the number of workers on it, and its share of the cores."""
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    if sys.stderr.isatty():
        environment[PROGRESS_ENV] = "1"
    if gpus:
        place = index % len(gpus)
        environment["CUDA_VISIBLE_DEVICES"] = gpus[place]
        environment[SHARED_BY] = str(len(range(place, count, len(gpus))))
    return environment


class _LiveLine:
    """Progress bar of a worker's cell, and the warnings of the worker above it."""

    def __init__(self, index: int) -> None:
        self.index, self.title = index, ""
        self.bar: tqdm[NoReturn] | None = None

    def show(self, message: Mapping[str, Any]) -> None:
        if "log" in message:
            log.log(message["level"], "%s", message["log"])
        if "step" not in message:
            return
        if self.bar is None or self.title != message["title"]:
            self.close()
            self.title = message["title"]
            cell: dict[str, Any] = {"desc": self.title, "total": message["total"], "initial": message["step"]}
            self.bar = tqdm(position=self.index, file=sys.stderr, leave=False, dynamic_ncols=True, smoothing=0, **cell)
        self.bar.update(message["step"] - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        self.bar = None


class _Worker(threading.Thread):
    """Thread that passes cells from the queue to one worker process, restarts it if it dies, and shows its progress."""

    def __init__(
        self,
        waiting: queue.SimpleQueue[tuple[Cell, Job]],
        report: Report,
        environment: dict[str, str],
        index: int = 0,
    ) -> None:
        super().__init__(daemon=True)
        self.line = _LiveLine(index)
        self.waiting = waiting
        self.report = report
        self.environment = environment
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.starting = threading.Lock()  # a process is either started before a stop, or not at all

    def run(self) -> None:
        while not self.stopped:
            try:
                cell, job = self.waiting.get_nowait()
            except queue.Empty:
                break
            self._run_cell(cell, job)
        self.line.close()
        if self.process is not None:
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the process died
                self.process.stdin.close()
            self.process.wait()

    def stop(self) -> None:
        """Stop the process after a checkpoint; no further cell is started."""
        with self.starting:
            self.stopped = True
            if self.process is not None:
                self.process.terminate()

    def _run_cell(self, cell: Cell, job: Job) -> None:
        died = ""
        for _ in range(MAX_ATTEMPTS):
            answer = self._answer(job)
            if answer is not None:
                if answer["error"]:
                    self.report.add_error(UserError(answer["error"]), job.command)
                elif answer["outcome"] == "locked":
                    log.warning("another process is running %s", cell.title)
                else:
                    self.report.add_recorded(cell, otherwise="its record was deleted")
                return
            if self.stopped:
                return
            died = self._exit_reason()
            log.warning("the worker of %s %s", cell.title, died)
        why = f"its worker {died} {MAX_ATTEMPTS} times"
        with contextlib.suppress(OSError):  # as on a full disk
            record_lost_run(cell, job.command, LostProcessError(why))
        self.report.add_recorded(cell, otherwise=why)

    def _answer(self, job: Job) -> dict[str, Any] | None:
        """Return the worker's answer; None if it dies, or the pool is stopped."""
        process = self._live_process()
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(vars(job)) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message: dict[str, Any] = json.loads(line) if line.endswith("\n") else {}
                if "outcome" in message:
                    return message
                self.line.show(message)
        except OSError:
            pass
        return None

    def _live_process(self) -> subprocess.Popen[str] | None:
        with self.starting:
            if self.stopped:
                return None
            if self.process is None or self.process.poll() is not None:
                command = [sys.executable, "-P", "-m", "cab.runner.worker"]
                pipe = subprocess.PIPE
                self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=self.environment, text=True)
            return self.process

    def _exit_reason(self) -> str:
        assert self.process is not None
        status = self.process.wait()
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
