"""The facts behind every number: what the page shows of each record, and where the record lies."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cab.errors import UserError
from cab.record import CELL, Record
from cab.reports.leaderboard import with_cell
from cab.reports.suites import printable

if TYPE_CHECKING:
    import pandas as pd


class Strings:
    """Distinct strings by number: records share almost all of theirs, and a page may hold thousands of records."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: object) -> int:
        return self._numbers.setdefault(printable(text), len(self._numbers))

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)


def record_facts(results: pd.DataFrame, page_dir: Path) -> dict[str, Any]:
    """What the page's record section reads: ``{"strings": [...], "keys": [...], "records": [[...], ...]}``.

    A record is a list of: its cell (numbers of strings, in the order ``keys``), metrics as (name, value) pairs, the
    link to its file from ``page_dir``, and further facts as (name, text) pairs. Rows of a CSV file become one record
    a cell.
    """
    strings = Strings()
    runs: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    columns = results[["file", "hash", *CELL, "metric", "value"]].astype({"seed": str})
    for *run, metric, value in columns.itertuples(index=False, name=None):
        runs.setdefault(tuple(run), []).append((metric, value))
    records = []
    for (file, digest, *cell), metrics in runs.items():
        facts = _facts(Path(file)) if digest else {"source": Path(file).name}
        records.append(
            [
                [strings.number(part) for part in cell],
                [[strings.number(name), _json_number(value)] for name, value in metrics],
                quote(Path(os.path.relpath(file, page_dir)).as_posix()),
                [[strings.number(name), strings.number(text)] for name, text in facts.items()],
            ]
        )
    return {"keys": list(CELL), "strings": strings.texts, "records": records}


def _json_number(value: float) -> float | None:
    """Six digits; JSON has no NaN and no infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _facts(path: Path) -> dict[str, str]:
    """Name and text of what one would ask of a run: what it was, with what, on what, how dear."""
    try:
        record = Record.read(path)
    except UserError:  # gone or rewritten since it was loaded
        return {}
    dirty = " with uncommitted changes" if record.revision.get("dirty") else ""
    cost = {name: value for name, value in vars(record.cost).items() if value is not None}
    facts = {
        "configuration hash": record.hash,
        "command": record.command,
        "revision": f"{record.revision['commit']}{dirty}" if record.revision["commit"] else None,
        "hardware": _listed(record.hardware),
        "versions": _listed(record.versions),
        "data": _listed(record.data),
        "cost": _listed(cost),
        "started": record.started,
        "task version": record.task_version,
    }
    return {name: str(text) for name, text in facts.items() if text not in (None, "")}


def _listed(mapping: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in mapping.items()
    )


def baselines(results: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Metrics of the trivial answers that runs recorded: ``{(cell, baseline, metric): value}``.

    They belong to the data, so one record of each cell is enough.
    """
    found = {}
    for cell, rows in with_cell(results[results["hash"] != ""]).groupby("cell"):
        try:
            recorded = Record.read(Path(rows["file"].iloc[0])).baselines
        except UserError:
            continue
        for name, metrics in recorded.items():
            for metric, value in metrics.items():
                if value is not None:
                    found[(str(cell), printable(name), printable(metric))] = float(value)
    return found
