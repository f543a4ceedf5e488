"""Results as one frame: one row per cell, attention, program, seed and metric. Every fact of a run is made here, once.

The columns state whose result it is, on which data, whether its code is verified, K, or why K is missing. Sources are
never filtered, averaged or labeled together: ``published`` is only what a paper prints.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cab.errors import UserError
from cab.files.disk import listed
from cab.files.numbers import is_finite
from cab.files.text_table import counted, csv_rows, header_of, parse_number
from cab.patterns import Pattern
from cab.records.files import PAPER_DIR, REFERENCE_DIRS
from cab.records.names import coded, installed_code, names_of_programs
from cab.records.record import CELL, Record, Status, records_in
from cab.records.verified import verified_codes, verified_state
from cab.registry.names import is_generated
from cab.registry.registries import TASKS
from cab.registry.tables import run_defaults
from cab.results import cells
from cab.results.cells import ANCHORS, Anchors, SuiteCell, data_hash

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

DEFAULT_DIR = Path(run_defaults()["results_dir"])
"""Folder of results of commands that name none."""
OWN, REFERENCE_SOURCE, PUBLISHED = "own", "reference", "published"
"""Sources: the user's results, the reference results of the suite, and values that are printed in a publication."""
REAL, GENERATED, REHEARSAL = "real", "synthetic", "rehearsal"
"""Kinds of data. The scores of a rehearsal (preset smoke on generated data) say nothing about attentions."""
AVERAGE = "all"
"""Task of the index over all tasks of a pattern."""
METRIC, INDEX, K = "metric", "index", "K"
"""Kinds of rows: a metric, or a printed index. ``index`` and ``K`` are also the scores that a result can have."""
FROZEN = "the anchors are frozen"
"""Reason of a run of an anchor, which changes no score."""
LAST_PART = 0.2
"""Last part of the budget, in which an unfinished run still gains more than :data:`UNFINISHED` points."""
UNFINISHED, DIVERGED = 2.0, 10.0
"""Points of K that an unfinished run gains in the last part, and that a diverged one loses after its best."""
SIZE_OPTIONS = ("num_landmarks", "num_inducing")
"""Options with the number of slots in which an attention stores all keys and values."""
REQUIRED_COLUMNS = ("pattern", "task", "backbone", "dataset", "metric", "attention")
"""Columns of CSV files of metrics that every row must fill."""
FRAME_COLUMNS = (
    *CELL, "label", "task_version", "source", "data", "kind", "metric", "value", "unit", "higher_is_better", "primary",
    "at_length", "status", "score", "K", "reason", "steps", "unfinished", "diverged", "slots", "verified", "program",
    "earlier_program", "params", "train_seconds", "processes", "peak_memory_bytes", "revision", "hardware", "started",
    "data_id", "unpublished_files", "hash", "file", "baselines", "changed_options", "config",
)  # fmt: skip
"""Columns of the frame; the reference page of the leaderboard's columns describes them."""
OBJECT_COLUMNS = ("baselines", "changed_options", "config")
"""Columns of mappings, which no CSV file has."""
EMPTY_ROW: Mapping[str, Any] = dict.fromkeys(FRAME_COLUMNS, "") | {
    "seed": 0, "task_version": 0, "kind": METRIC, "value": math.nan, "higher_is_better": True, "primary": True,
    "at_length": None, "status": str(Status.FINISHED), "K": math.nan, "steps": math.nan, "unfinished": False,
    "diverged": False, "verified": "unknown", "params": None, "train_seconds": None, "processes": None,
    "peak_memory_bytes": None, **dict.fromkeys(OBJECT_COLUMNS),
}  # fmt: skip
"""A row about which nothing is known; version 0 of a task is unknown."""


class Loaded(NamedTuple):
    """The frame, and one message per record that was skipped."""

    frame: pd.DataFrame
    skipped: list[str]


