"""The leaderboard as one HTML file that needs no network: tables, figures and the facts of every record.

Everything that comes from a result passes through Jinja's escaping or matplotlib's, and a content security policy
forbids any script but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from cab.reports import figures
from cab.reports.analysis_tables import curve_table
from cab.reports.board_tables import index_table, metrics_table
from cab.reports.curves import extrapolation_curves
from cab.reports.inline_svg import inline_svg
from cab.reports.records import record_facts
from cab.reports.suites import printable
from cab.reports.tables import Table, element_id

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from cab.reports.leaderboard import Board

PATTERN_NAMES = {"NS": "noncausal self", "CS": "causal self", "NC": "noncausal cross", "CC": "causal cross"}
SLOTS_OF = {
    "NS": "every position looks at the whole sequence",
    "CS": "a position looks at earlier positions only",
    "NC": "the target looks at the whole source",
    "CC": "the target looks at the source, and its own later positions stay hidden",
}
NORMALIZATIONS = {
    "own": "mean and sample deviation over the attentions on this page",
    "paper": "the constants printed in the paper",
    "official": "the constants of the official scoring script",
}


@dataclass
class Block:
    """A heading with figures and tables below it."""

    heading: str
    text: str = ""
    figures: list[Markup] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass
class Tab:
    id: str
    label: str
    hint: str
    blocks: list[Block]


@dataclass
class Section:
    """A suite on the page."""

    id: str
    heading: str
    synthetic: bool
    summary: str
    tabs: list[Tab]


def write_page(
    boards: Sequence[Board],
    out: Path,
    *,
    normalization: str,
    costs: pd.DataFrame | None = None,
    skipped: Sequence[str] = (),
) -> Path:
    """Write ``index.html`` into ``out``.

    Args:
        boards: what to show, a section each.
        normalization: as in :func:`cab.scoring.score_table`; named on the page.
        costs: costs against length, columns attention, pattern, phase, length, seconds, bytes.
        skipped: messages about files that were left out.
    """
    import pandas as pd

    results = pd.concat([board.suite.results for board in boards])
    script = _source("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(_source("page.html")).render(
        title="Attention leaderboard",
        facts=_facts(results),
        suites=[_section(board) for board in boards],
        efficiency=[],
        records=record_facts(results, out),
        method=_method(normalization),
        skipped=[printable(line) for line in skipped],
        css=Markup(_source("page.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    path = out / "index.html"
    path.write_text(html, encoding="utf-8")
    return path


def _source(name: str) -> str:
    return resources.files("cab.reports").joinpath(name).read_text(encoding="utf-8")


def _facts(results: pd.DataFrame) -> list[str]:
    runs = results.drop_duplicates(["file", "task", "dataset", "variant", "backbone", "pattern", "attention", "seed"])
    names = {"attention": results["attention"].nunique(), "task": results["task"].nunique()}
    return [f"{len(runs):,} results", *(f"{count} {name}{'s' * (count != 1)}" for name, count in names.items())]


def _section(board: Board) -> Section:
    suite = board.suite
    data = "Data set" + "s" * (len(suite.datasets) != 1) + ": " + ", ".join(suite.datasets) + "."
    if suite.synthetic:
        data += " These are generated series: they show that the code runs, and rank nothing."
    tabs = [_pattern_tab(board, pattern) for pattern in suite.patterns]
    return Section(element_id(suite.key), suite.heading, suite.synthetic, data, tabs)


def _pattern_tab(board: Board, pattern: str) -> Tab:
    tab = element_id(board.suite.key, pattern)
    name = PATTERN_NAMES.get(pattern, "")
    blocks = [
        _index_block(board, pattern, tab),
        Block("Raw metrics", tables=[metrics_table(board, pattern)]),
        *_extrapolation_blocks(board, pattern, tab),
    ]
    return Tab(tab, pattern, name, blocks)


def _index_block(board: Board, pattern: str, tab: str) -> Block:
    tasks = board.tasks(pattern)
    scores = board.scores[board.scores["pattern"] == pattern]
    pictures = []
    for number, task in enumerate(["all", *tasks] if len(tasks) > 1 else tasks):
        own = scores[scores["task"] == task]
        if own["ci"].notna().any():
            title = "Average over tasks" if task == "all" else task
            with figures.style():
                figure = figures.index_figure(own, title=title)
            pictures.append(_svg(figure, f"{tab}-index-{number}", f"{title}: compositional index of each attention"))
    heading = f"Compositional index, {pattern}: {SLOTS_OF.get(pattern, 'not a pattern of this benchmark')}"
    return Block(heading, "", pictures, [index_table(board, pattern)])


def _extrapolation_blocks(board: Board, pattern: str, tab: str) -> Iterator[Block]:
    measured = board.measured[board.measured["pattern"] == pattern]
    look = figures.looks(board.measured["attention"])
    for number, ((cell, metric), curve) in enumerate(extrapolation_curves(measured).items()):
        title = f"{metric} against length, {cell.replace('/', ' / ')}"
        with figures.style():
            figure = figures.length_figure(curve, title=metric, ylabel=metric, looks=look, log=False)
        table = curve_table(
            curve, table_id=f"{tab}-curve-{number}", caption=f"{board.suite.heading}, pattern {pattern}: {title}"
        )
        yield Block(title, figures=[_svg(figure, f"{tab}-curve-figure-{number}", title)], tables=[table])


def _svg(figure: Figure, name: str, title: str) -> Markup:
    return Markup(inline_svg(figure, name=name, title=title))


def _method(normalization: str) -> list[tuple[str, str]]:
    return [
        (
            "Compositional index",
            "How far an attention is from the others, in standard deviations: each metric of a task is normalised and "
            "turned so that higher is better, then averaged over the task; the average column is the mean over tasks. "
            "0 is the average attention. An attention that lacks a task has no average: there is no mean over missing "
            "numbers.",
        ),
        ("Normalisation", f"{normalization}: {NORMALIZATIONS[normalization]}."),
        (
            "Intervals",
            "95% confidence intervals of the index over seeds; none where there is one seed. ± on raw metrics is the "
            "standard deviation over seeds. The dashed line in a figure is softmax attention.",
        ),
        (
            "What is compared",
            "One preset, and either real or synthetic data; nothing is averaged over two of these. Bold is the best of "
            "its column.",
        ),
        ("\N{EN DASH}", "There is no number; the note below the table says why."),
    ]
