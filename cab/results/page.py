"""The leaderboard as a single, self-contained HTML file: what the suite says, how far to believe it, and all tables.

All text from results is escaped by Jinja or matplotlib, and a content security policy blocks foreign scripts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from cab.files.disk import replacing, sanitize_text
from cab.files.text_table import counted, read_csv
from cab.records.files import PAPER_DIR
from cab.records.names import PLACE
from cab.records.record import Status
from cab.registry.registries import ATTENTIONS
from cab.results import figures
from cab.results.card import summary
from cab.results.cells import ANCHORS, TUNED, cell_descriptions, metric_meanings
from cab.results.costs import cost_hardware
from cab.results.formats import TableCell, gain, interval, mean, numbers, texts
from cab.results.load import OWN, K, metrics_of, runs_of
from cab.results.normalization import NORMALIZATIONS
from cab.results.retained import baselines_of, by_cell
from cab.results.sections import PATTERNS, Section
from cab.results.suite_board import (
    CONSTANT,
    COST_LAYER,
    SUBQUADRATIC,
    TIME,
    Suite,
    board_table,
    findings,
    recall_points,
    state_size,
)
from cab.results.table import BASELINE, Column, Row, Table, element_id
from cab.results.validity import invalid_cells

ANSWERS = PAPER_DIR.parent / "validity" / "answers.csv"
MIN_POINTS = 3
"""Minimum number of attentions in a figure of recall."""
REQUIREMENTS = {CONSTANT: "constant-size state", SUBQUADRATIC: "time below n²"}
"""Tags of rows that a reader can require."""


def write_page(
    frame: pd.DataFrame,
    out: Path,
    *,
    normalizations: Sequence[str],
    sections: Sequence[Section],
    suite: Suite | None,
    files: Sequence[Path],
    skipped: Sequence[str],
) -> Path:
    """Write ``index.html`` into ``out``, from all results and ``sections`` besides the board of the suite."""
    script = _source("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(_source("page.html")).render(
        title="Attention leaderboard",
        facts=list(_facts(suite)) if suite else _counts(frame),
        suite=_suite(suite) if suite else None,
        sections=sections,
        cards=[summary(name) for name in sorted(set(frame["attention"]).intersection(ATTENTIONS.names()))],
        normalizations=[f"{name}: {NORMALIZATIONS[name]}" for name in normalizations],
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
    return resources.files("cab.results").joinpath(name).read_text(encoding="utf-8")


def _counts(frame: pd.DataFrame) -> list[str]:
    frame = metrics_of(frame)
    counts = {name: frame[name].nunique() for name in ("attention", "task")}
    runs = len(frame.drop_duplicates(["file", *PLACE, "attention", "seed"]))
    return [counted(runs, "result"), *(counted(count, name) for name, count in counts.items())]


def _suite(suite: Suite) -> dict[str, Any]:
    """Return the variable ``suite`` of the template."""
    own = suite.board[suite.board["own"]] if len(suite.board) else suite.board
    core = suite.core
    tested = core[~core["attention"].isin(ANCHORS)]
    patterns = [pattern for pattern in PATTERNS if (tested["pattern"] == pattern).any()]
    chosen = [pattern for pattern in patterns if (tested.loc[tested["own"], "pattern"] == pattern).any()]
    return {
        "findings": findings(suite),
        "own": _verdicts(own["attention"], suite.frame) if len(own) else {},
        "chosen": next(iter(chosen), "CS"),
        "choices": {pattern: PATTERNS[pattern] for pattern in patterns},
        "requirements": REQUIREMENTS,
        "table": board_table(suite) if len(suite.board) else None,
        "images": list(_images(suite.board)),
        "counts": {
            "single": (tested["seeds"] == 1).sum(),
            "unfinished": tested["note"].str.contains("unfinished").sum(),
            "diverged": (tested["diverged"] > 0).sum(),
            "all": len(tested),
        },
        "answers": list(_answers()),
        "cells": list(_cells(suite.gains, suite.frame)),
    }


def _verdicts(names: Iterable[str], frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return the verdict on each attention, one text per pattern."""
    from cab.results.verdict import judge_attentions

    verdicts = judge_attentions(names, frame)
    return {sanitize_text(name): ["\n".join(map(sanitize_text, of)) for of in each] for name, each in verdicts.items()}


