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
from cab.records.results import PAPER_DIR
from cab.records.verified import LEGEND
from cab.registry.registries import ATTENTIONS
from cab.reports import figures
from cab.reports.board_tables import CONSTANT, COST_BLOCK, SUBQUADRATIC, board_table, cell_sections
from cab.reports.card import summary
from cab.reports.sections import PATTERNS, Section
from cab.reports.sentence import main_sentence
from cab.reports.suite_board import SuiteBoard, board_facts, own_runs, recall_points, state_of, time_of
from cab.results.normalization import NORMALIZATIONS
from cab.results.verdict import judge_attention

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
    """Write ``index.html`` into ``out``, from all ``results`` and ``sections`` besides the board of the suite."""
    script = _source("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(_source("page.html")).render(
        title="Attention leaderboard",
        facts=list(board_facts(suite)) if suite else _counts(results),
        suite=_suite(suite, results) if suite else None,
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


def _suite(board: SuiteBoard, results: pd.DataFrame) -> dict[str, Any]:
    """Return the variable ``suite`` of the template."""
    runs = own_runs(results)
    records = list(runs["record"])
    entries = [entry for row in board.rows for entry in row.entries.values() if entry.verdict]
    own = [row for row in board.rows if row.own]
    patterns = {cell.pattern for cell in board.abilities if any(cell.key in row.entries for row in own)}
    return {
        "finding": main_sentence(board),
        "own": {
            sanitize_text(row.attention): ["\n".join(map(sanitize_text, lines)) for lines in verdicts]
            for row in own
            for verdicts in [judge_attention(row.attention, records)]
        },
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
