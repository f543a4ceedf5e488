"""Sections of the page: blocks of figures and tables.

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
from cab.patterns import pattern_rank
from cab.records.names import without_settings
from cab.records.record import Status
from cab.registry.registries import TASKS
from cab.results import figures
from cab.results.correlation import LRA, benchmark_correlation, pattern_correlation, task_correlation
from cab.results.index import benefit_of_attention
from cab.results.leaderboard import Board, compared, extrapolation_curves, pattern_table
from cab.results.load import PUBLISHED
from cab.results.table import Table, element_id, write_csv

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

PATTERNS = {
    "CS": "causal self-attention (CS)",
    "NS": "noncausal self-attention (NS)",
    "NC": "cross-attention (NC)",
    "CC": "causal cross-attention (CC)",
}
"""Name of each pattern."""


class Picture(NamedTuple):
    """A figure, its text for screen readers, and the name of its files."""

    figure: Figure
    title: str
    file: str


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


@dataclass
class Section:
    """A section of the page."""

    id: str
    heading: str
    summary: str = ""
    blocks: list[Block] = field(default_factory=list)


def board_sections(boards: Sequence[Board]) -> Iterator[Section]:
    """Yield a section per set of :func:`cab.results.leaderboard.compared` boards."""
    for group, results in compared(boards):
        section = _section(group, results)
        section.blocks += [block for board in group if results is None for block in _comparisons(board)]
        yield section


def _section(boards: Sequence[Board], results: pd.DataFrame | None) -> Section:
    """Return the section of boards that share tables; ``results`` are those of generated data, without a score."""
    frame = pd.concat([board.results for board in boards]) if results is None else results
    text = f"Data sets: {', '.join(sorted(frame['dataset'].unique()))}."
    text += "" if results is None else " Generated data outside the cells of the suite have metrics and no score."
    patterns = sorted(frame["pattern"].unique(), key=pattern_rank)
    blocks = [block for pattern in patterns for block in _pattern_blocks(boards, pattern, results)]
    return Section(element_id("preset", boards[0].key), " and ".join(b.heading for b in boards), text, blocks)


def _pattern_blocks(boards: Sequence[Board], pattern: str, results: pd.DataFrame | None) -> Iterator[Block]:
    name = PATTERNS.get(pattern, pattern)
    yield Block(name, tables=[pattern_table(boards, pattern, results)])
    for board in boards:
        tasks = board.tasks(pattern)
        if len(tasks) > 1 and results is None:
            pairs = task_correlation(board.scores.table)
            title = f"{name}: correlation of the index between tasks"
            title += f", {board.heading}" * (len(boards) > 1) + _of_printed(board)
            ids = element_id(board.key, pattern, "tasks"), f"figure4-{board.key}-{pattern}"
            yield _correlation(pairs[pairs["pattern"] == pattern], tasks, title, *ids)
        yield from _curves(board, pattern, board.results if results is None else results)


def _curves(board: Board, pattern: str, results: pd.DataFrame) -> Iterator[Block]:
    """Yield the metrics by length of the places in results."""
    measured = board.measured[(board.measured["pattern"] == pattern) & board.measured["place"].isin(results["place"])]
    looks = figures.looks(board.measured["attention"])
    for number, ((place, metric), curve) in enumerate(extrapolation_curves(measured).items()):
        title = f"{PATTERNS.get(pattern, pattern)}: {metric} by length, {place.replace('/', ' / ')}"
        label = figures.short(metric)
        figure = figures.length_figure(curve, title=label, ylabel=label, looks=looks, log=False)
        wide = curve.pivot(index="attention", columns="length", values="value").sort_index().reset_index()
        table = Table.of(wide, id=element_id(board.key, pattern, "curve", str(number)), caption=title)
        yield Block(title, "", [Picture(figure, title, f"figure3c-{board.key}-{place}-{metric}")], [table])


def _comparisons(board: Board) -> Iterator[Block]:
    scores = board.scores.table
    benefit = benefit_of_attention(scores)
    benefit = benefit[(benefit["pattern"] == "NS") & benefit["without"].notna()]
    if len(board.patterns) > 1:
        pairs = pd.concat([pattern_correlation(scores), benchmark_correlation(scores)], ignore_index=True)
        title = f"Correlation of the average index between patterns, and with Long Range Arena{_of_printed(board)}"
        names = element_id(board.key, "pattern-correlation"), f"figure3a-{board.key}"
        yield _correlation(pairs, [*board.patterns, LRA], title, *names)
    if len(benefit):
        title = "Index with and without attention (NS)"
        picture = Picture(figures.benefit_figure(benefit, title="Benefit of attention"), title, f"figure3b-{board.key}")
        shown = benefit[["task", "efficient", "vanilla", "without"]]
        yield Block(title, "", [picture], [Table.of(shown, id=element_id(board.key, "benefit"), caption=title)])


def _of_printed(board: Board) -> str:
    """Return the end of the title of correlations that the paper does not print, but its indices give."""
    return ", recomputed from the printed indices" if board.scores.source == PUBLISHED else ""


def _correlation(pairs: pd.DataFrame, order: Sequence[str], title: str, table_id: str, file: str) -> Block:
    """Return the table of correlations, and their heat map if there is any."""
    named = pairs.assign(pair=pairs["a"].astype(str) + " and " + pairs["b"].astype(str))
    shown = named[["pair", "pearson", "low", "high", "shared", "note"]]
    table = Table.of(shown, decimals=2, id=table_id, caption=title)
    if pairs["pearson"].isna().all():
        return Block(title, "No heat map: no pair has a correlation. The notes of the table say why.", tables=[table])
    figure = figures.correlation_figure(pairs, order=order, title="Pearson correlation")
    return Block(title, "", [Picture(figure, title, file)], [table])


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """Section of the page with the results of one task.

    Attributes:
        name: HTML identifier, and name of the CSV file.
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


def task_sections(frame: pd.DataFrame) -> list[tuple[TaskSection, pd.DataFrame]]:
    """Return the sections with rows of the tasks in a frame and these rows, in alphabetical order of the tasks."""
    filled = []
    for name in sorted(frame["task"].unique()):
        if name in TASKS and TASKS.get(name).report:
            module, _, attribute = TASKS.get(name).report.partition(":")
            section: TaskSection = getattr(importlib.import_module(module), attribute)
            rows = section.table(finished_runs(frame, name))
            filled += [] if rows.empty else [(section, rows)]
    return filled


def finished_runs(frame: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the rows of the finished runs of a task, with sanitized names of attentions and variants.

    The names have no settings: a section has runs with several, and columns for them.
    """
    runs = frame[(frame["task"] == task) & (frame["status"] == Status.FINISHED)]
    attentions = {name: sanitize_text(without_settings(name)) for name in runs["attention"].unique()}
    variants = {name: sanitize_text(name) for name in runs["config_variant"].unique()}
    names = {"attention": runs["attention"].map(attentions), "config_variant": runs["config_variant"].map(variants)}
    return runs.assign(**names)


def write_figures(sections: Iterable[Section], out: Path) -> Iterator[Path]:
    """Write the named figures of the sections to ``out``/figures/NAME.png and .pdf, and yield their paths."""
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = (picture for section in sections for block in section.blocks for picture in block.pictures)
    for figure, _, name in pictures:
        for suffix in ("png", "pdf"):
            path = folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.{suffix}"
            with figures.style():
                yield write_figure(figure, path, dpi=200)
