"""Runs of the suite as one frame: the value and K of each, what its history shows, or why it has no score.

K is 100 (s - N) / (V - N), with the metric s on the cell's scale and the means V and N of the frozen anchors
``vanilla`` and ``none``.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.files.disk import listed
from cab.records.record import Record, Status
from cab.records.results import with_program_names
from cab.records.verified import verdict, verified_codes
from cab.results import cells
from cab.results.cells import ANCHORS, Anchors, Key, SuiteCell, data_hash, record_key, records_of
from cab.results.statistics import MARGIN

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("cab")

RUNS = [
    *("task", "backbone", "pattern", "attention", "source", "seed", "value", "K", "steps", "unfinished", "diverged"),
    *("slots", "verified", "reason", "record"),
]
CELL = RUNS[:3]
REFERENCE, OWN = "reference", "own"
FROZEN = "the anchors are frozen"
"""Reason of a run of an anchor, which changes no score."""
LAST_PART = 0.2
"""Last part of the budget, in which an unfinished run still gains more than :data:`MARGIN` points."""
DIVERGED = 10.0
"""Points that a diverged run loses after its best validation."""
SLOTS = ("num_landmarks", "num_inducing")
"""Options with the number of slots in which an attention stores all keys and values."""


def suite_runs(reference: Iterable[Record], own: Iterable[Record] = ()) -> pd.DataFrame:
    """Return one row per run of a cell of the suite, and the anchors of each cell with a run on their data.

    Returns:
        Columns :data:`RUNS`. ``source`` is ``reference`` or ``own``; the anchors are among the reference. ``value`` is
        the cell's metric, ``steps`` the number of steps to solve the cell, NaN if it was not solved. ``reason`` is why
        a run has no score, and empty for others; ``record`` is None for an anchor.

    Raises:
        UserError: two runs of one attention and seed have different values.
    """
    import pandas as pd

    anchors, codes = cells.read_anchors(), verified_codes()
    runs: dict[Key, list[dict[str, Any]]] = {cell.key: [] for cell in cells.suite_cells()}
    of_key = {cell.key: cell for cell in cells.suite_cells()}
    for source, records in ((REFERENCE, reference), (OWN, own)):
        for record in records:
            cell = of_key.get(record_key(record))
            if cell and cell.includes(record):
                row = _row(cell, anchors.get(cell.key), record, codes)
                runs[cell.key].append(row | {"source": source, "record": record})
    rows: list[dict[str, Any]] = []
    for key, found in runs.items():
        if any(row["reason"] in ("", FROZEN) for row in found):
            rows += _anchor_rows(of_key[key], anchors[key])
        rows += [dict(zip(CELL, key, strict=True)) | row for row in _without_copies(of_key[key], found)]
    return pd.DataFrame(rows, columns=RUNS)


def read_runs(folders: Sequence[Path]) -> pd.DataFrame:
    """Return :func:`suite_runs` of folders of records; damaged or modified records are skipped with a warning."""
    return suite_runs(with_program_names(records_of(folders)))


def _row(
    cell: SuiteCell, anchors: Anchors | None, record: Record, codes: Collection[tuple[str, str]]
) -> dict[str, Any]:
    attention, seed = str(record.cell["attention"]), int(record.cell["seed"])
    row = {"attention": attention, "seed": seed, "value": math.nan, "K": math.nan, "steps": math.nan}
    row |= {"unfinished": False, "diverged": False, "slots": "", "verified": verdict(record, codes), "reason": ""}
    if anchors is None:
        return row | {"reason": "the cell has no anchors"}
    if changed := cell.changed_settings(record):
        return row | {"reason": f"seed {seed} has other settings than the suite's: {listed(changed)}"}
    if record.status is not Status.FINISHED:
        return row | {"reason": f"seed {seed} is {record.status}", "diverged": record.status is Status.DIVERGED}
    if anchors.data != data_hash(record):
        return row | {"reason": f"seed {seed} has data or a version of the task other than the anchors'"}
    if attention in ANCHORS:
        return row | {"reason": FROZEN}
    diverged, value, steps = is_diverged(record, anchors), cell.value(record), record.cost.steps_to_solve
    return row | {
        "value": value,
        "K": cell.retained(anchors, value),
        "steps": math.nan if steps is None else steps,
        "unfinished": is_unfinished(record, anchors) and not diverged,
        "diverged": diverged,
        "slots": _too_few_slots(record),
    }


def _anchor_rows(cell: SuiteCell, anchors: Anchors) -> Iterator[dict[str, Any]]:
    facts = {"source": REFERENCE, "unfinished": False, "diverged": False, "slots": "", "verified": "yes", "reason": ""}
    for name in ANCHORS:
        steps = [*anchors.steps.get(name, []), *[math.nan] * len(anchors.test[name])]
        for seed, value in enumerate(anchors.test[name], start=1):
            numbers = {"value": value, "K": cell.retained(anchors, value), "steps": steps[seed - 1]}
            yield {**dict(zip(CELL, cell.key, strict=True)), **facts, "attention": name, "seed": seed, **numbers}


def _without_copies(cell: SuiteCell, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    scored: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in rows:
        other = row if row["reason"] else scored.setdefault((row["source"], row["attention"], row["seed"]), row)
        if other is row:
            yield row
        elif other["value"] != row["value"]:
            hashes = f"{other['record'].hash} and {row['record'].hash}"
            raise UserError(
                f"two results of {row['attention']} with seed {row['seed']} in {cell} ({hashes}); "
                "remove one, or move it to another folder"
            )


def by_cell(runs: pd.DataFrame) -> Iterator[tuple[SuiteCell, pd.DataFrame]]:
    """Yield every cell of the suite with its runs, or rows of another frame with the columns :data:`CELL`."""
    parts: dict[Any, pd.DataFrame] = dict(iter(runs.groupby(CELL)))
    yield from ((cell, parts.get(cell.key, runs[:0])) for cell in cells.suite_cells())


def points_of(runs: pd.DataFrame) -> dict[str, list[float]]:
    """Return K of the runs with a score of one cell and source, by attention."""
    scored = runs[runs["reason"] == ""]
    return {str(name): own["K"].to_list() for name, own in scored.groupby("attention", sort=False)}


def unscored(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the last row without a score of each cell, source and attention, except for seeds with another score."""
    seed = [*CELL, "source", "attention", "seed"]
    is_scored = (runs["reason"] == "").groupby([runs[name] for name in seed]).transform("any")
    return runs[~is_scored & ~runs["attention"].isin(ANCHORS)].drop_duplicates(seed[:-1], keep="last")


