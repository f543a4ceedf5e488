"""The facts behind every number: what the page shows of each record, and where the record lies."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cab.files.sanitize import sanitize_text
from cab.records.record import CELL, Record, Status
from cab.reports.leaderboard import with_place

if TYPE_CHECKING:
    import pandas as pd


class Strings:
    """Distinct strings by number: records share almost all of theirs, and a page may hold thousands of records."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: object) -> int:
        return self._numbers.setdefault(sanitize_text(text), len(self._numbers))

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
    runs: dict[tuple[str, ...], tuple[Record | None, list[tuple[str, float]]]] = {}
    columns = results[["file", "hash", *CELL, "record", "metric", "value"]].astype({"seed": str})
    for *run, record, metric, value in columns.itertuples(index=False, name=None):
        runs.setdefault(tuple(run), (record, []))[1].append((metric, value))
    records = []
    for (file, _, *cell), (record, metrics) in runs.items():
        facts = _facts(record) if record else {"source": Path(file).name}
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


def _facts(record: Record) -> dict[str, str]:
    """Name and text of what one would ask of a run: what it was, with what, on what, how dear."""
    commit = str(record.revision["commit"])
    facts = {
        "configuration hash": record.hash,
        "status": "" if record.status is Status.FINISHED else f"{record.status}: {record.error}",
        "command": record.command,
        "revision": commit + (" with uncommitted changes" if commit and record.revision.get("dirty") else ""),
        "verified": {True: "yes", False: "no", None: ""}[record.verified],
        "code of the attention": record.attention_code,
        "hardware": _joined(record.hardware),
        "versions": _joined(record.versions),
        "data": _joined(record.data),
        "cost": _joined({name: value for name, value in vars(record.cost).items() if value is not None}),
        "started": record.started,
        "ended": record.ended,
        "task version": str(record.task_version),
    }
    return {name: text for name, text in facts.items() if text}


def _joined(mapping: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in mapping.items()
    )


def baselines(results: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Metrics of the trivial answers that runs recorded: ``{(place, baseline, metric): value}``.

    They belong to the data, so one finished run of each place is enough.
    """
    runs = results[(results["status"] == Status.FINISHED) & (results["hash"] != "")]
    return {
        (str(place), sanitize_text(name), sanitize_text(metric)): float(value)
        for place, record in with_place(runs).groupby("place")["record"].first().items()
        for name, metrics in record.baselines.items()
        for metric, value in metrics.items()
        if value is not None
    }