def load_results(
    sources: Iterable[str | Path] | str | Path = DEFAULT_DIR, *, accept_code: bool = False
) -> pd.DataFrame:
    """Load results as one table with one row per run and metric, and the columns :data:`FRAME_COLUMNS`.

    Invalid records are skipped with a warning. Results of different code or settings have different names.

    Args:
        sources: folders of records, single records, or CSV files with the columns of ``results/paper/results.csv``
            (``pattern,task,backbone,dataset,metric,higher_is_better,attention,value``) or
            ``results/paper/compositional_index.csv`` (``pattern,task,attention,index``).
        accept_code: whether results of different code of the project, except the attention, have the same name.

    Raises:
        UserError: a source does not exist.
    """
    return load(sources, accept_code=accept_code).frame


def load(
    sources: Iterable[str | Path] | str | Path, *, accept_code: bool = False, with_reference: bool = False
) -> Loaded:
    """Return the table of :func:`load_results` and the skipped records; with the reference results if requested."""
    import pandas as pd

    paths = list(map(Path, [sources] if isinstance(sources, (str, Path)) else sources))
    records: list[tuple[Path, Record]] = []
    rows: list[tuple[Any, ...]] = []
    skipped: list[str] = []
    gc.disable()  # collection would take a quarter of the time for thousands of records
    try:
        folders = dict.fromkeys(path.resolve() for path in [*(REFERENCE_DIRS if with_reference else ()), *paths])
        named = {path.resolve(): path for path in paths}
        for folder in folders:
            path = named.get(folder, folder)
            if not path.exists() and path.suffix != ".json":
                raise UserError(f"{path} does not exist: name a folder of records, a record or a CSV file")
            if path.is_dir():
                records += records_in(path, skipped, reduced)
            elif path.suffix != ".csv":
                records.append((path, Record.read(path)))
            tables = [path / name for name in ("results.csv", "compositional_index.csv")] if path.is_dir() else [path]
            for table in tables:
                if table.suffix == ".csv" and table.exists():
                    rows += _printed_rows(table)
        rows = [*rows_of(records, accept_code=accept_code), *rows]
        return Loaded(pd.DataFrame(rows, columns=list(FRAME_COLUMNS)), skipped)
    finally:
        gc.enable()


# --- records ----------------------------------------------------------------------------------------------------------


def rows_of(records: Collection[tuple[Path, Record]], *, accept_code: bool = False) -> list[tuple[Any, ...]]:
    """Return the rows of records, in the order of :data:`FRAME_COLUMNS`."""
    codes = verified_codes()
    names = names_of_programs([record for _, record in records], accept_code=accept_code)
    reference = {path: path.resolve() in REFERENCE_DIRS for path in {path.parent for path, _ in records}}
    rows = []
    for (path, record), name in zip(records, names, strict=True):
        cell, cost = record.cell, record.cost
        of_suite = cells.cell_of(record)
        anchors = cells.read_anchors().get(of_suite.key) if of_suite else None
        if of_suite and name in ANCHORS and not record.is_bundled and record.attention_code != installed_code(name):
            name = coded(name, record)  # other code of this name is no anchor
        data = kind_of_data(cell["dataset"], cell["preset"])
        data_id = data_hash(record) if record.status is Status.FINISHED else ""
        reason = _why_no_k(record, of_suite, anchors, name, data_id) if of_suite else ""
        facts = _facts_of_training(record, anchors) if anchors and not reason else (math.nan, False, False, "")
        steps, unfinished, diverged, slots = facts
        about = {
            **cell, "attention": name, "label": cell["attention"], "task_version": record.task_version, "data": data,
            "kind": METRIC, "source": REFERENCE_SOURCE if reference[path.parent] else OWN,
            "status": str(record.status), "score": K if of_suite else score_of(cell["task"], data), "reason": reason,
            "steps": steps, "unfinished": unfinished,
            "diverged": diverged or (of_suite is not None and record.status is Status.DIVERGED), "slots": slots,
            "verified": verified_state(record, codes), "program": record.attention_code,
            "earlier_program": record.earlier_code, "params": cost.params, "train_seconds": cost.train_seconds,
            "processes": cost.processes, "peak_memory_bytes": cost.peak_memory_bytes,
            "revision": record.revision["commit"], "hardware": _machine(record.hardware), "started": record.started,
            "data_id": data_id, "unpublished_files": " ".join(record.unpublished_files), "hash": record.hash,
            "file": str(path), "baselines": record.baselines, "changed_options": record.changed,
            "config": record.config,
        }  # fmt: skip
        for metric in record.metrics:
            value = float(metric.value) if is_finite(metric.value) else math.nan
            is_judged = of_suite is not None and anchors is not None and metric.name == of_suite.metric and not reason
            about |= vars(metric) | {"metric": metric.name, "value": value}
            about["K"] = of_suite.retained(anchors, value) if of_suite and anchors and is_judged else math.nan
            rows.append(tuple([about[column] for column in FRAME_COLUMNS]))
    return rows


