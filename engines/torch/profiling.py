"""A profile of training steps (``profile=true``): a table of the time per part, and a trace."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
from collections.abc import Iterator

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler otherwise writes to stderr at every use

import torch
from torch.profiler import ProfilerAction

from cab.errors import optional
from cab.runner.batches import StepBatches
from cab.runner.engine import Run

log = logging.getLogger("cab")

STEP_PARTS = ("batch", "forward", "backward", "optimizer")
WARM_UP, PROFILED_STEPS = 3, 5
NUM_OPERATORS = 30  # the slowest ones
PROFILE_COLUMNS = ("kind", "name", "calls", "seconds", "share")


class StepProfile:
    """A profile of five steps after the first three, or of the steps that there are, in the folder of the run.

    ``profile.csv`` has one row per part of a step (``other`` is the time of the loop itself), then one row per
    operator for the slowest operators; all values are means per step. ``trace.json`` opens in a trace viewer. On a GPU
    each part synchronizes with the device to measure its own time, which makes profiled steps slower, and
    ``memory.pickle`` has the allocations from the first step on (https://pytorch.org/memory_viz shows it).
    """

    def __init__(self, run: Run, order: StepBatches) -> None:
        self.folder, self.device, self.is_first = run.folder, run.device, run.processes.is_first
        remaining = order.num_steps - order.start
        start = min(WARM_UP, max(0, remaining - 1))
        self.steps = range(start, min(start + PROFILED_STEPS, remaining))
        self._profiler = torch.profiler.profile(schedule=self._action, on_trace_ready=self._finish)
        self._profiler.start()
        if self.device.type == "cuda":
            torch.cuda.memory._record_memory_history()
        else:
            log.info("profile=true: no memory snapshot, which only a GPU has")

    def _action(self, step: int) -> ProfilerAction:
        if step not in self.steps:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD_AND_SAVE if step == self.steps[-1] else ProfilerAction.RECORD

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure ``step``, a whole step, or one of the parts inside it."""
        with torch.profiler.record_function(f"cab::{name}"):
            yield
            if self.device.type == "cuda" and self._profiler.step_num in self.steps:
                torch.cuda.synchronize(self.device)
        if name == "step":
            self._profiler.step()

    def _finish(self, profiler: torch.profiler.profile) -> None:
        with optional("the profile"):
            self.write(profiler)
            if self.device.type == "cuda":
                self._write_memory()

    def write(self, profiler: torch.profiler.profile) -> None:
        """Write the table and the trace."""
        if not self.is_first:
            return
        events = {event.key: event for event in profiler.key_averages()}
        scale = 1e-6 / len(self.steps)
        parts = {name: scale * events[f"cab::{name}"].cpu_time_total for name in (*STEP_PARTS, "step")}
        step = parts.pop("step")
        parts |= {"other": step - sum(parts.values()), "step": step}
        rows = [("part", name, 1, seconds) for name, seconds in parts.items()]
        time = f"self_{'device' if self.device.type == 'cuda' else 'cpu'}_time_total"
        operators = [event for key, event in events.items() if not key.startswith(("cab::", "ProfilerStep"))]
        for event in sorted(operators, key=lambda event: -getattr(event, time))[:NUM_OPERATORS]:
            rows.append(("operator", event.key, round(event.count / len(self.steps)), scale * getattr(event, time)))
        with (self.folder / "profile.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(PROFILE_COLUMNS)
            writer.writerows((*row, f"{seconds:.6g}", f"{seconds / step:.4f}") for *row, seconds in rows)
        profiler.export_chrome_trace(str(self.folder / "trace.json"))
        shares = ", ".join(f"{name} {100 * seconds / step:.0f}%" for name, seconds in parts.items() if name != "step")
        log.info("time per step %.3g s: %s; details in %s", step, shares, self.folder / "profile.csv")

    def _write_memory(self) -> None:
        if self.is_first:
            torch.cuda.memory._dump_snapshot(str(self.folder / "memory.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)
