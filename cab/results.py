"""Results: the table that is made of many records, or of a published CSV file."""

from __future__ import annotations

import csv
import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.record import CELL, Record
from cab.runner.trainer_config import MACHINE_KEYS

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

DEFAULT_DIR = Path("results/local")
PUBLISHED = Path(__file__).resolve().parent.parent / "results" / "paper"
"""The published tables, as data with their sources."""

EXAMPLE_COMMAND = "cab run task=lstf dataset=synthetic backbone=informer attention=abc pattern=NC preset=smoke"
"""Leaves a first result within seconds and without any data: what a message about none suggests."""

COLUMNS = (
    *CELL,
    "task_version",
    "metric",
    "value",
    "unit",
    "higher_is_better",
    "primary",
    "params",
    "train_seconds",
    "peak_memory_bytes",
    "revision",
    "hash",
    "file",
    "settings",
)
"""``settings``: JSON of task, backbone and trainer as the record has them; empty for what is no record."""


def load_results(sources: Iterable[str | Path] | str | Path = DEFAULT_DIR) -> pd.DataFrame:
    """Results as one table, a row a metric, with the columns :data:`COLUMNS`.

    Args:
        sources: folders of records, single records, or CSV files in the layout of ``results/paper/results.csv``
            (``pattern,task,backbone,dataset,metric,higher_is_better,attention,value``).

    Raises:
        ValueError: a source that does not exist. Broken records are warned about and left out.
    """
    import pandas as pd

    if isinstance(sources, (str, Path)):
        sources = [sources]
    rows: list[dict[str, Any]] = []
    for source in map(Path, sources):
        if not source.exists():
            raise UserError(f"no results at {source}: name a folder of records, a record or a CSV file")
        if source.is_dir():
            for path in sorted(source.glob("*.json")):
                rows += _rows_or_warning(path)
            if (source / "results.csv").exists():
                rows += _published_rows(source / "results.csv")
        elif source.suffix == ".csv":
            rows += _published_rows(source)
        else:
            rows += _record_rows(source)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows_or_warning(path: Path) -> list[dict[str, Any]]:
    try:
        return _record_rows(path)
    except UserError as error:
        log.warning("skipped: %s", error)
        return []


def _record_rows(path: Path) -> list[dict[str, Any]]:
    record = Record.read(path)
    shared = {
        **{name: record.cell[name] for name in CELL},
        "task_version": record.task_version,
        "params": record.cost.params,
        "train_seconds": record.cost.train_seconds,
        "peak_memory_bytes": record.cost.peak_memory_bytes,
        "revision": record.revision["commit"],
        "hash": record.hash,
        "file": str(path),
        "settings": _settings(record.config),
    }
    return [
        shared
        | {
            "metric": metric.name,
            "value": math.nan if metric.value is None else float(metric.value),
            "unit": metric.unit,
            "higher_is_better": metric.higher_is_better,
            "primary": metric.primary,
        }
        for metric in record.metrics
    ]


def _settings(config: Mapping[str, Any]) -> str:
    groups: dict[str, Any] = {name: config[name] for name in ("task", "backbone", "trainer") if name in config}
    if "trainer" in groups:
        groups["trainer"] = {name: value for name, value in groups["trainer"].items() if name not in MACHINE_KEYS}
    return sys.intern(json.dumps(groups, sort_keys=True))


def _published_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        needed = {"pattern", "task", "backbone", "dataset", "metric", "higher_is_better", "attention", "value"}
        lacking = needed - set(reader.fieldnames or ())
        if lacking:
            raise UserError(f"{path} lacks the columns {', '.join(sorted(lacking))}")
        return [_published_row(path, reader.line_num, row) for row in reader]


def _published_row(path: Path, line: int, row: Mapping[str, str | None]) -> dict[str, Any]:
    try:
        return {
            **{name: row.get(name) or "" for name in CELL},
            "preset": row.get("preset") or "published",
            "seed": int(row.get("seed") or 0),
            "task_version": 0,
            "metric": row["metric"],
            "value": float(row["value"]) if row["value"] else math.nan,
            "unit": "",
            "higher_is_better": {"1": True, "0": False}[row["higher_is_better"] or ""],
            "primary": True,
            "hash": "",
            "revision": "",
            "file": str(path),
            "settings": "",
        }
    except ValueError:
        raise UserError(f"{path}, line {line}: value '{row['value']}' or seed is not a number") from None
    except KeyError:
        raise UserError(f"{path}, line {line}: higher_is_better must be 1 or 0") from None
