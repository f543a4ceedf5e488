"""Figures of quality against cost: K against time and decode state, with the frontier of attentions that none beats."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import Bbox

from cab.files.disk import sanitize_text
from cab.reports.figures import WIDTH, mark, short, style
from cab.reports.inline_svg import inline_svg
from cab.reports.palette import INK, MUTED, POSITIVE
from cab.reports.suite_board import SuiteBoard
from cab.scoring.measured_costs import LENGTH, MeasuredCost, measured_costs
from cab.suite.anchors import NO_ATTENTION
from cab.suite.tuning import TUNED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COSTS = {
    "time": f"time of a forward pass at {LENGTH:,} tokens, relative to softmax",
    "state_bytes": f"decode state at {LENGTH:,} tokens, KiB",
}
"""Attributes of :class:`MeasuredCost` on the horizontal axis, with their labels."""
UNITS = {"time": 1, "state_bytes": 1024}
FEWEST = 3
OFFSETS = {(0, 7): "center", (5, 0): "left", (0, -8): "center", (-5, 0): "right"}
"""Offsets of a name from its point in points, with the alignment of the text."""


def frontier_figures(board: SuiteBoard) -> Iterator[Markup]:
    """Yield one figure per pattern and cost with at least three attentions that have both K and the cost."""
    own = {sanitize_text(row.attention) for row in board.rows if row.is_own}
    for pattern in board.patterns:
        for attribute, label in COSTS.items():
            points = frontier_points(board, pattern, attribute)
            if len(points) >= FEWEST:
                title = f"{pattern}: K against {'time' if attribute == 'time' else 'decode state'}"
                figure = frontier_figure(points, title=title, label=label, own=own, single=single_seeds(board, pattern))
                yield Markup(inline_svg(figure, name=f"frontier-{pattern}-{attribute}", title=f"{title}, {label}"))


def frontier_points(board: SuiteBoard, pattern: str, attribute: str) -> dict[str, tuple[float, float]]:
    """Return cost and K of each attention that has both."""
    points = {}
    for name, gain in board.gains.patterns[pattern].items():
        cost = getattr(measured_costs().get((name.removesuffix(TUNED), pattern), MeasuredCost()), attribute)
        if gain.estimate and cost and name != NO_ATTENTION:
            points[sanitize_text(name)] = (cost / UNITS[attribute], gain.estimate.value)
    return points


def single_seeds(board: SuiteBoard, pattern: str) -> set[str]:
    """Return the attentions with a single seed in any core cell of the pattern."""
    gains = board.gains.patterns[pattern].items()
    return {sanitize_text(name) for name, gain in gains if gain.seeds == 1}


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the attentions that no other attention beats in both cost and K, cheapest first."""
    best, names = float("-inf"), []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if points[name][1] > best:
            best = points[name][1]
            names.append(name)
    return names


@style()
def frontier_figure(
    points: Mapping[str, tuple[float, float]],
    *,
    title: str,
    label: str,
    own: Container[str] = (),
    single: Container[str] = (),
    size: tuple[float, float] = (WIDTH, 3.0),
) -> Figure:
    """Draw K against a cost on a logarithmic axis; a line joins the frontier, and ``own`` attentions are diamonds.

    Attentions with a ``single`` seed are hollow.
    Names are shown where they do not overlap: those of ``own`` and of the frontier first.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_ylabel("K, %")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if max(points.values())[0] > 100 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.set_ylim(-5, 108)
    best = frontier(points)
    axes.plot(*zip(*(points[name] for name in best), strict=True), color=POSITIVE, linewidth=1, drawstyle="steps-post")
    for name, (cost, share) in points.items():
        shape = "D" if name in own else "o" if name in best else "s"
        color, fill = POSITIVE if shape != "s" else MUTED, "none" if name in single else "full"
        [dot] = axes.plot([cost], [share], shape, color=color, fillstyle=fill, ms=5)
        mark(dot, name, f"{name}: K {share:.1f}, cost {cost:,.4g}")
    axes.margins(x=0.18)
    first = sorted(points, key=lambda name: (name not in own, name not in best))
    figure.draw_without_rendering()  # lays out the axes, so that positions are known
    _label(axes, {name: points[name] for name in first})
    return figure


def _label(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each name next to its point, unless it overlaps a point or an earlier name at every offset."""
    marks = [axes.transData.transform(point) for point in points.values()]
    taken = [Bbox.from_extents(x - 3, y - 3, x + 3, y + 3) for x, y in marks]
    for number, (name, point) in enumerate(points.items()):
        others = taken[:number] + taken[number + 1 :]
        for offset, align in OFFSETS.items():
            text = axes.annotate(
                short(name), point, offset, textcoords="offset points", ha=align, va="center", fontsize=7, color=INK
            )
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in others):
                taken.append(box)
                break
            text.remove()