@functools.cache
def kind_of_data(dataset: str, preset: str) -> str:
    """Return whether data are real, generated, or generated for a rehearsal: in preset ``smoke``."""
    return REAL if not is_generated(dataset) else REHEARSAL if preset == "smoke" else GENERATED


@functools.cache
def score_of(task: str, data: str) -> str:
    """Return the score that a result outside the cells of the suite has: ``index``, or none."""
    return INDEX if data != GENERATED and (task not in TASKS or TASKS.get(task).in_index) else ""


def _why_no_k(record: Record, cell: SuiteCell, anchors: Anchors | None, name: str, data_id: str) -> str:
    """Return why a run of a cell of the suite has no K; empty if it has."""
    seed = record.cell["seed"]
    if anchors is None:
        return "the cell has no anchors"
    if changed := cell.changed_settings(record):
        return f"seed {seed} has other settings than the suite's: {listed(changed)}"
    if record.status is not Status.FINISHED:
        return f"seed {seed} is {record.status}"
    value = next((metric.value for metric in record.metrics if metric.name == cell.metric), None)
    if value is None or (cell.scale == "log" and value <= 0) or not is_finite(cell.retained(anchors, value)):
        return f"seed {seed} has no valid {cell.metric}"
    if anchors.data != data_id:
        return f"seed {seed} has data or a version of the task other than the anchors'"
    return FROZEN if name in ANCHORS else ""


def reduced(record: Record) -> Record:
    """Return a record with the validations that :func:`_facts_of_training` needs: the lowest ones and the last."""
    budget = record.config["trainer"].get("max_steps") or 0
    validated: Any = [entry for entry in record.history if entry.get("validation") is not None]
    early = [entry for entry in validated if entry["step"] <= (1 - LAST_PART) * budget]
    lowest = [min(part, key=lambda entry: entry["validation"]) for part in (early, validated) if part]
    return dataclasses.replace(record, history=[*lowest, *validated[-1:]])


def _facts_of_training(record: Record, anchors: Anchors) -> tuple[float, bool, bool, str]:
    """Return steps to solve the cell (NaN if it was not), and whether the run is unfinished, diverged, short of slots.

    A run that did not solve its cell is unfinished if the best K of its validation loss increases by more than
    :data:`UNFINISHED` points in the last fifth of its steps, and diverged if it ends :data:`DIVERGED` below its best.
    """
    facts = record.config["task"].get("pairs", 0)
    slots = [record.config["attention"].get(name) for name in SIZE_OPTIONS]
    few = next((f"{counted(count, 'slot')} for {facts} facts" for count in slots if count and count < facts), "")
    if record.cost.steps_to_solve is not None:
        return float(record.cost.steps_to_solve), False, False, few
    scale, budget = anchors.validation_scale, record.config["trainer"].get("max_steps")
    best = early = last = -math.inf
    for entry in record.history if scale else ():
        if (loss := entry.get("validation")) is not None and scale:
            last = 100 * (loss - scale[1]) / (scale[0] - scale[1])
            best = max(best, last)
            if budget and (entry["step"] or 0) <= (1 - LAST_PART) * budget:
                early = best
    diverged = best - last > DIVERGED
    return math.nan, not diverged and early > -math.inf and best - early > UNFINISHED, diverged, few


