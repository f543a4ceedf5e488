"""Facts of each record shown on the page, and the link to its file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cab.files.disk import sanitize_text
from cab.records.record import CELL, Record, Status
from cab.reports.leaderboard import with_place

if TYPE_CHECKING:
    import pandas as pd


class Strings:
    """Numbered distinct strings: records share most of their strings, and a page may contain thousands of records."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: object) -> int:
        """Return the number of a string, adding it if needed."""
        return self._numbers.setdefault(sanitize_text(text), len(self._numbers))

    """Return the number of a string, adding it if needed."""

    @property
    def texts(self) -> list[str]:
        """The strings in numerical order."""
        return list(self._numbers)


"""The strings in numerical order."""


def record_facts(results: pd.DataFrame, page_dir: Path) -> dict[str, Any]:
    """Return the data of the page's record section: ``{"strings": [...], "keys": [...], "records": [[...], ...]}``.

    A record is a list of its cell (numbers of strings, in the order of ``keys``), metrics as (name, value) pairs, the
    link to its file relative to ``page_dir``, and facts as (name, text) pairs. Rows of a CSV file form one record per
    cell.
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
    """Round to six digits; None for NaN and infinity, which JSON does not support."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _facts(record: Record) -> dict[str, str]:
    """Return name and text of the facts of a run: configuration, code, environment, data and cost."""
    commit = str(record.revision["commit"])
    facts = {
        "configuration hash": record.hash,
        "status": "" if record.status is Status.FINISHED else f"{record.status}: {record.error}",
        "command": record.command,
        "revision": commit + (" with uncommitted changes" if commit and record.revision.get("dirty") else ""),
        "verified when trained": {True: "yes", False: "no", None: ""}[record.verified],
        "attention code": record.attention_code,
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
    """Return the trivial baselines of the runs: ``{(place, baseline, metric): value}``.

    Baselines depend on the data only, so one finished run per place is used.
    """
    runs = results[(results["status"] == Status.FINISHED) & (results["hash"] != "")]
    return {
        (str(place), sanitize_text(name), sanitize_text(metric)): float(value)
        for place, record in with_place(runs).groupby("place")["record"].first().items()
        for name, metrics in record.baselines.items()
        for metric, value in metrics.items()
        if value is not None
    }
