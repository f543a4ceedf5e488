"""The leaderboard as a single, self-contained HTML file: tables, figures and the facts of every record.

All text from results is escaped by Jinja or matplotlib, and a content security policy blocks foreign scripts.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from cab.files.disk import replacing, sanitize_text
from cab.records.record import CELL, Record, Status
from cab.records.verified import LEGEND
from cab.registry.registries import ATTENTIONS
from cab.reports import figures
from cab.reports.board_tables import board_table, cell_blocks
from cab.reports.card import summary
from cab.reports.leaderboard import printable_results
from cab.reports.sections import Section
from cab.reports.sentence import main_sentence
from cab.reports.suite_board import SuiteBoard, board_facts, state_points
from cab.scoring.normalization import NORMALIZATIONS
from cab.suite.cells import metric_meanings

if TYPE_CHECKING:
    from cab.reports.leaderboard import Board

MIN_POINTS = 3
"""Minimum number of attentions in a figure."""


def write_page(
    boards: Sequence[Board],
    out: Path,
    *,
    normalization: str,
    sections: Sequence[Section],
    suite: SuiteBoard | None,
    unscored: pd.DataFrame,
    skipped: Sequence[str],
) -> Path:
    """Write ``index.html`` into ``out``.

    Args:
        boards: scored results.
        out: output folder.
        normalization: as in :func:`cab.scoring.index.score_table`; stated on the page.
        sections: sections of the boards, of tasks outside the index and of costs.
        suite: K of the attentions in the suite.
        unscored: results of tasks outside the index, as returned by :func:`cab.load_results`.
        skipped: messages about skipped files.
    """
    results = pd.concat(
        [*(board.results for board in boards), *([printable_results(unscored)] if len(unscored) else [])]
    )
    script = _source("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(_source("page.html")).render(
        title="Attention leaderboard",
        facts=_counts(results),
        suite=None if suite is None else _suite(suite),
        sections=sections,
        records=record_facts(results, out),
        cards=[summary(name) for name in sorted(set(results["attention"]).intersection(ATTENTIONS.names()))],
        normalization=f"{normalization}: {NORMALIZATIONS[normalization]}",
        unverified=LEGEND,
        skipped=[sanitize_text(line) for line in skipped],
        css=Markup(_source("page.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / "index.html"
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")
    return path


def _source(name: str) -> str:
    return resources.files("cab.reports").joinpath(name).read_text(encoding="utf-8")


def _suite(suite: SuiteBoard) -> dict[str, Any]:
    """Return the variable ``suite`` of the template."""
    tasks = {results.cell.task for results in suite.results if results.runs}
    meanings = metric_meanings().items()
    return {
        "finding": main_sentence(suite),
        "facts": list(board_facts(suite)),
        "patterns": suite.patterns,
        "complexities": sorted({row.complexity for row in suite.rows} - {""}),
        "table": board_table(suite),
        "images": list(_recall_images(suite)),
        "cells": list(cell_blocks(suite)),
        "metrics": [(f"{task} {name}", meaning) for (task, name), meaning in meanings if task in tasks],
    }


def _recall_images(board: SuiteBoard) -> Iterator[Markup]:
    """Yield the figure of recall against the size of the decode state."""
    points = state_points(board)
    if len(points) >= MIN_POINTS:
        own = {sanitize_text(row.attention) for row in board.rows if row.own}
        title, label = "Recall of 64 facts, causal", "numbers of the decode state of a layer in the same networks"
        single = {name for name, (_, _, is_single) in points.items() if is_single}
        places = {name: (state, k) for name, (state, k, _) in points.items()}
        figure = figures.frontier_figure(places, title=title, label=label, own=own, single=single)
        yield figures.image(figure, f"{title}, against {label}")


def _counts(results: pd.DataFrame) -> list[str]:
    key = ["file", "task", "dataset", "config_variant", "backbone", "pattern", "attention", "seed"]
    counts = {name: results[name].nunique() for name in ("attention", "task")}
    runs = len(results.drop_duplicates(key))
    return [f"{runs:,} results", *(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())]


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
