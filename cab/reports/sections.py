"""Sections of the page: blocks of figures and tables, in one tab per pattern for a board.

A task outside the index names its section in ``register_task(..., report="package.module:NAME")``; it is imported if
there are results.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from cab.files.disk import sanitize_text, write_figure
from cab.records.record import Status
from cab.registry.registries import TASKS
from cab.reports import figures
from cab.reports.leaderboard import extrapolation_curves
from cab.reports.leaderboard_tables import index_table, metrics_table
from cab.reports.tables import Table, benefit_table, correlation_table, curve_table, element_id, write_csv
from cab.scoring.correlation import LRA, benchmark_correlation, pattern_correlation, task_correlation
from cab.scoring.index import AVERAGE

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

    from cab.reports.leaderboard import Board

PATTERNS = {
    "NS": ("noncausal self", "every position attends to the whole sequence"),
    "CS": ("causal self", "a position attends to itself and earlier positions"),
    "NC": ("noncausal cross", "the target attends to the whole source"),
    "CC": ("causal cross", "the target attends to the source; later target positions are masked"),
}
"""Name and meaning of each pattern."""
GENERATED = {
    "mini": (
        "generated",
        " Generated data. `cab suite validate` reports the cells in which this data measures attention.",
    )
}
"""Badge and explanation for presets with generated data."""
OTHER_GENERATED = "generated, not for ranking", " Generated data that test the code; scores are not meaningful."


class Picture(NamedTuple):
    """A figure, its text for screen readers, and the name of its files; empty if it is shown on the page only."""

    figure: Figure
    title: str
    file: str = ""


@dataclass
class Block:
    """A heading with figures and tables below it."""

    heading: str
    text: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()

    @property
    def images(self) -> list[Markup]:
        """The figures as images of the page."""
        return [figures.image(picture.figure, picture.title) for picture in self.pictures]

    @property
    def layout(self) -> str:
        """The name of the layout: a single figure is placed next to its table on wide screens."""
        return "wide" if len(self.pictures) == len(self.tables) == 1 else "below"


@dataclass
class Section:
    """A section of the page, with tabs or with blocks; ``badge`` is a warning next to its heading."""

    id: str
    heading: str
    summary: str = ""
    badge: str = ""
    blocks: list[Block] = field(default_factory=list)
    tabs: list[Section] = field(default_factory=list)

    @property
    def all_blocks(self) -> list[Block]:
        """The blocks of all tabs."""
        return [*self.blocks, *(block for tab in self.tabs for block in tab.blocks)]


def board_section(board: Board) -> Section:
    """Return the section of a board: one tab per pattern, and one for comparisons across patterns."""
    badge, about = GENERATED.get(board.preset, OTHER_GENERATED) if board.synthetic else ("", "")
    tabs = [_pattern_tab(board, pattern) for pattern in board.patterns]
    blocks = [*_pattern_correlation(board), *_benefit(board)]
    if blocks:
        tabs.append(Section(element_id(board.key, "patterns"), "Compare", "across patterns", blocks=blocks))
    data = f"Data set{'s' * (len(board.datasets) != 1)}: {', '.join(board.datasets)}.{about}"
    text = " ".join([data, *(f"{line}." for line in board.excluded)])
    return Section(element_id("preset", board.key), board.heading, text, badge, tabs=tabs)


def _pattern_tab(board: Board, pattern: str) -> Section:
    tab = element_id(board.key, pattern)
    name, meaning = PATTERNS.get(pattern, ("", "unknown pattern"))
    heading = f"Compositional index, {pattern}: {meaning}"
    blocks = [
        Block(heading, "", _index_pictures(board, pattern), [index_table(board, pattern)]),
        Block("Raw metrics", tables=[metrics_table(board, pattern)]),
        *_task_correlation(board, pattern, tab),
        *_extrapolation(board, pattern, tab),
    ]
    return Section(tab, pattern, name, blocks=blocks)


def _index_pictures(board: Board, pattern: str) -> list[Picture]:
    tasks, scores = board.tasks(pattern), board.scores.table
    scores = scores[(scores["pattern"] == pattern) & scores["index"].notna()]
    pictures = []
    for task in [AVERAGE, *tasks] if len(tasks) > 1 else tasks:
        rows = scores[scores["task"] == task]
        if len(rows):
            title = "Average over tasks" if task == AVERAGE else task
            figure = figures.index_figure(rows, title=title)
            pictures.append(Picture(figure, f"{title}: compositional index of each attention"))
    return pictures


def _extrapolation(board: Board, pattern: str, tab: str) -> Iterator[Block]:
    measured = board.measured[board.measured["pattern"] == pattern]
    looks = figures.looks(board.measured["attention"])
    for number, ((place, metric), curve) in enumerate(extrapolation_curves(measured).items()):
        title = f"{metric} by length, {place.replace('/', ' / ')}"
        figure = figures.length_figure(curve, title=metric, ylabel=metric, looks=looks, log=False)
        table = curve_table(curve, table_id=f"{tab}-curve-{number}", caption=f"{board.heading}, {pattern}: {title}")
        yield Block(title, "", [Picture(figure, title, f"figure3c-{board.key}-{place}-{metric}")], [table])


def _task_correlation(board: Board, pattern: str, tab: str) -> Iterator[Block]:
    tasks = board.tasks(pattern)
    if len(tasks) > 1:
        pairs = task_correlation(board.scores.table)
        caption = f"{board.heading}, pattern {pattern}: Pearson correlation of the index between tasks"
        text = "Agreement of scores between tasks. Few shared attentions give wide intervals."
        names = ("tasks", f"{tab}-tasks", f"figure4-{board.key}-{pattern}")
        yield _correlation(pairs[pairs["pattern"] == pattern], tasks, caption, text, *names)


def _pattern_correlation(board: Board) -> Iterator[Block]:
    if len(board.patterns) > 1:
        scores = board.scores.table
        pairs = pd.concat([pattern_correlation(scores), benchmark_correlation(scores)], ignore_index=True)
        caption = f"{board.heading}: Pearson correlation of the average index between patterns, and with LRA accuracy"
        text = "Agreement of scores between patterns, and with published accuracies on Long Range Arena."
        names = ("patterns", element_id(board.key, "pattern-correlation"), f"figure3a-{board.key}")
        yield _correlation(pairs, [*board.patterns, LRA], caption, text, *names)


def _correlation(
    pairs: pd.DataFrame, order: Sequence[str], caption: str, text: str, kind: str, table_id: str, file: str
) -> Block:
    title = f"Correlation between {kind}"
    figure = figures.correlation_figure(pairs, order=order, title=title)
    table = correlation_table(pairs, table_id=table_id, caption=caption)
    return Block(title, text, [Picture(figure, caption, file)], [table])


def _benefit(board: Board) -> Iterator[Block]:
    benefit = board.benefit()
    if len(benefit):
        caption = f"{board.heading}, pattern NS: compositional index with and without attention"
        figure = figures.benefit_figure(benefit, title="Benefit of attention")
        table = benefit_table(benefit, table_id=element_id(board.key, "benefit"), caption=caption)
        text = "Index with the attention under test, and without any attention in its layers."
        yield Block("Benefit of attention", text, [Picture(figure, caption, f"figure3b-{board.key}")], [table])


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """Section of the page with the results of one task.

    Attributes:
        name: HTML identifier, and name of the CSV file.
        title: heading.
        summary: text below the heading.
        table: returns the rows of the section from the task's finished runs (:func:`cab.load_results`).
        blocks: yields the blocks of the section from the rows.
        hidden: columns that are not written to the CSV file.
    """

    name: str
    title: str
    summary: str
    table: Callable[[pd.DataFrame], pd.DataFrame]
    blocks: Callable[[pd.DataFrame], Iterable[Block]]
    hidden: tuple[str, ...] = ()

    def section(self, rows: pd.DataFrame) -> Section:
        """Return the section with these rows."""
        return Section(self.name, self.title, self.summary, blocks=list(self.blocks(rows)))

    def write(self, rows: pd.DataFrame, out: Path) -> Path:
        """Write the rows to ``NAME.csv`` in ``out``."""
        return write_csv(rows.drop(columns=list(self.hidden)), out / f"{self.name}.csv")


def task_sections(results: pd.DataFrame) -> list[tuple[TaskSection, pd.DataFrame]]:
    """Return the sections with rows of the tasks in ``results`` and these rows, in alphabetical order of the tasks."""
    filled = []
    for name in sorted(results["task"].unique()):
        if name in TASKS and TASKS.get(name).report:
            module, _, attribute = TASKS.get(name).report.partition(":")
            section: TaskSection = getattr(importlib.import_module(module), attribute)
            rows = section.table(finished_runs(results, name))
            filled += [] if rows.empty else [(section, rows)]
    return filled


def finished_runs(results: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the rows of the finished runs of a task, with sanitized names of attentions and variants."""
    runs = results[(results["task"] == task) & (results["status"] == Status.FINISHED)]
    return runs.assign(**{name: runs[name].map(sanitize_text) for name in ("attention", "config_variant")})


def write_figures(sections: Iterable[Section], out: Path) -> Iterator[Path]:
    """Write the named figures of the sections to ``out``/figures/NAME.png and .pdf, and yield their paths."""
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = (picture for section in sections for block in section.all_blocks for picture in block.pictures)
    for figure, _, name in pictures:
        for suffix in ("png", "pdf") if name else ():
            path = folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.{suffix}"
            with figures.style():
                yield write_figure(figure, path, dpi=200)
