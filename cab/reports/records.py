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

if TYPE_CHECKING:
    import pandas as pd


def record_facts(results: pd.DataFrame, page_dir: Path) -> dict[str, Any]:
    """Return the data of the page's record section: ``{"strings": [...], "keys": [...], "records": [[...], ...]}``.

    A record is a list of its cell (numbers of strings, in the order of ``keys``), metrics as (name, value) pairs, the
    link to its file relative to ``page_dir``, and facts as (name, text) pairs. Strings are numbered, because records
    share most of them. Rows of a CSV file form one record per cell.
    """
    numbers: dict[str, int] = {}

    def number(text: object) -> int:
        return numbers.setdefault(sanitize_text(text), len(numbers))

    records = []
    for key, rows in results.groupby(["file", "hash", *CELL], sort=False, dropna=False):
        file, _, *cell = map(str, key)
        record = rows["record"].iloc[0]
        facts = _facts(record) if record else {"source": Path(file).name}
        link = quote(Path(os.path.relpath(file, page_dir)).as_posix())
        metrics = [[number(name), _rounded(value)] for name, value in zip(rows["metric"], rows["value"], strict=True)]
        texts = [[number(name), number(text)] for name, text in facts.items()]
        records.append([list(map(number, cell)), metrics, link, texts])
    return {"keys": list(CELL), "strings": list(numbers), "records": records}


def _rounded(value: float) -> float | None:
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
        "cost": _joined(vars(record.cost)),
        "started": record.started,
        "ended": record.ended,
        "task version": str(record.task_version),
    }
    return {name: text for name, text in facts.items() if text}


def _joined(values: Mapping[str, Any]) -> str:
    texts = {name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items() if text is not None)