def _machine(hardware: Mapping[str, Any]) -> str:
    """Return the device of a run and its threads."""
    device, threads = hardware.get("device"), hardware.get("threads")
    name = hardware.get("cpu" if device == "cpu" else "gpu") or device or "unknown hardware"
    return f"{name}, {counted(int(threads), 'thread')}" if threads else str(name)


# --- CSV files --------------------------------------------------------------------------------------------------------


def _printed_rows(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a CSV file of metrics or of indices; an empty value was not given."""
    header = header_of(path)
    is_index = INDEX in header and "value" not in header
    if not is_index and "preset" not in header and path.resolve().parent != PAPER_DIR:
        text = "%s has no column 'preset', so its values count as published; for your own, add it, with the value paper"
        log.warning(text, path)
    required = ("pattern", "task", "attention") if is_index else REQUIRED_COLUMNS
    given = ("index",) if is_index else ("higher_is_better", "value")
    lines: dict[tuple[Any, ...], int] = {}
    rows = []
    for line, row in csv_rows(path, (*required, *given)):
        key = tuple([row.get(name, "") for name in (*CELL, "metric")])
        if lines.setdefault(key, line) != line:
            raise UserError(f"{path}, line {line}: the result of line {lines[key]} again; remove one of them")
        if missing := [name for name in required if not row[name].strip()]:
            raise UserError(f"{path}, line {line}: no {missing[0]}")
        facts = _printed(row, f"{path}, line {line}", is_index=is_index) | {"file": str(path)}
        rows.append(tuple([facts[column] for column in FRAME_COLUMNS]))
    return rows


def _printed(row: Mapping[str, str], place: str, *, is_index: bool) -> dict[str, Any]:
    """Return the facts of a row of a CSV file."""
    if row["pattern"] not in list(Pattern):
        raise UserError(f"{place}: the pattern must be one of {', '.join(Pattern)}, got '{row['pattern']:.40}'")
    seed, text = row.get("seed") or "0", row[INDEX if is_index else "value"]
    value = parse_number(text) if text else math.nan
    better = {"1": True, "0": False}.get("1" if is_index else row["higher_is_better"])
    if value is None or better is None or not (seed.isdecimal() and len(seed) < 10):
        got = text if value is None else seed if better is not None else row["higher_is_better"]
        raise UserError(
            f"{place}: value must be a finite number or empty, seed a natural number, and higher_is_better 1 or 0, got "
            f"'{got:.40}'"
        )
    preset = row.get("preset") or PUBLISHED
    if is_index and preset != PUBLISHED:
        raise UserError(f"{place}: an index of preset {preset:.40}: only published ones are read; give the metrics")
    if not is_index and row["task"].partition(" ")[0] == AVERAGE:
        raise UserError(f"{place}: a task cannot be called '{AVERAGE}', which is the average over tasks; rename it")
    data = kind_of_data(row.get("dataset", ""), preset)
    facts = {"preset": preset, "seed": int(seed), "label": row["attention"], "value": value, "higher_is_better": better}
    facts |= {"source": PUBLISHED if preset == PUBLISHED else OWN, "data": data, "kind": INDEX if is_index else METRIC}
    facts |= {"metric": INDEX, "score": INDEX} if is_index else {"score": score_of(row["task"], data)}
    return {**EMPTY_ROW, **{name: row.get(name, "") for name in (*CELL, "metric")}, **facts}


# --- parts of the frame -----------------------------------------------------------------------------------------------


def runs_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run."""
    return frame[frame["hash"] != ""].drop_duplicates("file")


def metrics_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a metric."""
    return frame[frame["kind"] == METRIC]
