"""Sections of the page: tabs of blocks, each with figures and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from markupsafe import Markup

from cab.reports import figures
from cab.reports.analysis_tables import benefit_table, correlation_table, curve_table, efficiency_table
from cab.reports.curves import extrapolation_curves
from cab.reports.efficiency import cost_curves
from cab.reports.inline_svg import inline_svg
from cab.reports.leaderboard_tables import index_table, metrics_table
from cab.reports.tables import Table, element_id
from cab.scoring import benchmark_correlation, efficiency_length, pattern_correlation, task_correlation
from cab.scoring.correlation import LRA
from cab.scoring.index import AVERAGE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from cab.reports.leaderboard import Board

PATTERN_NAMES = {"NS": "noncausal self", "CS": "causal self", "NC": "noncausal cross", "CC": "causal cross"}
PATTERN_MEANINGS = {
    "NS": "every position attends to the whole sequence",
    "CS": "a position attends to itself and earlier positions",
    "NC": "the target attends to the whole source",
    "CC": "the target attends to the source; later target positions are masked",
}
GENERATED = {
    "mini": (
        "generated",
        " Generated data. `cab suite validate` reports the cells in which this data measures attention.",
    )
}
"""Badge and explanation for presets with generated data."""
OTHER_GENERATED = "generated, not for ranking", " Generated data that test the code; scores are not meaningful."


@dataclass
class Block:
    """A heading with figures and tables below it."""

    heading: str
    text: str = ""
    figures: list[Markup] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def layout(self) -> str:
        """The name of the layout: a single figure is placed next to its table on wide screens."""
        return "wide" if len(self.figures) == len(self.tables) == 1 else "below"


@dataclass
class Tab:
    """A tab of a section."""

    id: str
    label: str
    hint: str
    blocks: list[Block]


@dataclass
class Section:
    """A suite on the page; ``badge`` is a warning next to its heading."""

    id: str
    heading: str
    badge: str
    summary: str
    tabs: list[Tab]


def suite_section(board: Board) -> Section:
    """Return the section of a suite: one tab per pattern, and one for comparisons across patterns."""
    suite = board.suite
    data = "Data set" + "s" * (len(suite.datasets) != 1) + ": " + ", ".join(suite.datasets) + "."
    badge, about = ("", "") if not suite.synthetic else GENERATED.get(suite.preset, OTHER_GENERATED)
    tabs = [_pattern_tab(board, pattern) for pattern in suite.patterns]
    blocks = [*_pattern_correlation(board), *_benefit(board)]
    if blocks:
        tabs.append(Tab(element_id(suite.key, "patterns"), "Compare", "across patterns", blocks))
    text = " ".join([data + about, *(f"{line}." for line in suite.uncounted)])
    return Section(element_id("preset", suite.key), suite.heading, badge, text, tabs)


def _pattern_tab(board: Board, pattern: str) -> Tab:
    tab = element_id(board.suite.key, pattern)
    name = PATTERN_NAMES.get(pattern, "")
    blocks = [
        _index_block(board, pattern, tab),
        Block("Raw metrics", tables=[metrics_table(board, pattern)]),
        *_task_correlation(board, pattern, tab),
        *_extrapolation(board, pattern, tab),
    ]
    return Tab(tab, pattern, name, blocks)


def _index_block(board: Board, pattern: str, tab: str) -> Block:
    tasks = board.tasks(pattern)
    scores = board.scores[board.scores["pattern"] == pattern]
    pictures = []
    for number, task in enumerate([AVERAGE, *tasks] if len(tasks) > 1 else tasks):
        own = scores[scores["task"] == task]
        if own["index"].notna().any():
            title = "Average over tasks" if task == AVERAGE else task
            figure = figures.index_figure(own, title=title)
            pictures.append(_svg(figure, f"{tab}-index-{number}", f"{title}: compositional index of each attention"))
    heading = f"Compositional index, {pattern}: {PATTERN_MEANINGS.get(pattern, 'unknown pattern')}"
    return Block(heading, "", pictures, [index_table(board, pattern)])


def _extrapolation(board: Board, pattern: str, tab: str) -> Iterator[Block]:
    measured = board.measured[board.measured["pattern"] == pattern]
    look = figures.looks(board.measured["attention"])
    for number, ((place, metric), curve) in enumerate(extrapolation_curves(measured).items()):
        title = f"{metric} by length, {place.replace('/', ' / ')}"
        figure = figures.length_figure(curve, title=metric, ylabel=metric, looks=look, log=False)
        table = curve_table(
            curve, table_id=f"{tab}-curve-{number}", caption=f"{board.suite.heading}, pattern {pattern}: {title}"
        )
        yield Block(title, figures=[_svg(figure, f"{tab}-curve-figure-{number}", title)], tables=[table])


def _task_correlation(board: Board, pattern: str, tab: str) -> Iterator[Block]:
    tasks = board.tasks(pattern)
    if len(tasks) < 2:
        return
    pairs = task_correlation(board.scores)
    pairs = pairs[pairs["pattern"] == pattern]
    title = "Correlation between tasks"
    figure = figures.correlation_figure(pairs, order=tasks, title=title)
    caption = f"{board.suite.heading}, pattern {pattern}: Pearson correlation of the index between tasks"
    table = correlation_table(pairs, table_id=f"{tab}-tasks", caption=caption)
    text = "Agreement of scores between tasks. Few shared attentions give wide intervals."
    yield Block(title, text, [_svg(figure, f"{tab}-tasks-figure", caption)], [table])


def _pattern_correlation(board: Board) -> Iterator[Block]:
    if len(board.suite.patterns) < 2:
        return
    import pandas as pd

    pairs = pd.concat([pattern_correlation(board.scores), benchmark_correlation(board.scores)], ignore_index=True)
    name = element_id(board.suite.key, "pattern-correlation")
    title = "Correlation between patterns"
    figure = figures.correlation_figure(pairs, order=[*board.suite.patterns, LRA], title=title)
    caption = (
        f"{board.suite.heading}: Pearson correlation of the average index between patterns, and with accuracy on LRA"
    )
    text = "Agreement of scores between patterns, and with published accuracies on Long Range Arena."
    yield Block(
        title,
        text,
        [_svg(figure, f"{name}-figure", caption)],
        [correlation_table(pairs, table_id=name, caption=caption)],
    )


def _benefit(board: Board) -> Iterator[Block]:
    benefit = board.benefit()
    if benefit.empty:
        return
    name = element_id(board.suite.key, "benefit")
    caption = f"{board.suite.heading}, pattern NS: compositional index with and without attention"
    figure = figures.benefit_figure(benefit, title="Benefit of attention")
    yield Block(
        "Benefit of attention",
        "Index with the attention under test, and without any attention in its layers.",
        [_svg(figure, f"{name}-figure", caption)],
        [benefit_table(benefit, table_id=name, caption=caption)],
    )


def efficiency_blocks(costs: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per pattern and phase of ``costs``: time and memory by length, and efficiency lengths."""
    lengths = efficiency_length(costs)
    look = figures.looks(costs["attention"])
    blocks: dict[tuple[str, str], Block] = {}
    for curves in cost_curves(costs, lengths):
        key = (curves.pattern, curves.phase)
        name = element_id("efficiency", *key)
        if key not in blocks:
            own = lengths[(lengths["pattern"] == curves.pattern) & (lengths["phase"] == curves.phase)]
            caption = f"Pattern {curves.pattern}, {curves.phase}: efficiency length relative to softmax attention"
            text = "Rings mark the efficiency length, above which the attention is cheaper than softmax attention."
            table = efficiency_table(own, table_id=name, caption=caption)
            blocks[key] = Block(f"{curves.pattern}, {curves.phase}", text, [], [table])
        figure = figures.length_figure(
            curves.curves,
            title=curves.resource.capitalize(),
            ylabel=curves.unit,
            looks=look,
            crossings=curves.crossings,
        )
        title = f"Pattern {curves.pattern}, {curves.phase}: {curves.resource} in {curves.unit} by length"
        blocks[key].figures.append(_svg(figure, f"{name}-{curves.resource}", title))
    for (pattern, phase), block in blocks.items():
        own = lengths[(lengths["pattern"] == pattern) & (lengths["phase"] == phase)]
        figure = figures.efficiency_length_figure(own, title="Efficiency length")
        title = f"Pattern {pattern}, {phase}: efficiency length of each attention"
        block.figures.append(_svg(figure, element_id("efficiency", pattern, phase, "lengths"), title))
        yield block


def _svg(figure: Figure, name: str, title: str) -> Markup:
    return Markup(inline_svg(figure, name=name, title=title))
