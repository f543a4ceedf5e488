"""The leaderboard as a single, self-contained HTML file: tables, figures and the facts of every record.

All text from results is escaped by Jinja or matplotlib, and a content security policy blocks foreign scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from cab.files.disk import sanitize_text
from cab.records.verified import LEGEND
from cab.registry.registries import ATTENTIONS
from cab.reports import figures
from cab.reports.board_tables import board_table, cell_blocks
from cab.reports.card import summary
from cab.reports.leaderboard import printable_results
from cab.reports.records import record_facts
from cab.reports.sections import Section
from cab.reports.suite_board import (
    FRONTIER_COSTS,
    SuiteBoard,
    board_facts,
    frontier_points,
    main_finding,
    single_seeds,
)
from cab.scoring import NORMALIZATIONS
from cab.suite.cells import metric_meanings

if TYPE_CHECKING:
    from cab.reports.leaderboard import Board

MIN_POINTS = 3
"""Minimum number of attentions in a figure of K against a cost."""


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
        normalization: as in :func:`cab.scoring.score_table`; stated on the page.
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
        board=None if suite is None else _board(suite),
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
    path.write_text(html, encoding="utf-8")
    return path


def _source(name: str) -> str:
    return resources.files("cab.reports").joinpath(name).read_text(encoding="utf-8")


def _board(suite: SuiteBoard) -> dict[str, Any]:
    tasks = {results.cell.task for results in suite.results if results.runs}
    meanings = metric_meanings().items()
    return {
        "finding": main_finding(suite),
        "facts": list(board_facts(suite)),
        "patterns": suite.patterns,
        "complexities": sorted(set(suite.table["complexity"]) - {""}),
        "table": board_table(suite),
        "images": list(_frontiers(suite)),
        "cells": list(cell_blocks(suite)),
        "metrics": [(f"{task} {name}", meaning) for (task, name), meaning in meanings if task in tasks],
    }


def _frontiers(board: SuiteBoard) -> Iterator[Markup]:
    """Yield one figure of K per pattern and cost, with the attentions that have both."""
    own = set(map(sanitize_text, board.table.loc[board.table["own"], "attention"]))
    for pattern in board.patterns:
        for attribute, (label, _) in FRONTIER_COSTS.items():
            points = frontier_points(board, pattern, attribute)
            if len(points) >= MIN_POINTS:
                title = f"{pattern}: K against {'time' if attribute == 'time' else 'decode state'}"
                single = single_seeds(board, pattern)
                figure = figures.frontier_figure(points, title=title, label=label, own=own, single=single)
                yield figures.image(figure, f"{title}, {label}")


def _counts(results: pd.DataFrame) -> list[str]:
    key = ["file", "task", "dataset", "config_variant", "backbone", "pattern", "attention", "seed"]
    counts = {name: results[name].nunique() for name in ("attention", "task")}
    runs = len(results.drop_duplicates(key))
    return [f"{runs:,} results", *(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())]
