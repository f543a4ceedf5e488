"""Figures of the leaderboard and the paper (Figures 2, 3 and 4): each function draws a table with matplotlib.

Attentions differ in color and marker, so that no figure relies on color alone.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import unicodedata
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import Bbox

from cab.files.numbers import is_finite
from cab.files.text_table import ABSENT
from cab.results.cells import SOFTMAX
from cab.results.formats import plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

INK, MUTED = "#1f2328", "#59636e"
POSITIVE, NEGATIVE = "#0a5ec2", "#b84a05"
SERIES = (
    "#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e",
    "#0e7490", "#9a6700", "#bf3989", "#4d5561", "#7a3e00",
)  # fmt: skip
MARKERS = "os^Dv<>PXph*d"
HEAT = LinearSegmentedColormap.from_list("heat", ["#e0a880", "#ffffff", "#80abdc"])
"""Colors from -1 to 1; black text is readable on all of them."""
MARK_SIZE = 5
"""Size of a point in a figure of recall, in points of text."""
FIGURE_WIDTH = 3.75
"""Width of a figure, in inches."""
LONGEST_LABEL = 22  # characters of a name; a longer one is cut, or widens the figure
STYLE = Path(__file__).with_suffix(".mplstyle")


@contextmanager
def style() -> Iterator[None]:
    """Apply the style for drawing and writing figures, as a context manager or decorator."""
    with warnings.catch_warnings(), matplotlib.rc_context(fname=STYLE):
        # the page uses the reader's fonts, which have more glyphs than matplotlib's default font
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def image(figure: Figure, title: str) -> Markup:
    """Return ``figure`` as an image of the page; ``title`` is its text for screen readers."""
    file = io.BytesIO()
    with style():
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    source = base64.b64encode(file.getvalue()).decode()
    html = Markup('<img alt="{}" style="max-width: {:.2f}in" src="data:image/svg+xml;base64,{}">')
    return html.format(title, figure.get_figwidth() * 1.3, source)


def short(name: str) -> str:
    """Return ``name``, truncated to fit the figure; wide characters of East Asian scripts count twice."""
    ends = list(itertools.accumulate(1 + (unicodedata.east_asian_width(char) in "WF") for char in name))
    return name if not ends or ends[-1] <= LONGEST_LABEL else name[: bisect_right(ends, LONGEST_LABEL - 1)] + "…"


def looks(attentions: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return color, marker and line of each attention, equal in all figures; the baseline is a thick black line."""
    styles = {SOFTMAX: {"color": INK, "marker": "o", "linewidth": 2.2}}
    for rank, name in enumerate(sorted(set(attentions) - {SOFTMAX})):
        line = ("-", "--", ":", "-.")[rank // len(SERIES) % 4]
        color, marker = SERIES[rank % len(SERIES)], MARKERS[rank % len(MARKERS)]
        styles[name] = {"color": color, "marker": marker, "linestyle": line, "linewidth": 1.3}
    return styles


def reference_first(names: Iterable[str]) -> list[str]:
    """Return the names in alphabetical order, the baseline first."""
    return sorted(set(names), key=lambda name: (name != SOFTMAX, name))


def _axes(height: float, title: str, labels: Iterable[str] = ()) -> tuple[Figure, Axes]:
    """Return the axes of a figure, which is wider with labels of rows that are not shortened."""
    longest = max(map(len, labels), default=0)
    figure = Figure(figsize=(FIGURE_WIDTH + 0.072 * max(0, longest - LONGEST_LABEL), height))
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Show one label per row on the left, without ticks and grid."""
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _legend_below(figure: Figure) -> None:
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1, labelspacing=0.25)


@style()
def correlation_figure(pairs: pd.DataFrame, *, order: Sequence[str], title: str) -> Figure:
    """Draw Pearson correlations as a heat map of the names in ``order``: blue positive, orange negative.

    ``pairs`` has the columns a, b and pearson, in either order of a and b.
    """
    figure, axes = _axes(0.55 + 0.5 * max(len(order), 2), title)
    values = np.eye(len(order))
    for one, other, correlation in pairs[["a", "b", "pearson"]].itertuples(index=False, name=None):
        row, column = order.index(one), order.index(other)
        values[row, column] = values[column, row] = correlation
    axes.imshow(np.nan_to_num(values), cmap=HEAT, vmin=-1, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        text = plain(value, 2) if is_finite(value) else ABSENT
        axes.text(column, row, text, ha="center", va="center", fontsize=7)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    labels = [short(name) for name in order]
    axes.set_xticks(range(len(order)), labels)
    axes.set_yticks(range(len(order)), labels)
    axes.tick_params(length=0, labelcolor=INK)
    return figure


@style()
def benefit_figure(benefit: pd.DataFrame, *, title: str) -> Figure:
    """Draw the index of the best efficient attention, softmax attention and no attention, per task (Figure 3b).

    ``benefit`` has the columns task, efficient, vanilla and without.
    """
    shown = [
        ("efficient", "best efficient attention", MUTED),
        ("vanilla", "softmax attention", INK),
        ("without", "no attention", NEGATIVE),
    ]
    figure, axes = _axes(0.95 + 0.45 * len(benefit), title)
    _label_rows(axes, [short(task) for task in benefit["task"]])
    axes.axvline(0, color=MUTED, linewidth=0.8)
    for offset, (column, label, color) in zip((-0.26, 0, 0.26), shown, strict=True):
        axes.barh(np.arange(len(benefit)) + offset, benefit[column], 0.24, color=color, label=label)
    axes.invert_yaxis()
    axes.set_xlabel("compositional index, higher is better")
    _legend_below(figure)
    return figure


@style()
def length_figure(
    curves: pd.DataFrame,
    *,
    title: str,
    ylabel: str,
    looks: Mapping[str, Mapping[str, Any]],
    log: bool = True,
) -> Figure:
    """Draw a quantity by sequence length, one line per attention (Figures 2a, 2b, 3c).

    Args:
        curves: columns attention, length, value; NaN values are gaps.
        looks: style of each attention.
    """
    names = reference_first(curves["attention"])
    figure, axes = _axes(2.85 + 0.17 * math.ceil(len(names) / 3), title)
    for name in names:
        curve = curves[curves["attention"] == name].sort_values("length")
        axes.plot(curve["length"], curve["value"], **looks[name], markersize=3.6, label=short(name))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    if log and (curves["value"] > 0).any():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("sequence length")
    axes.set_ylabel(ylabel)
    _legend_below(figure)
    return figure


@style()
def efficiency_length_figure(lengths: pd.DataFrame, *, title: str) -> Figure:
    """Draw the efficiency lengths of each attention for time and memory (Figure 2c).

    ``lengths`` has the columns attention, resource and length. Length 0 (always cheaper) is drawn as a word, infinity
    (never cheaper) as a hatched bar across the figure, and NaN not at all.
    """
    memory = lengths[lengths["resource"] == "memory"].sort_values("length", ascending=False, na_position="first")
    order = list(dict.fromkeys([*memory["attention"], *lengths["attention"]]))
    figure, axes = _axes(0.95 + 0.3 * len(order), title, order)
    _label_rows(axes, order)
    finite = lengths["length"][lengths["length"] < math.inf]
    end = 1.05 * finite.max() if finite.max() > 0 else 1.0
    axes.set_xlim(0, end)
    for offset, resource, color in ((-0.19, "time", POSITIVE), (0.19, "memory", NEGATIVE)):
        values = lengths[lengths["resource"] == resource].set_index("attention")["length"].reindex(order)
        rows = np.arange(len(order)) + offset
        bars = axes.barh(rows, values.fillna(0).clip(upper=end), 0.34, color=color, label=resource)
        for bar, row, length in zip(bars, rows, values, strict=True):
            if length == math.inf:
                bar.set(facecolor="none", edgecolor=color, hatch="////", linewidth=0)
            axes.text(0.01 * end, row, {0.0: "always", math.inf: "never"}.get(length, ""), size=6.5, va="center")
    axes.set_xlabel("efficiency length, lower is better")
    _legend_below(figure)
    return figure


def frontier(points: pd.DataFrame) -> list[str]:
    """Return the attentions that no other attention beats in both cost and K, cheapest first."""
    ranked = points.sort_values(["cost", "K"], ascending=[True, False], kind="stable")
    return list(ranked.index[ranked["K"] > ranked["K"].cummax().shift(fill_value=-math.inf)])


@style()
def frontier_figure(points: pd.DataFrame, *, title: str, label: str, size: tuple[float, float] = (4.3, 5.2)) -> Figure:
    """Draw K against a cost on a logarithmic axis; a line joins the attentions that no other beats in both.

    Every mark has a name, first those of the user's attentions (diamonds) and of the frontier. Attentions with a single
    seed are hollow.

    Args:
        points: columns cost, K, own and single, by name.
        size: in inches.
    """
    figure = Figure(figsize=size)
    axes = figure.subplots()
    axes.set(title=title, xlabel=label, ylabel="K, %", xscale="log", ylim=(-5, 108))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if points["cost"].max() > 100 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,g}")
    best = frontier(points)
    steps = points.loc[best, ["cost", "K"]].to_numpy()
    line = np.repeat(steps, 2, axis=0)[:-1]
    line[1::2, 0] = steps[1:, 0]
    axes.plot(*line.T, color=POSITIVE, linewidth=1)
    rows = points[["cost", "K", "own", "single"]].itertuples(name=None)
    for name, cost, share, is_own, is_single in rows:
        shape = "D" if is_own else "o" if name in best else "s"
        fill = "none" if is_single else "full"
        axes.plot(cost, share, shape, color=MUTED if shape == "s" else POSITIVE, fillstyle=fill, ms=MARK_SIZE)
    axes.margins(x=0.18)
    figure.draw_without_rendering()  # lays out the axes, so that positions are known
    ranked = sorted(points.index, key=lambda name: (not points["own"][name], name not in best))
    labels = {name: short(name) + "*" * bool(points["single"][name]) for name in ranked}
    _name_points(axes, {name: (points["cost"][name], points["K"][name]) for name in ranked}, labels, line)
    return figure


def _name_points(
    axes: Axes, points: Mapping[str, tuple[float, float]], labels: Mapping[str, str], line: np.ndarray
) -> None:
    """Write its label at every point: as near as labels, points and the corners of ``line`` allow, joined if it is far.

    The labels of overlapping points are one text, one below the other.
    """
    inside, scale = axes.get_window_extent(), 72 / axes.figure.dpi
    centers = {name: axes.transData.transform(point) for name, point in points.items()}
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in centers.values()]
    for corners in itertools.pairwise(axes.transData.transform(line)):
        low, high = np.min(corners, axis=0), np.max(corners, axis=0)
        taken.append(Bbox([low - 1, high + 1]))
    for name, names in _overlapping(centers, reach=MARK_SIZE / scale).items():
        x, y = centers[name]
        label = "\n".join(labels[each] for each in names)
        text = axes.annotate(label, points[name], (0, 0), textcoords="offset points", ha="center", va="center")
        text.set(fontsize=7, color=INK, multialignment="left", linespacing=1)
        width, height = text.get_window_extent().size
        for distance, angle in itertools.product(range(8, 200, 5), (0, 6, 3, 9, 1, 5, 7, 11, 2, 4, 8, 10)):
            dx = (distance + width / 2) * math.cos(math.pi * angle / 6)
            dy = distance * math.sin(math.pi * angle / 6)
            box = Bbox.from_bounds(x + dx - width / 2 - 2, y + dy - height / 2, width + 4, height)
            if inside.contains(*box.min) and inside.contains(*box.max) and not box.count_overlaps(taken):
                break
        taken.append(box)
        text.set_position((dx * scale, dy * scale))
        if distance > 13:
            near = np.clip((x, y), box.min, box.max)
            axes.plot(*axes.transData.inverted().transform([(x, y), near]).T, color=MUTED, linewidth=0.4, zorder=1)


def _overlapping(centers: Mapping[str, np.ndarray], *, reach: float) -> dict[str, list[str]]:
    """Return the names of points by the first one, from which they are at most ``reach`` pixels away."""
    groups: dict[str, list[str]] = {}
    for name, center in centers.items():
        near = (first for first in groups if np.abs(centers[first] - center).max() <= reach)
        groups.setdefault(next(near, name), []).append(name)
    return groups