def warn_unscored(runs: pd.DataFrame) -> None:
    """Name the attentions with a seed without a score, and the reasons, per cell."""
    for cell, rows in by_cell(unscored(runs).sort_values("attention")):
        if reasons := [f"{row.attention} ({row.reason})" for row in rows.itertuples()]:
            log.warning("not scored in %s: %s", cell, listed(reasons, shown=5))


def baselines_of(runs: pd.DataFrame, metric: str) -> dict[str, float]:
    """Return the values of the trivial baselines in the runs of one cell."""
    records = runs.loc[runs["reason"].isin(["", FROZEN]), "record"].dropna()
    values = {name: metrics.get(metric) for record in records for name, metrics in record.baselines.items()}
    return {name: value for name, value in values.items() if value is not None}


# --- what the history of a run shows ---


def validation_gains(record: Record, anchors: Anchors) -> list[tuple[int, float]]:
    """Return the steps of the validations, each with K of the validation loss; empty without anchors of the loss."""
    if not set(ANCHORS) <= anchors.validation.keys():
        return []
    softmax, without = (statistics.fmean(anchors.validation[name]) for name in ANCHORS)
    losses = [(int(entry["step"] or 0), entry.get("validation")) for entry in record.history]
    return [(step, 100 * (loss - without) / (softmax - without)) for step, loss in losses if loss is not None]


def is_unfinished(record: Record, anchors: Anchors) -> bool:
    """Return whether a run was still learning when its budget ended.

    It did not reach the threshold of its cell, and the best K of its validation loss increases by more than
    :data:`MARGIN` points in the last fifth of its steps.
    """
    gains, budget = validation_gains(record, anchors), record.config["trainer"].get("max_steps")
    early = [k for step, k in gains if budget and step <= (1 - LAST_PART) * budget]
    return bool(early) and record.cost.steps_to_solve is None and max(k for _, k in gains) - max(early) > MARGIN


def is_diverged(record: Record, anchors: Anchors) -> bool:
    """Return whether K of a run's validation loss ends more than :data:`DIVERGED` points below its best."""
    gains = [k for _, k in validation_gains(record, anchors)]
    return bool(gains) and record.cost.steps_to_solve is None and max(gains) - gains[-1] > DIVERGED


def _too_few_slots(record: Record) -> str:
    """Return a remark if an attention stores the facts of ``recall`` in fewer slots than there are facts."""
    facts = record.config["task"].get("pairs", 0)
    slots = [record.config["attention"].get(name) for name in SLOTS]
    return next((f"{count} slots for {facts} facts" for count in slots if count and count < facts), "")
