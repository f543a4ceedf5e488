"""Run one cell, from its resolved configuration to its record on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shlex
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cab import kernels
from cab.errors import UnsupportedError, UserError, exits_as_errors, first_line, optional
from cab.files.cache import report_waiting
from cab.files.disk import check_writable, disk_errors, is_full_disk, replacing
from cab.files.numbers import is_finite
from cab.records.files import record_path, weights_path
from cab.records.record import Record, RunCost, RunMetadata, Status, now
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.runner.cell import GPU, Cell
from cab.runner.engine import Run, Training, make_initial_backbone, open_run
from cab.runner.evaluation import evaluate
from cab.runner.folder import CELL_FILE, atomic_save, discard_progress, lock_run_dir, start_run
from cab.runner.processes import status_of
from cab.runner.provenance import ResourceUsage, about_run, program_of
from cab.runner.report import ExistingRecords, Outcome, cached
from cab.spec import Spec

log = logging.getLogger(__name__)


def run_cell(config: Mapping[str, Any], *, command: str = "", existing: ExistingRecords | None = None) -> Outcome:
    """Run one cell unless its record exists; an interrupted run resumes from its last checkpoint.

    A run that fails also writes a record, with its status and without scores. With ``force``, a recorded run is
    repeated from the start; with ``retry``, a run whose record has one of these statuses resumes from its last
    checkpoint. The old record is kept until the new one is written. Nothing is written before a UserError.
    """
    cell, existing = Cell.from_config(config), existing or ExistingRecords()
    record = existing.find(cell)
    if record is not None:
        return cached(cell, record)
    check_writable(cell.config.results_dir, "results_dir")
    run = open_run(cell, command)
    if not run.processes.is_first:
        if run.processes.agree(False, run.device):
            _attempt(run)
        return Outcome(cell.title, "non_main_rank", None)
    with lock_run_dir(run.folder) as is_ours, disk_errors(cell.config.results_dir):
        found = _find_result(run, existing) if is_ours else Outcome(cell.title, "locked", None)
        if run.processes.agree(found is None, run.device):
            return Outcome(cell.title, "completed", _run_and_write(run))
        if not is_ours:
            log.warning("another process is running %s", cell.title)
        assert found is not None
        return found


def _find_result(run: Run, existing: ExistingRecords) -> Outcome | None:
    """Return the outcome of a process that had the lock until now, or of a run of the same network."""
    record = existing.find(run.cell)
    if record is not None:
        return Outcome(run.cell.title, "cached", record)
    record = reuse_result(run, existing)
    return None if record is None else Outcome(run.cell.title, "reused", record)


def _run_and_write(run: Run) -> Record:
    """Train and evaluate the cell, and write its record; checkpoints are kept unless the run finishes."""
    config = run.cell.config
    content = {"cell": run.cell.key, "command": run.command, "config": dict(config.resolved)}
    started = start_run(run.folder, content, run.identity, started=now(), afresh=config.force)
    record = _attempt(run, started)
    assert record is not None
    record.write(config.results_dir, run.cell.name)
    if record.status is Status.FINISHED:
        discard_progress(run.folder)
    return record


def _attempt(run: Run, began: str = "") -> Record | None:
    """Train and evaluate the cell, and return its record, finished or failed; None in all but the first process."""
    started, usage = time.perf_counter(), ResourceUsage(run.device)
    about = about_run(run.cell, run.command, run.device, began)
    if run.processes.is_first:
        _warn_of_marks(run.cell, about)
    try:
        with exits_as_errors(), _working_directory():
            return _train_and_evaluate(run, about, usage)
    except UserError:
        raise
    except Exception as error:
        if is_full_disk(error) or not run.processes.is_first:
            raise
        if not run.folder.is_dir():
            raise UserError(
                f"{run.folder} was deleted or moved during the run ({first_line(error)}); repeat the command"
            ) from error
        (run.folder / "traceback.txt").write_text(traceback.format_exc(), errors="backslashreplace")
        seconds, step = time.perf_counter() - started, getattr(error, "step", None)
        times = {"train_seconds": seconds, "wall_seconds": seconds, **usage.cpu()}
        cost = RunCost(steps=step, processes=run.processes.count, **times)
        status, metrics = status_of(error), run.cell.task.metrics
        about = dataclasses.replace(about, program=program_of(run.cell))
        return Record.failed(about, status=status, error=error, step=step, cost=cost, metrics=metrics)


@contextlib.contextmanager
def _working_directory() -> Iterator[None]:
    """Restore the working directory after the block, and name its change as the cause of an error in the block."""
    before = Path.cwd()
    try:
        yield
    except Exception as error:
        now = Path.cwd()
        if now != before:
            raise RuntimeError(
                f"the program changed the working directory to {now}, where relative paths are other files "
                f"({first_line(error)})"
            ) from error
        raise
    finally:
        os.chdir(before)


def _warn_of_marks(cell: Cell, about: RunMetadata) -> None:
    """Warn that the record will be marked, because of its data or of its attention."""
    if about.unpublished_files:
        files, dataset = ", ".join(about.unpublished_files), cell.config.dataset
        log.warning(
            f"{files} is not the published file of {dataset}; the record is marked. Run: `cab data verify {dataset}`"
        )
    if not about.verified:
        name, pattern = cell.config.attention.name, cell.config.pattern
        log.warning(
            f"{ATTENTIONS.get(name).label} ({pattern}) has not passed `cab verify`; its scores will be marked †. "
            f"Run: `cab verify {shlex.quote(name)} --pattern {pattern}`"
        )


def _train_and_evaluate(run: Run, about: RunMetadata, usage: ResourceUsage) -> Record | None:
    """Return the record of a run that succeeds; the other processes help to evaluate, and return None."""
    cell, started, warnings = run.cell, time.perf_counter(), list[str]()
    with (
        run.signals.watched(),
        cell.config.matmul_precision(run.device),
        run.open_files,
        contextlib.ExitStack() as selected,
    ):
        with report_waiting(f"{cell.title}: drawing the initial weights"):
            baselines = cell.task.baselines() if run.processes.is_first else {}
            backbone = make_initial_backbone(cell)
        selected.enter_context(kernels.use(cell.config.trainer.kernels))
        training = run.engine.train(run, backbone)
        if not run.processes.is_first:
            evaluate(cell, backbone, run.device, run.processes, run.folder)
            return None
        trained = time.perf_counter()
        atomic_save(backbone.state_dict(), weights_path(cell.config.results_dir, cell.name))
        with report_waiting(f"{cell.title}: evaluating"):
            scores = evaluate(cell, backbone, run.device, run.processes, run.folder, warnings)
        _check_scores(cell, scores, warnings)
        if repr(cell.task.baselines()) != repr(baselines):  # as text, in which NaN equals NaN
            raise RuntimeError(
                "the scores of the trivial baselines changed during the run: code of the attention or of a library "
                "changed the data, the metrics or a global setting such as torch's default dtype"
            )
        size = sum(parameter.numel() for parameter in backbone.parameters())
        seconds = trained - started, time.perf_counter() - started
        cost = _cost(run, training, usage, size, *seconds, warnings)
        record = Record.finished(
            dataclasses.replace(about, program=program_of(cell)),  # with the modules that were imported on the way
            metrics=[metric.measured(scores[metric.name]) for metric in cell.task.metrics],
            baselines=baselines,
            history=training.history,
            cost=cost,
            engine_facts={**training.facts, **({"warnings": warnings} if warnings else {})},
        )
        with optional("a logger"):
            training.log_record(record)
    return record


def _check_scores(cell: Cell, scores: Mapping[str, float], warnings: list[str]) -> None:
    """Raise RuntimeError if the task does not return one of its metrics, or a primary one that is not finite.

    Of the others, such as those of a length or a group without examples, ``warnings`` name each that is not finite.
    """
    for metric in cell.task.metrics:
        if metric.name not in scores:
            returned = ", ".join(scores) or "nothing"
            raise RuntimeError(
                f"task '{cell.config.task.name}' does not return its metric '{metric.name}' but {returned}"
            )
        if not is_finite(scores[metric.name]):
            finding = f"metric '{metric.name}' of task '{cell.config.task.name}' is {scores[metric.name]}"
            if metric.primary:
                raise RuntimeError(finding)
            log.warning("%s: the record has no value of it", finding)
            warnings.append(finding)


def _cost(
    run: Run, training: Training, usage: ResourceUsage, params: int, trained: float, wall: float, warnings: list[str]
) -> RunCost:
    """Return the cost of a run from the seconds of this process until it had trained, and until now."""
    cost = {
        "params": params,
        "steps": training.steps,
        "processes": run.processes.count,
        "best_step": training.best_step,
        "steps_to_solve": training.steps_to_solve,
        "train_seconds": training.earlier_seconds + trained,
        "wall_seconds": training.earlier_seconds + wall,
        **training.cost,
    }
    with optional("the measurement of the cost", warnings):
        hours, hardware = run.cell.expected_hours() or (None, "")
        measured = {**usage.memory(), **usage.cpu(), "expected_gpu_hours": hours if hardware == GPU else None}
        cost = {**measured, **({"cpu_seconds": None} if training.earlier_seconds else {}), **cost}
    return RunCost(**cost)


def reuse_result(run: Run, existing: ExistingRecords) -> Record | None:
    """Write and return a record for this cell from a run of the same network on the same data; None without one.

    Vanilla attention in pattern NS, with vanilla in all other layers, is the same network as in pattern CS. With
    ``force``, results are not reused.
    """
    cell = run.cell
    if cell.config.force:
        return None
    for twin in same_network(cell):
        try:
            record = Record.read(record_path(twin.config.results_dir, twin.name))
        except UserError:
            continue
        if record.status is not Status.FINISHED or record.weights_reused_from or not existing.is_current(cell, record):
            continue
        about = about_run(cell, run.command, None)
        names = ("hash", "cell", "config", "changed", "command", "verified", "initial_weights")
        changes = {name: getattr(about, name) for name in names}
        changes["config"] = {**about.config, "trainer": record.config["trainer"]}  # the precision on its device
        weights = weights_path(twin.config.results_dir, twin.name)
        (run.folder / CELL_FILE).unlink(missing_ok=True)  # of an interrupted run, which would count as started afresh
        if weights.exists():
            with replacing(weights_path(cell.config.results_dir, cell.name)) as temporary:
                shutil.copyfile(weights, temporary)
        reused = dataclasses.replace(record, **changes, weights_reused_from=record.hash)
        reused.write(cell.config.results_dir, cell.name)
        discard_progress(run.folder)
        return reused
    return None


def same_network(cell: Cell) -> Iterator[Cell]:
    """Yield the cells of other patterns that build and train the same network as ``cell``."""
    config = cell.config
    if (
        _with_defaults(config.attention) != _with_defaults(config.other_attention[config.pattern])
        or BACKBONES.get(config.backbone.name).cls.all_layers_use_tested_pattern
    ):
        return
    for pattern in TASKS.get(config.task.name).backbones[config.backbone.name]:
        if pattern is not config.pattern:
            attention = _with_defaults(config.other_attention[pattern])
            try:
                twin = Cell.from_config({**config.resolved, "pattern": str(pattern), "attention": attention})
            except UnsupportedError:  # other_attention can be registered as unsound in this pattern
                continue
            yield twin


def _with_defaults(spec: Spec) -> dict[str, object]:
    """Return the name and all options, including defaults."""
    return {"name": spec.name, **ATTENTIONS.get(spec.name).options, **spec.options}
