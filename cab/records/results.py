"""Results: the table that is made of many records, or of a published CSV file."""

from __future__ import annotations

import csv
import gc
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.config.folders import run_defaults
from cab.errors import UserError
from cab.records.record import CELL, Record, Status, record_path

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

DEFAULT_DIR = Path(run_defaults()["results_dir"])
PAPER_DIR = Path(__file__).resolve().parents[2] / "results" / "paper"
"""The published tables, as data with their sources."""
MINI_DIR = PAPER_DIR.with_name("mini")
"""The trained records of the suite."""
PUBLISHED = "published"
"""The preset of a CSV file that names none."""
SYNTHETIC = "synthetic"
"""The data set that a task generates; a task that generates several has names that end in it, ``listops_synthetic``."""

EXAMPLE_COMMAND = "cab run task=lstf dataset=synthetic backbone=informer attention=abc pattern=NC preset=smoke"
"""Leaves a first result within seconds and without any data: what a message about none suggests."""

COLUMNS = (
    *CELL, "task_version", "metric", "value", "unit", "higher_is_better", "primary", "at_length", "status",
    "params", "train_seconds", "peak_memory_bytes", "revision", "verified", "hash", "file", "record",
)  # fmt: skip
"""``record`` is the whole :class:`cab.records.record.Record`; None, as ``hash`` is empty, for a row of a CSV file."""


def is_generated(dataset: str) -> bool:
    """Whether the data set is one that its task generates in place of published files."""
    return dataset.lower().rpartition("_")[2] == SYNTHETIC


def load_results(sources: Iterable[str | Path] | str | Path = DEFAULT_DIR) -> pd.DataFrame:
    """Results as one table, a row a metric, with the columns :data:`COLUMNS`.

    Args:
        sources: folders of records, single records, or CSV files in the layout of ``results/paper/results.csv``
            (``pattern,task,backbone,dataset,metric,higher_is_better,attention,value``).

    Raises:
        ValueError: a source that does not exist. Broken records are warned about and left out.
    """
    return read_results(sources)[0]


def read_results(sources: Iterable[str | Path] | str | Path) -> tuple[pd.DataFrame, list[str]]:
    """The table of :func:`load_results`, and a line for each record of a folder that was left out."""
    import pandas as pd

    gc.disable()  # looking for garbage among thousands of records would take a quarter of the time
    try:
        rows, skipped = _rows([sources] if isinstance(sources, (str, Path)) else sources)
    finally:
        gc.enable()
    return pd.DataFrame(rows, columns=list(COLUMNS)), skipped


def with_reference_results(results: pd.DataFrame) -> pd.DataFrame:
    """``results``, and the records of the suite in :data:`MINI_DIR` for cells that they do not have themselves."""
    import pandas as pd

    field, _ = read_results(MINI_DIR)
    own = pd.MultiIndex.from_frame(results[list(CELL)])
    others = field[~pd.MultiIndex.from_frame(field[list(CELL)]).isin(own)]
    return pd.concat([results, others], ignore_index=True)


def table_of(records: Iterable[Record]) -> pd.DataFrame:
    """The table of :func:`load_results`, of records at hand; ``file`` is the name that each has in its folder."""
    import pandas as pd

    rows = [row for record in records for row in _record_rows(record_path(Path(), record.hash), record)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(sources: Iterable[str | Path]) -> tuple[list[tuple[Any, ...]], list[str]]:
    rows: list[tuple[Any, ...]] = []
    skipped: list[str] = []
    for source in map(Path, sources):
        if not source.exists():
            raise UserError(f"no results at {source}: name a folder of records, a record or a CSV file")
        if source.suffix != ".csv" and not source.is_dir():
            rows += _record_rows(source, Record.read(source))
            continue
        if source.is_dir():
            rows += [row for path, record in whole_records(source, skipped) for row in _record_rows(path, record)]
        published = source / "results.csv" if source.is_dir() else source
        if published.exists():
            rows += _published_rows(published)
    return rows, skipped


def whole_records(folder: Path, skipped: list[str]) -> list[tuple[Path, Record]]:
    """Return the records in ``folder``, sorted by cell; log each broken one and add a line to ``skipped``."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append((path, Record.read(path)))
        except UserError as error:
            skipped.append(f"skipped: {error}")
            log.warning("%s", skipped[-1])
    return sorted(found, key=lambda each: ([each[1].cell[name] for name in CELL], each[1].started))


def _record_rows(path: Path, record: Record) -> list[tuple[Any, ...]]:
    cost = record.cost
    cell = (*(record.cell[name] for name in CELL), record.task_version)
    run = (str(record.status), cost.params, cost.train_seconds, cost.peak_memory_bytes)
    source = (record.revision["commit"], record.verified, record.hash, str(path), record)
    return [
        (
            *(*cell, metric.name, math.nan if metric.value is None else float(metric.value), metric.unit),
            *(metric.higher_is_better, metric.primary, metric.at_length, *run, *source),
        )
        for metric in record.metrics
    ]


def _published_rows(path: Path) -> list[tuple[Any, ...]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        needed = {"pattern", "task", "backbone", "dataset", "metric", "higher_is_better", "attention", "value"}
        lacking = needed - set(reader.fieldnames or ())
        if lacking:
            raise UserError(f"{path} lacks the columns {', '.join(sorted(lacking))}")
        return [_published_row(path, reader.line_num, row) for row in reader]


def _published_row(path: Path, line: int, row: Mapping[str, str | None]) -> tuple[Any, ...]:
    try:
        known: dict[str, Any] = {
            **{name: row.get(name) or "" for name in (*CELL, "metric")},
            "preset": row.get("preset") or PUBLISHED,
            "seed": int(row.get("seed") or 0),
            "value": float(row["value"]) if row["value"] else math.nan,
            "higher_is_better": {"1": True, "0": False}[row["higher_is_better"] or ""],
        }
    except ValueError:
        raise UserError(f"{path}, line {line}: value '{row['value']}' or seed is not a number") from None
    except KeyError:
        raise UserError(f"{path}, line {line}: higher_is_better must be 1 or 0") from None
    known |= {"task_version": 0, "unit": "", "primary": True, "status": str(Status.FINISHED)}
    known |= {"revision": "", "hash": "", "file": str(path)}
    return tuple(known.get(name) for name in COLUMNS)
