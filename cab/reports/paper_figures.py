"""The figures in the order of the paper, each as PNG and PDF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cab.reports import figures
from cab.reports.curves import extrapolation_curves
from cab.reports.efficiency import cost_curves
from cab.reports.leaderboard import Board
from cab.reports.task_sections import FilledSection
from cab.scoring import benchmark_correlation, efficiency_length, pattern_correlation, task_correlation
from cab.scoring.correlation import LRA

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def write_figures(
    boards: Sequence[Board], out: Path, *, sections: Sequence[FilledSection] = (), costs: pd.DataFrame | None = None
) -> Iterator[Path]:
    """Write figures to ``out``/figures/NAME.png and .pdf.

    Writes costs (Figure 2), Figures 3a, 3b, 3c and 4 for every suite, and the figures of the tasks' sections. Figures
    without data (a single pattern, no ablation, no lengths) are omitted.
    """
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    suites = (item for board in boards for item in _suite(board))
    of_tasks = (item for each in sections for item in each.section.figures(each.rows))
    for name, figure in [*_costs(costs), *suites, *of_tasks]:
        for suffix in ("png", "pdf"):
            path = folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.{suffix}"
            figure.savefig(path, dpi=200)
            yield path


def _costs(costs: pd.DataFrame | None) -> Iterator[tuple[str, Figure]]:
    if costs is None:
        return
    lengths = efficiency_length(costs)
    look = figures.looks(costs["attention"])
    for letter, (pattern, phase, resource, unit, curves, crossings) in zip(
        "ab" * len(costs), cost_curves(costs, lengths), strict=False
    ):
        title = f"{pattern}, {phase}: {resource}"
        figure = figures.length_figure(curves, title=title, ylabel=unit, looks=look, crossings=crossings)
        yield f"figure2{letter}-{pattern}-{phase}-{resource}", figure
    for key, own in lengths.groupby(["pattern", "phase"], sort=False):
        name = " ".join(map(str, key))
        yield f"figure2c-{name}", figures.efficiency_length_figure(own, title=f"{name}: efficiency length")


def _suite(board: Board) -> Iterator[tuple[str, Figure]]:
    import pandas as pd

    suite = board.suite
    if len(suite.patterns) > 1:
        pairs = pd.concat([pattern_correlation(board.scores), benchmark_correlation(board.scores)])
        title = f"{suite.heading}: correlation between patterns"
        yield f"figure3a-{suite.key}", figures.correlation_figure(pairs, order=[*suite.patterns, LRA], title=title)
    benefit = board.benefit()
    if not benefit.empty:
        yield f"figure3b-{suite.key}", figures.benefit_figure(benefit, title=f"{suite.heading}: benefit of attention")
    look = figures.looks(board.measured["attention"])
    for (place, metric), curve in extrapolation_curves(board.measured).items():
        figure = figures.length_figure(curve, title=f"{metric}, {place}", ylabel=metric, looks=look, log=False)
        yield f"figure3c-{suite.key}-{place}-{metric}", figure
    for pattern in suite.patterns:
        tasks = board.tasks(pattern)
        if len(tasks) > 1:
            pairs = task_correlation(board.scores)
            pairs = pairs[pairs["pattern"] == pattern]
            title = f"{suite.heading}, {pattern}: correlation between tasks"
            yield f"figure4-{suite.key}-{pattern}", figures.correlation_figure(pairs, order=tasks, title=title)
