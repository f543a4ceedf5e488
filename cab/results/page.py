"""The leaderboard as a single, self-contained HTML file: what the suite says, how far to believe it, and all tables.

All text from results is escaped by Jinja or matplotlib, and a content security policy blocks foreign scripts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from cab.files.disk import replacing, sanitize_text
from cab.files.text_table import read_csv
from cab.records.record import Status
from cab.records.results import PAPER_DIR
from cab.registry.registries import ATTENTIONS
from cab.results import figures
from cab.results.board import (
    CONSTANT,
    COST_LAYER,
    SUBQUADRATIC,
    TIME,
    Suite,
    board_table,
    core_gains,
    recall_points,
    state_size,
)
from cab.results.card import summary
from cab.results.cells import (
    ANCHORS,
    PRESET,
    TUNED,
    SuiteCell,
    cell_descriptions,
    metric_meanings,
    own_runs,
    runs_of,
    suite_cells,
)
from cab.results.check import invalid_cells
from cab.results.costs import cost_hardware
from cab.results.formats import Cell, gain, interval, mean, numbers, texts
from cab.results.normalization import NORMALIZATIONS
from cab.results.sections import PATTERNS, Section
from cab.results.sentence import findings
from cab.results.table import BASELINE, OWN, Column, Row, Table, element_id
from cab.results.verdict import judge_attentions

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
    suite: Suite | None,
    files: Sequence[Path],
    skipped: Sequence[str],
) -> Path:
    """Write ``index.html`` into ``out``, from all ``results`` and ``sections`` besides the board of the suite."""
    script = _source("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(_source("page.html")).render(
        title="Attention leaderboard",
        facts=list(_facts(suite)) if suite else _counts(results),
        suite=_suite(suite) if suite else None,
        sections=sections,
        cards=[summary(name) for name in sorted(set(results["attention"]).intersection(ATTENTIONS.names()))],
        normalization=f"{normalization}: {NORMALIZATIONS[normalization]}",
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


def _counts(results: pd.DataFrame) -> list[str]:
    counts = {name: results[name].nunique() for name in ("attention", "task")}
    runs = len(results.drop_duplicates(["file", "task", "dataset", "config_variant", "backbone", "attention", "seed"]))
    return [f"{runs:,} results", *(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())]


def _suite(suite: Suite) -> dict[str, Any]:
    """Return the variable ``suite`` of the template."""
    records = list(own_runs(suite.results)["record"])
    own = suite.board[suite.board["own"]] if len(suite.board) else suite.board
    core = core_gains(suite.gains)
    tested = core[~core["attention"].isin(ANCHORS)]
    patterns = [pattern for pattern in PATTERNS if (tested["pattern"] == pattern).any()]
    chosen = [pattern for pattern in patterns if (tested.loc[tested["own"], "pattern"] == pattern).any()]
    return {
        "findings": findings(suite.board),
        "own": {
            sanitize_text(name): ["\n".join(map(sanitize_text, lines)) for lines in verdicts]
            for name, verdicts in judge_attentions(own["attention"], records).items()
        },
        "chosen": next(iter(chosen), "CS"),
        "choices": {pattern: PATTERNS[pattern] for pattern in patterns},
        "requirements": REQUIREMENTS,
        "table": board_table(suite.board) if len(suite.board) else None,
        "images": list(_images(suite.board)),
        "counts": {
            "single": (tested["seeds"] == 1).sum(),
            "unfinished": tested["note"].str.contains("unfinished").sum(),
            "diverged": (tested["diverged"] > 0).sum(),
            "all": len(tested),
        },
        "answers": list(_answers()),
        "cells": list(_cells(suite.gains, suite.results)),
    }


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
    yield f"{len(names)} attentions besides {' and '.join(ANCHORS)}, {gains['seeds'].sum()} runs"
    cells = {cell.key for cell in suite_cells()}
    runs = runs_of(suite.results)
    runs = runs[(runs["status"] == Status.FINISHED) & (runs["preset"] == PRESET) & ~runs["attention"].isin(ANCHORS)]
    keys = zip(runs["task"], runs["backbone"], runs["pattern"], strict=True)
    records = [record for key, record in zip(keys, runs["record"], strict=True) if key in cells]
    if dates := sorted({record.started[:10] for record in records if record.started}):
        machines = " and ".join(sorted({_machine(record.hardware) for record in records}))
        yield f"trained {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {machines}"
    yield f"costs measured on {' and '.join(cost_hardware())}"


def _machine(hardware: Mapping[str, Any]) -> str:
    device = hardware.get("device")
    name = hardware.get("cpu" if device == "cpu" else "gpu") or device or "unknown hardware"
    threads = hardware.get("threads")
    return sanitize_text(f"{name}, {threads} thread{'s' * (threads != 1)}" if threads else name)


def _cells(gains: pd.DataFrame, results: pd.DataFrame) -> Iterator[tuple[str, str, Table]]:
    """Yield name, description and results of each cell, those of the board first; baselines have the metric only."""
    names = gains["task"] + " " + gains["backbone"] + " " + gains["pattern"]
    for cell in sorted(suite_cells(), key=lambda cell: not cell.core):
        frame = gains[(names == str(cell)) & (gains["seeds"] > 0)].sort_values("K", ascending=False)
        if frame["attention"].isin(ANCHORS).all():
            continue
        rows, trivial = frame.to_dict("records"), _baselines(cell, results)
        intervals = texts(interval(row["low"], row["high"], 1) for row in rows)
        columns = [
            Column(cell.metric, [mean(row["mean"], row["sd"]) for row in rows] + list(map(mean, trivial.values())))
        ]
        columns += [
            Column(name, cells + [Cell()] * len(trivial))
            for name, cells in (
                ("K", list(map(gain, rows))),
                ("95% interval", intervals),
                *((name, numbers(frame[name], 0)) for name in ("seeds", "solved", "steps")),
            )
        ]
        labels = [
            Row(sanitize_text(row["attention"]), row["verified"], OWN if row["source"] == "own" else "") for row in rows
        ]
        labels += [Row(name, kind=BASELINE) for name in trivial]
        meaning = f"{cell.metric}: {metric_meanings()[cell.task, cell.metric]}."
        remark = f"Excluded: {invalid_cells()[cell.key]}." if cell.key in invalid_cells() else ""
        table = Table(labels, columns, caption=f"{cell}: means over seeds", id=element_id("cell", *cell.key))
        yield str(cell), " ".join(filter(None, (cell_descriptions()[cell.key], meaning, remark))), table


def _baselines(cell: SuiteCell, results: pd.DataFrame) -> dict[str, float]:
    """Return the metric of the trivial baselines of a cell, which depend on its data only."""
    runs = runs_of(results)
    found: dict[str, float] = {}
    for record in runs.loc[runs["status"] == Status.FINISHED, "record"]:
        if cell.includes(record) and not cell.changed_settings(record):
            values = {name: metrics.get(cell.metric) for name, metrics in record.baselines.items()}
            found |= {sanitize_text(name): value for name, value in values.items() if value is not None}
    return found
