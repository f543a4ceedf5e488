"""A profile of training steps (``profile=true``): a table of the time per part, and a trace."""

from __future__ import annotations

import contextlib
import csv
import logging
import os
import time
from collections.abc import Iterator

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler otherwise writes to stderr at every use

import torch

from cab.runner.batches import StepBatches
from cab.runner.engine import Run

log = logging.getLogger("cab")

PARTS = ("batch", "forward", "backward", "optimizer")
WARM_UP, STEPS = 3, 5
OPERATORS = 30
COLUMNS = ("kind", "name", "calls", "seconds", "share")


class StepProfile:
    """A profile of five steps after the first three, or of the steps that there are, in the folder of the run.

    ``profile.csv`` has one row per part of a step (``other`` is the time of the loop itself), then one row per
    operator for the slowest operators; all values are means per step. ``trace.json`` opens in a trace viewer. On a GPU
    each part synchronizes with the device to measure its own time, which makes profiled steps slower.
    """

    def __init__(self, run: Run, order: StepBatches) -> None:
        self.folder = run.folder
        self.device = run.device
        self.is_first = run.processes.is_first
        start = order.start + min(WARM_UP, max(0, order.num_steps - order.start - 1))
        self.steps = range(start, min(start + STEPS, order.num_steps))
        self.seconds = dict.fromkeys((*PARTS, "step"), 0.0)
        self._step = order.start - 1
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._trace = torch.profiler.profile(activities=activities)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure ``step``, a whole step, or one of the parts inside it."""
        if name == "step":
            self._step += 1
            if self._step == self.steps.start:
                self._trace.start()
        if self._step not in self.steps:
            yield
            return
        begin = self._now()
        with torch.profiler.record_function(f"cab::{name}"):
            yield
        self.seconds[name] += self._now() - begin
        if name == "step" and self._step == self.steps[-1]:
            self._trace.stop()
            if self.is_first:
                self.write()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def write(self) -> None:
        """Write the table and the trace."""
        whole = self.seconds.pop("step")
        parts = {**self.seconds, "other": whole - sum(self.seconds.values()), "step": whole}
        rows: list[tuple[str, str, int, float]] = [("part", name, 1, parts[name] / len(self.steps)) for name in parts]
        rows += self._operators()
        with (self.folder / "profile.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for kind, name, calls, seconds in rows:
                writer.writerow((kind, name, calls, f"{seconds:.6g}", f"{seconds * len(self.steps) / whole:.4f}"))
        self._trace.export_chrome_trace(str(self.folder / "trace.json"))
        shares = ", ".join(f"{name} {100 * seconds / whole:.0f}%" for name, seconds in parts.items() if name != "step")
        log.info(
            "time per step %.3g s: %s; details in %s", whole / len(self.steps), shares, self.folder / "profile.csv"
        )

    def _operators(self) -> list[tuple[str, str, int, float]]:
        """Return the operators with the most self time, on the GPU if there is one."""
        which = "self_device_time_total" if self.device.type == "cuda" else "self_cpu_time_total"
        events = [event for event in self._trace.key_averages() if not event.key.startswith("cab::")]
        events.sort(key=lambda event: -getattr(event, which))
        steps = len(self.steps)
        return [
            ("operator", event.key, round(event.count / steps), getattr(event, which) / 1e6 / steps)
            for event in events[:OPERATORS]
        ]
