"""Parts (c) and (f): every task and backbone trained for a few steps, a resumed run, workers that share a GPU, and a
part of the suite."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cab.errors import UserError, first_line
from cab.records.record import Record, Status
from cab.runner.faults import Preempted
from cab.visit.visit import Visit

RESUMED = ("task=lstf", "dataset=synthetic", "backbone=informer", "pattern=CS", "attention=vanilla", "preset=smoke")


def smoke(visit: Visit) -> None:
    """Every cell of generated data with one attention; the first process also cuts a run and lets it go on, the last
    one also runs two cells at once."""
    wanted = ["preset=smoke", "dataset=synthetic", "attention=abc"]
    cells = cells_of([*wanted, "task=lstf", "pattern=CS"] if visit.short else wanted)
    if visit.share == 0:
        resume(visit)
    for cell in visit.own(cells):
        status, seconds, detail, _ = run_one([*cell, f"device={visit.device}"], visit.folder / "smoke")
        named = names(cell)
        row = {"task": named["task"], "backbone": named["backbone"], "pattern": named["pattern"]}
        visit.write("training", what="smoke", **row, status=status, seconds=seconds, detail=detail)
    if visit.share == visit.shares - 1:
        share_a_gpu(visit)


def cells_of(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each cell that they stand for."""
    from cab.runner.sweep import expand

    return expand(overrides)[0]


def names(cell: Sequence[str]) -> dict[str, str]:
    return dict(override.split("=", 1) for override in cell)


def run_one(cell: Sequence[str], results: Path) -> tuple[str, float, str, Record | None]:
    """Status, seconds, what went wrong, and the record."""
    from cab.runner.launch import run_overrides

    begin = time.perf_counter()
    record = None
    try:
        outcome = run_overrides([*cell, f"results_dir={results}"], is_sweep=False).outcomes[0]
        record = outcome.record
        status, detail = (str(record.status), record.error) if record else (outcome.kind, "")
    except UserError as error:
        status, detail = "refused", first_line(error)
    except Exception as error:
        status, detail = "failed", f"{type(error).__name__}: {first_line(error)}"
    return status, time.perf_counter() - begin, detail, record


def resume(visit: Visit) -> None:
    """The scores of a run that was stopped after a checkpoint and went on, beside those of one that was not."""
    cell = [*RESUMED, f"device={visit.device}", "trainer.max_steps=20", "trainer.checkpoint_every=1"]
    begin = time.perf_counter()
    whole = run_one(cell, visit.folder / "whole")[3]
    is_cut = stopped_after_a_checkpoint(cell, visit.folder / "cut")
    gone_on = run_one(cell, visit.folder / "cut")[3]
    facts: dict[str, Any] = {"what": "resume", "task": "lstf", "backbone": "informer", "pattern": "CS"}
    if whole is None or gone_on is None or {whole.status, gone_on.status} != {Status.FINISHED}:
        status, detail = "failed", "one of the two runs has no score"
    else:
        worst = max(abs((a.value or 0) - (b.value or 0)) for a, b in zip(whole.metrics, gone_on.metrics, strict=True))
        status = "finished" if worst == 0 else "differs"
        detail = f"largest difference of a score {worst:.3g}" + (
            "" if is_cut else "; the run was over before it was cut"
        )
    visit.write("training", **facts, status=status, seconds=time.perf_counter() - begin, detail=detail)


def share_a_gpu(visit: Visit) -> None:
    """Two cells at once in a pool of workers, each with half of the GPU's memory."""
    from cab.runner.launch import run_overrides

    cells = ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NC", "attention=vanilla,none"]
    pool = ["cluster=local", "cluster.workers_per_gpu=2", f"device={visit.device}", "preset=smoke"]
    begin, status, detail = time.perf_counter(), "finished", ""
    try:
        outcomes = run_overrides([*cells, *pool, f"results_dir={visit.folder / 'shared'}"], is_sweep=True).outcomes
        found = [outcome.record for outcome in outcomes if outcome.record]
        if [record.status for record in found] != [Status.FINISHED] * 2:
            status, detail = "failed", "; ".join(record.error for record in found if record.error) or "no record"
        elif visit.device == "cuda" and {record.hardware.get("gpu_shared_by") for record in found} != {2}:
            status, detail = "failed", "the records do not say that the GPU was shared"
    except Exception as error:
        status, detail = "failed", f"{type(error).__name__}: {first_line(error)}"
    facts = {"what": "shared", "task": "lstf", "backbone": "informer", "pattern": "NC", "status": status}
    visit.write("training", **facts, seconds=time.perf_counter() - begin, detail=detail)


def stopped_after_a_checkpoint(cell: Sequence[str], results: Path) -> bool:
    """Run the cell and ask it to stop, as a cluster does, as soon as it has a checkpoint; whether it did."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(0.001):
            if any(results.glob("*/step-*.ckpt")):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=ask)
    watcher.start()
    try:
        run_one(cell, results)
    except Preempted:
        return True
    finally:
        is_over.set()
        watcher.join()
    return False


def suite(visit: Visit) -> None:
    """Cells of preset mini, in the order of what is asked first; as many as there is time for."""
    wanted = ["dataset=synthetic", "task=lstf", "seed=1", "preset=smoke" if visit.short else "preset=mini"]
    attentions = ["vanilla"] if visit.short else ["vanilla", "abc", "linear", "local", "s4d"]
    patterns = ["CS"] if visit.short else ["CS", "NS"]
    cells = cells_of([*wanted, f"attention={','.join(attentions)}", f"pattern={','.join(patterns)}"])
    for cell in visit.own(cells):
        status, seconds, detail, record = run_one(
            [*cell, f"device={visit.device}", "profile=true"], visit.folder / "mini"
        )
        named = names(cell)
        row = {name: named[name] for name in ("task", "backbone", "pattern", "attention")}
        score = next((metric.value for metric in record.metrics if metric.primary), None) if record else None
        harness = share_of_the_loop(visit.folder / "mini" / record.hash) if record else None
        visit.write("suite", **row, status=status, seconds=seconds, score=score, harness=harness, detail=detail)


def share_of_the_loop(folder: Path) -> float | None:
    """Of a step the share that is neither forward nor backward nor the optimiser; None where nobody looked."""
    path = folder / "profile.csv"
    if not path.exists():
        return None
    with path.open(newline="") as file:
        return sum(float(row["share"]) for row in csv.DictReader(file) if row["name"] in ("batch", "other"))
