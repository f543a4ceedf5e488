"""The plan of a sweep: which runs are left to do, and how long they take, without data and without training."""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cab.config.run_config import RunConfig, SlurmConfig
from cab.data.check import is_present
from cab.data.sources import data_set, data_sets
from cab.errors import exits_as_errors, first_line
from cab.files.text_table import counted
from cab.records.identity import hash_of
from cab.runner.calibration import TIMED_STEPS, training_hours
from cab.runner.cell import GPU, Cell
from cab.runner.engine import check_without_data
from cab.runner.provenance import load_per_core
from cab.runner.report import ExistingRecords, Job, Report, duration
from cab.runner.run import same_network
from cab.runner.slurm_request import request_of, time_warnings

log = logging.getLogger(__name__)

PLAN_COLUMNS = ("expected_time", "record", "command")
SUMMARY_COLUMNS = ("pattern", "task", "backbone", "dataset", "runs", "to_do", "hours_per_run", "hours")
GPU_HERE = "this GPU"
BUSY_LOAD = 1.1
"""Load per core from which the times of steps are those of a busy machine."""
REUSED = "reused"
"""Status of a run that trains the same network as an earlier one of the plan."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan.

    Attributes:
        status: that of its record, :data:`REUSED`, or empty if it is to be done.
        hours: expected hours; None if unknown.
        hardware: what the hours are of, such as ``GPU``.
        device: type of the device of the run.
        earlier: the hours and hardware that a calibration replaced.
    """

    cell: Cell
    command: str
    status: str
    hours: float | None
    hardware: str
    device: str
    earlier: tuple[float | None, str] | None = None

    @property
    def hours_to_do(self) -> float:
        """Expected hours of a run that is to be done; 0 for others."""
        return 0.0 if self.status else self.hours or 0.0


def planned_runs(jobs: Iterable[Job], report: Report) -> list[PlannedRun]:
    """Return the runs of composed cells; a cell with an error is added to the report.

    As in a real run, ``force`` and ``retry`` are applied, and invalid records are ignored. The times of preset
    ``paper`` are from Table 15, the others are measured (configs/costs.csv).
    """
    existing, runs, trained, jobs = ExistingRecords(reads_data=False), [], set[str](), list(jobs)
    if not report.raises:
        existing.check_code(jobs)
    for job in jobs:
        try:
            cell = job.cell
            _, device, _ = check_without_data(cell)
            record = existing.find(cell)
        except ValueError as error:
            report.add_error(error, job.command)
            continue
        hours, hardware = cell.expected_hours() or (None, "")
        is_slurm = job.config["cluster"]["name"] == "slurm"
        if hardware != GPU and is_slurm and cell.config.device != "cpu":
            hours, hardware = None, ""  # measured on other hardware
        status = "" if record is None else str(record.status)
        if not status and not cell.config.force and any(twin.hash in trained for twin in same_network(cell)):
            status = REUSED
        trained.add(cell.hash)
        where = "that of the Slurm job" if is_slurm else device.type
        runs.append(PlannedRun(cell, job.command, status, hours, hardware, where))
    return runs