def _images(board: pd.DataFrame) -> Iterator[Markup]:
    """Yield the figures of causal recall against the size of the state, and against the time of a layer."""
    shown = {
        "Recall against state": (state_size(board), "decode state of a layer in the same networks, numbers"),
        "Recall against time": (
            board.reindex(columns=[TIME])[TIME],
            f"time relative to softmax attention\n(another configuration: {COST_LAYER})",
        ),
    }
    for title, (costs, label) in shown.items():
        points = recall_points(board, costs)
        if len(points) >= MIN_POINTS:
            figure = figures.frontier_figure(points, title=title, label=label)
            yield figures.image(figure, f"{title}: causal self-attention, {label}")


def _answers() -> Iterator[tuple[str, list[Markup]]]:
    """Yield title and paragraphs of each answer on validity, with bold and code of Markdown."""
    for row in read_csv(ANSWERS):
        html = re.sub(r"`(.+?)`", r"<code>\1</code>", str(escape(row["answer"])))
        html = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html)
        yield row["question"], [Markup(text) for text in html.split("\n\n")]


def _facts(suite: Suite) -> Iterator[str]:
    """Yield number, date and hardware of the runs, and the hardware of the cost measurements."""
    gains = suite.gains[(suite.gains["seeds"] > 0) & ~suite.gains["attention"].isin(ANCHORS)]
    names = {str(name).removesuffix(TUNED) for name in gains["attention"]}
    number = int(gains["seeds"].sum())
    yield f"{counted(len(names), 'attention')} besides {' and '.join(ANCHORS)}, {counted(number, 'run')}"
    runs = runs_of(suite.frame[suite.frame["score"] == K])
    runs = runs[(runs["status"] == Status.FINISHED) & ~runs["attention"].isin(ANCHORS)]
    if dates := sorted({started[:10] for started in runs["started"] if started}):
        machines = " and ".join(sorted(map(sanitize_text, runs["hardware"].unique())))
        yield f"trained {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {machines}"
    yield f"costs measured on {' and '.join(cost_hardware())}"


def _cells(gains: pd.DataFrame, frame: pd.DataFrame) -> Iterator[tuple[str, str, Table]]:
    """Yield name, description and results of each cell, those of the board first; baselines have the metric only."""
    runs = {cell.key: of_cell for cell, of_cell in by_cell(runs_of(frame[frame["score"] == K]))}
    for cell, of_cell in sorted(by_cell(gains[gains["seeds"] > 0]), key=lambda pair: not pair[0].core):
        of_cell = of_cell.sort_values("K", ascending=False)
        if of_cell["attention"].isin(ANCHORS).all():
            continue
        rows, trivial = of_cell.to_dict("records"), baselines_of(runs[cell.key], cell.metric)
        intervals = texts(interval(row["low"], row["high"], 1) for row in rows)
        scores = [mean(row["mean"], row["sd"]) for row in rows] + list(map(mean, trivial.values()))
        shown = {
            "K": list(map(gain, rows)),
            "95% interval": intervals,
            **{name.replace("_", " "): numbers(of_cell[name], 0) for name in ("seeds", "reached_90", "steps")},
        }
        columns = [Column(name, cells + [TableCell()] * len(trivial)) for name, cells in shown.items()]
        labels = [
            Row(sanitize_text(row["attention"]), row["verified"], OWN if row["source"] == OWN else "") for row in rows
        ]
        labels += [Row(sanitize_text(name), kind=BASELINE) for name in trivial]
        meaning = f"{cell.metric}: {metric_meanings()[cell.task, cell.metric]}."
        remark = f"Excluded: {invalid_cells()[cell.key]}." if cell.key in invalid_cells() else ""
        columns = [Column(cell.metric, scores), *columns]
        table = Table(labels, columns, caption=f"{cell}: means over seeds", id=element_id("cell", *cell.key))
        yield str(cell), " ".join(filter(None, (cell_descriptions()[cell.key], meaning, remark))), table
