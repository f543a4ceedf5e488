"""The leaderboard as a single, self-contained HTML file: what the suite says, how far to believe it, and all tables.

All text from results is escaped by Jinja or matplotlib, and a content security policy blocks foreign scripts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from cab.files.disk import replacing, sanitize_text
from cab.files.text_table import read_csv
from cab.records.record import Record
from cab.records.results import PAPER_DIR
from cab.records.verified import LEGEND
from cab.registry.registries import ATTENTIONS
from cab.reports import figures
from cab.reports.board_tables import CONSTANT, COST_BLOCK, SUBQUADRATIC, board_table, cell_sections, entry_cell
from cab.reports.card import summary
from cab.reports.sections import PATTERNS, Section
from cab.reports.sentence import main_sentence
from cab.reports.suite_board import BoardRow, SuiteBoard, board_facts, recall_points, state_of, time_of
from cab.scoring.normalization import NORMALIZATIONS
from cab.suite.cells import SuiteCell
from cab.suite.verdict import RELATIONS, judge_attention

ANSWERS = PAPER_DIR.parent / "validity" / "answers.csv"
MIN_POINTS = 3
"""Minimum number of attentions in a figure of recall."""
REQUIREMENTS = {CONSTANT: "constant-size state", SUBQUADRATIC: "time below n²"}
"""Tags of rows that a reader can require."""


def write_page(
    results: pd.DataFrame,
    out: Path,
    *,
    normalization: str,
    sections: Sequence[Section],
    suite: SuiteBoard | None,
    files: Sequence[Path],
    skipped: Sequence[str],
) -> Path:
    """Write ``index.html`` into ``out``.

    Args:
        results: all results, as returned by :func:`cab.load_results`.
        normalization: as in :func:`cab.scoring.index.score_table`; stated on the page.
        sections: sections of the boards, of tasks outside the index and of costs.
        files: CSV files next to the page.
    """
    script = _source("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(_source("page.html")).render(
        title="Attention leaderboard",
        facts=list(board_facts(suite)) if suite else _counts(results),
        suite=_suite(suite, list(results["record"].dropna())) if suite else None,
        sections=sections,
        cards=[summary(name) for name in sorted(set(results["attention"]).intersection(ATTENTIONS.names()))],
        normalization=f"{normalization}: {NORMALIZATIONS[normalization]}",
        unverified=LEGEND,
        files=[path.name for path in files],
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


def _counts(results: pd.DataFrame) -> list[str]:
    counts = {name: results[name].nunique() for name in ("attention", "task")}
    runs = len(results.drop_duplicates(["file", "task", "dataset", "config_variant", "backbone", "attention", "seed"]))
    return [f"{runs:,} results", *(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())]


def _suite(board: SuiteBoard, records: Sequence[Record]) -> dict[str, Any]:
    """Return the variable ``suite`` of the template."""
    entries = [entry for row in board.rows for entry in row.entries.values() if entry.verdict]
    own = [row for row in board.rows if row.own]
    patterns = {cell.pattern for cell in board.abilities if any(cell.key in row.entries for row in own)}
    return {
        "finding": main_sentence(board),
        "own": [
            (sanitize_text(row.attention), _summary(row, board.abilities), _verdict(row.attention, records))
            for row in own
        ],
        "chosen": next((pattern for pattern in PATTERNS if pattern in patterns), "CS"),
        "choices": {pattern: text for pattern, text in PATTERNS.items() if pattern in board.patterns},
        "requirements": REQUIREMENTS,
        "table": board_table(board),
        "images": list(_images(board)),
        "counts": {
            "single": sum(len(entry.gain.points) == 1 for entry in entries),
            "unfinished": sum(entry.gain.is_lower_bound for entry in entries),
            "diverged": sum(entry.gain.diverged > 0 for entry in entries),
            "all": len(entries),
        },
        "answers": list(_answers()),
        "cells": list(cell_sections(board)),
    }


def _summary(row: BoardRow, abilities: Sequence[SuiteCell]) -> str:
    """Return the user's results and costs in one line."""
    parts = []
    for ability in abilities:
        if (entry := row.entries.get(ability.key)) and entry.verdict:
            cell = entry_cell(entry)
            again = f", trained again: {entry.repetition}" if entry.repetition else ""
            parts.append(
                f"{ability.heading} {cell.text} {cell.detail}".rstrip()
                + f" ({RELATIONS[entry.verdict]} softmax attention{again})"
            )
    costs = {pattern: cost.time for pattern, cost in row.costs.items() if cost.time}
    return "; ".join([*parts, *(f"{time:.2f} times softmax's time in {pattern}" for pattern, time in costs.items())])


def _verdict(name: str, records: Sequence[Record]) -> list[str]:
    """Return the lines of the verdict on the user's attention, without the cost, which is in the table."""
    lines = [line for lines in judge_attention(name, records) for line in lines]
    return [sanitize_text(line) for line in lines if not line.lstrip().startswith("cost:")]


def _images(board: SuiteBoard) -> Iterator[Markup]:
    """Yield the figures of causal recall against the size of the state, and against the time of a layer."""
    state = "decode state of a layer in the same networks, numbers"
    time = f"time relative to softmax attention\n(another configuration: {COST_BLOCK})"
    for cost, label, title in ((state_of, state, "Recall against state"), (time_of, time, "Recall against time")):
        points = recall_points(board, cost)
        if len(points) >= MIN_POINTS:
            figure = figures.frontier_figure(points, title=title, label=label)
            yield figures.image(figure, f"{title}: causal self-attention, {label}")


def _answers() -> Iterator[tuple[str, list[Markup]]]:
    """Yield title and paragraphs of each answer on validity, with bold and code of Markdown."""
    for row in read_csv(ANSWERS):
        html = re.sub(r"`(.+?)`", r"<code>\1</code>", str(escape(row["answer"])))
        html = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html)
        yield row["question"], [Markup(text) for text in html.split("\n\n")]