def calibrated(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs with the hours of training on this device, from steps of each distinct network to be trained.

    A network that cannot be timed, such as one without its data, keeps its hours, with a warning.
    """
    hours: dict[str, float | None] = {}
    timed = []
    for run in runs:
        network = hash_of({name: value for name, value in run.cell.changed.items() if name != "seed"})
        if not run.status and network not in hours:
            try:
                with exits_as_errors():
                    hours[network] = training_hours(run.cell)
            except Exception as error:
                log.warning("%s is not timed: %s", run.cell.title, first_line(error))
                hours[network] = None
        found = hours.get(network)
        hardware = GPU_HERE if run.device == "cuda" else f"this {run.device.upper()}"
        if found is not None:
            run = dataclasses.replace(run, hours=found, hardware=hardware, earlier=(run.hours, run.hardware))
        timed.append(run)
    return timed


def plan_rows(runs: Sequence[PlannedRun]) -> list[list[str]]:
    """Return one row per run with expected time (``-``: unknown), status (empty: to be done) and command; then a sum.

    The sum is of the runs to be done.
    """
    rows = []
    for run in runs:
        both = [(run.hours, run.hardware), *([run.earlier] if run.earlier else [])]
        shown = [f"{duration(3600 * hours)} ({hardware})" for hours, hardware in both if hours is not None]
        rows.append([", earlier ".join(shown) or "-", run.status, run.command])
    left = [run for run in runs if not run.status]
    totals: defaultdict[str, float] = defaultdict(float)
    for run in left:
        totals[run.hardware] += 3600 * run.hours_to_do
    total = " + ".join(f"{duration(seconds)} ({name})" for name, seconds in totals.items() if name) or "-"
    unknown = sum(run.hours is None for run in left)
    missing = f", without the {unknown} of unknown time" if unknown else ""
    return [*rows, [total, "", f"total of {counted(len(left), 'run')} to be done{missing}"]]


def summary_rows(runs: Sequence[PlannedRun]) -> list[list[str]]:
    """Return one row per pattern, task, backbone and data set, with the columns :data:`SUMMARY_COLUMNS`; then a sum."""
    places: dict[tuple[str, ...], list[PlannedRun]] = {}
    for run in runs:
        key = run.cell.key
        places.setdefault(tuple(str(key[name]) for name in SUMMARY_COLUMNS[:4]), []).append(run)
    rows = []
    for place, of_place in places.items():
        each = sorted({run.hours for run in of_place if run.hours is not None})
        rows.append([*place, *_counts(of_place), " to ".join(map(_digits, dict.fromkeys((*each[:1], *each[-1:]))))])
    rows = [[*row, _digits(sum(run.hours_to_do for run in of))] for row, of in zip(rows, places.values(), strict=True)]
    return [*rows, ["total", "", "", "", *_counts(runs), "", _digits(sum(run.hours_to_do for run in runs))]]


def _of_load(device: str) -> str:
    """Return a warning that steps on busy cores take longer than on idle ones; empty for a GPU."""
    load = load_per_core() if device == "cpu" else 0.0
    return f"; other programs use the cores (load {load:.1f} per core): time again when they end" * (load > BUSY_LOAD)


def _counts(runs: Sequence[PlannedRun]) -> list[str]:
    return [str(len(runs)), str(sum(not run.status for run in runs))]


def _digits(hours: float) -> str:
    """Format hours in plain digits."""
    return f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:.3g}"


def plan_context(runs: Sequence[PlannedRun]) -> Iterator[str]:
    """Yield the presets and the device, and the state of each data set: generated, own, found or missing."""
    presets, devices = (
        dict.fromkeys(names) for names in zip(*((run.cell.config.preset, run.device) for run in runs), strict=True)
    )
    yield f"preset {', '.join(presets)}; device {', '.join(devices)}"
    data = defaultdict[str, dict[str, None]](dict)
    for run in runs:
        data[_state_of_data(run.cell.config)][run.cell.config.dataset] = None
    yield "data: " + "; ".join(f"{', '.join(names)} {state}" for state, names in data.items())


def _state_of_data(config: RunConfig) -> str:
    name, root = config.dataset, config.data_root
    if source := config.task.options.get("source"):
        return f"from {source}"
    if name not in data_sets():
        return "generated"
    is_found = root is not None and is_present(data_set(name), root)
    return f"in {root}" if is_found else "missing (see `cab data list`)"


def hours_until_done(runs: Iterable[tuple[float, int]], gpus: int) -> float:
    """Return the hours until all runs have ended on ``gpus`` GPUs, the longest first.

    Args:
        runs: GPU hours of each run, and the number of GPUs among which they are divided, at most ``gpus``.
    """
    free = [0.0] * gpus
    each = sorted(((hours / min(wanted, gpus), min(wanted, gpus)) for hours, wanted in runs), reverse=True)
    for hours, wanted in each:
        free.sort()
        free[:wanted] = [free[wanted - 1] + hours] * wanted  # they start together
    return max(free)


def plan_notes(runs: Sequence[PlannedRun], cluster: SlurmConfig, *, gpus: int = 8) -> Iterator[str]:
    """Yield the total in days, what is left out of it, and a warning for runs beyond the limits of a Slurm cluster.

    The days assume the requested GPUs per run, and the longest runs first.
    """
    left = [run for run in runs if not run.status]
    for hardware, source in ((GPU, "by Table 15"), (GPU_HERE, "of training, timed on this GPU")):
        requests = [(run, request_of(run.cell, cluster)) for run in left if run.hardware == hardware and run.hours]
        timed = [(run.hours_to_do, (request.gpus or 1) * (request.nodes or 1)) for run, request in requests]
        if not timed:
            continue
        days = [hours_until_done(timed, count) / 24 for count in (1, gpus)]
        hours, wanted = max(timed, key=lambda run: run[0] / run[1])
        yield (
            f"{_digits(sum(hours for hours, _ in timed))} GPU hours {source}: {_digits(days[0])} days on 1 GPU, "
            f"{_digits(days[1])} days on {gpus} GPUs; the longest run takes {_digits(hours / wanted)} hours on {wanted}"
        )
    if timed_here := [run for run in left if run.earlier]:
        earlier: defaultdict[str, float] = defaultdict(float)
        for run in timed_here:
            assert run.earlier is not None
            earlier[run.earlier[1]] += run.earlier[0] or 0
        texts = ", ".join(f"{_digits(hours)} hours ({name or 'unknown'})" for name, hours in earlier.items())
        yield (
            f"{counted(len(timed_here), 'run')}: {_digits(sum(run.hours_to_do for run in timed_here))} hours of "
            f"training by {TIMED_STEPS} steps on {timed_here[0].hardware}, without validation and test; earlier {texts}"
            f"{_of_load(timed_here[0].device)}"
        )
    reused = [run for run in runs if run.status == REUSED]
    if reused:
        hours = sum(run.hours or 0 for run in reused)
        total = hours + sum(run.hours_to_do for run in left)
        yield (
            f"{counted(len(reused), 'run')} with the same network as another one: {_digits(hours)} of {_digits(total)} "
            "hours are not counted again"
        )
    if unknown := sum(run.hours is None for run in left):
        yield f"not counted: {counted(unknown, 'run')} of unknown time"
    yield from time_warnings([run.cell for run in left if run.hardware == GPU], cluster)
