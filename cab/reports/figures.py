"""Figures of the leaderboard and the paper (Figures 2, 3 and 4): each function draws a table with matplotlib.

Attentions differ in color and marker, so that no figure relies on color alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from cab.reports.palette import GRID, INK, MUTED, NEGATIVE, POSITIVE, SERIES
from cab.reports.tables import MISSING, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MARKERS = "os^Dv<>PXph*d"

REFERENCE = "vanilla"
"""Softmax attention, the baseline."""

WIDTH = 3.75
_LONGEST_LABEL = 22


@contextmanager
def style() -> Iterator[None]:
    """Apply the style for drawing and writing figures, as a context manager or decorator."""
    with (
        warnings.catch_warnings(),
        matplotlib.rc_context(
            {
                "font.size": 8.5,
                "font.family": "sans-serif",
                "text.parse_math": False,  # names may contain dollar signs
                "text.color": INK,
                "axes.labelcolor": MUTED,
                "axes.labelsize": 8,
                "axes.edgecolor": GRID,
                "axes.titlesize": 9.5,
                "axes.titlelocation": "left",
                "axes.titleweight": "bold",
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": GRID,
                "grid.linewidth": 0.6,
                "xtick.color": GRID,
                "ytick.color": GRID,
                "xtick.labelcolor": MUTED,
                "ytick.labelcolor": INK,
                "legend.frameon": False,
                "legend.fontsize": 8,
                "svg.fonttype": "none",
                "svg.hashsalt": "cab",  # reproducible output
                "pdf.fonttype": 42,
            }
        ),
    ):
        # the page uses the reader's fonts, which have more glyphs than matplotlib's default font
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


class Mark(NamedTuple):
    """The attention and the value, as text, that a graphical mark represents."""

    name: str
    text: str


def mark(artist: Artist, name: str, text: str) -> None:
    """Attach ``name`` and ``text`` to a mark, encoded in its SVG identifier."""
    artist.set_gid(f"mark:{quote(name, safe='')}:{quote(text, safe='')}")


def read_mark(identifier: str | None) -> Mark | None:
    """Decode the mark of an SVG identifier; None for other identifiers."""
    if not identifier or not identifier.startswith("mark:"):
        return None
    _, name, text = identifier.split(":")
    return Mark(unquote(name), unquote(text))


def short(name: str) -> str:
    """Return ``name``, truncated to fit the figure."""
    return name if len(name) <= _LONGEST_LABEL else name[: _LONGEST_LABEL - 1] + "…"


class SeriesStyle(NamedTuple):
    """Color, marker and line style of an attention."""

    color: str
    marker: str
    line: str


def looks(attentions: Iterable[str]) -> dict[str, SeriesStyle]:
    """Return color, marker and line style of each attention, consistent across figures; the baseline is black."""
    others = sorted(set(attentions) - {REFERENCE})
    lines = ("-", "--", ":", "-.")
    look = {
        name: SeriesStyle(
            SERIES[rank % len(SERIES)], MARKERS[rank % len(MARKERS)], lines[rank // len(SERIES) % len(lines)]
        )
        for rank, name in enumerate(others)
    }
    return {REFERENCE: SeriesStyle(INK, "o", "-"), **look}


def _axes(height: float, *, title: str, labels: Iterable[str] = (), bottom: float = 0.42) -> tuple[Figure, Axes]:
    """Return axes in a figure ``WIDTH`` inches wide, with space for ``labels`` on the left; margins in inches.

    A figure with longer labels than :func:`short` gives is wider. Margins follow from label lengths, because measuring
    the text draws every figure twice, and the page has other fonts.
    """
    longest = max(map(len, labels), default=0)
    more = 0.072 * max(0, longest - _LONGEST_LABEL)
    left = 0.12 + 0.066 * min(longest, _LONGEST_LABEL) + more
    width = WIDTH + more
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((left / width, bottom / height, 1 - (left + 0.1) / width, 1 - (bottom + 0.26) / height))
    axes.set_title(title, x=-(left - 0.05) / (width - left - 0.1))
    return figure, axes


def _rows(axes: Axes, labels: list[str]) -> None:
    """Show one label per row on the left, without ticks and grid."""
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


@style()
def index_figure(scores: pd.DataFrame, *, title: str) -> Figure:
    """Draw the compositional index of each attention with its confidence interval, best first.

    Args:
            scores: columns attention, index, low, high; rows without an index are omitted.
    """
    shown = scores.dropna(subset=["index"]).sort_values(["index", "attention"], ascending=[True, False])
    labels = [short(name) for name in shown["attention"]]
    figure, axes = _axes(0.68 + 0.205 * max(len(shown), 2), title=title, labels=labels)
    _rows(axes, labels)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("compositional index, higher is better")
    for row, (name, ci, low, high) in enumerate(shown[["attention", "index", "low", "high"]].itertuples(index=False)):
        color = INK if name == REFERENCE else POSITIVE
        words = f"{name}: {ci:.3f}"
        if math.isfinite(low) and math.isfinite(high):
            words += f", 95% confidence interval {low:.3f} to {high:.3f}"
            (interval,) = axes.plot([low, high], [row, row], color=color, linewidth=1.6, solid_capstyle="round")
            mark(interval, name, words)
        (dot,) = axes.plot([ci], [row], "o", color=color, markersize=5)
        mark(dot, name, words)
        if name == REFERENCE:
            axes.axvline(ci, color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)), zorder=0)
    axes.set_ylim(-0.6, max(len(shown), 2) - 0.4)
    return figure


@style()
def correlation_figure(pairs: pd.DataFrame, *, order: Sequence[str], title: str) -> Figure:
    """Draw Pearson correlations as a heat map: blue for positive, orange for negative values.

    Args:
        pairs: columns a, b, pearson, shared, in either order of a and b; NaN is drawn as an en dash.
        order: names of the rows and columns.
    """
    labels = [short(name) for name in order]
    size = len(labels)
    figure, axes = _axes(0.55 + 0.5 * max(size, 2), title=title, labels=labels, bottom=0.25)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks(range(size), labels)
    axes.set_yticks(range(size), labels)
    axes.tick_params(length=0, labelcolor=INK)
    place = {name: rank for rank, name in enumerate(order)}
    for first, second, r, n in pairs[["a", "b", "pearson", "shared"]].itertuples(index=False, name=None):
        for row, column in {(place[first], place[second]), (place[second], place[first])}:
            _heat_cell(axes, row, column, r, words=f"{labels[row]} with {labels[column]}, {n} shared attentions")
    for row in range(size):
        _heat_cell(axes, row, row, 1.0, words=f"{labels[row]} with itself")
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    return figure


def _heat_cell(axes: Axes, row: int, column: int, value: float, *, words: str) -> None:
    known = math.isfinite(value)
    color = (POSITIVE if value >= 0 else NEGATIVE) if known else GRID
    strength = 0.08 + 0.42 * abs(value) if known else 0.25
    cell = Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=color, alpha=strength, linewidth=0)
    mark(axes.add_patch(cell), "", f"{words}: {plain(value, 2)}" if known else f"{words}: undefined")
    axes.text(column, row, plain(value, 2) if known else MISSING, ha="center", va="center")


@style()
def benefit_figure(benefit: pd.DataFrame, *, title: str) -> Figure:
    """Draw the index of the best efficient attention, softmax attention and no attention, per task (Figure 3b).

    Args:
        benefit: columns task, efficient, vanilla, without.
    """
    shown = [
        ("efficient", "best efficient attention", MUTED),
        ("vanilla", "softmax attention", INK),
        ("without", "no attention", NEGATIVE),
    ]
    labels = [short(task) for task in benefit["task"]]
    legend = _legend_height([label for _, label, _ in shown])
    figure, axes = _axes(0.75 + 0.45 * len(benefit) + legend, title=title, labels=labels, bottom=0.45 + legend)
    _rows(axes, labels)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    for offset, (column, label, color) in zip((-0.26, 0, 0.26), shown, strict=True):
        bars = axes.barh([row + offset for row in range(len(benefit))], benefit[column], 0.24, color=color, label=label)
        for bar, task, value in zip(bars, benefit["task"], benefit[column], strict=True):
            mark(bar, "", f"{task}, {label}: {value:.3f}")
    axes.invert_yaxis()
    axes.set_xlabel("compositional index, higher is better")
    _legend_below(figure, axes)
    return figure


@style()
def length_figure(
    curves: pd.DataFrame,
    *,
    title: str,
    ylabel: str,
    looks: dict[str, SeriesStyle],
    log: bool = True,
    crossings: Sequence[tuple[str, float, float]] = (),
) -> Figure:
    """Draw a quantity by sequence length, one line per attention (Figures 2a, 2b, 3c).

    Args:
        curves: columns attention, length, value; NaN values are gaps.
        crossings: (attention, length, value) of each efficiency length, drawn as a ring.
    """
    names = sorted(curves["attention"].unique(), key=lambda name: (name != REFERENCE, name))
    legend = _legend_height([short(name) for name in names])
    figure, axes = _axes(2.85 + legend, title=title, labels=["12345.6"], bottom=0.5 + legend)
    for name in names:
        own = curves[curves["attention"] == name].sort_values("length")
        look = looks[name]
        width = 2.2 if name == REFERENCE else 1.3
        (line,) = axes.plot(
            own["length"],
            own["value"],
            color=look.color,
            marker=look.marker,
            linestyle=look.line,
            markersize=3.6,
            linewidth=width,
            label=short(name),
        )
        ends = own.dropna(subset=["value"])
        mark(line, name, f"{name}: {_ends(ends)}")
    for name, length, value in crossings:
        (ring,) = axes.plot([length], [value], "o", markersize=9, markerfacecolor="none", markeredgewidth=1.4)
        ring.set_markeredgecolor(looks[name].color)
        mark(ring, name, f"{name} is cheaper than softmax attention above length {length:,.0f}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda length, _: f"{length:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("sequence length")
    axes.set_ylabel(ylabel)
    _legend_below(figure, axes)
    return figure


def _ends(curve: pd.DataFrame) -> str:
    if curve.empty:
        return "no value"
    first, last = curve.iloc[0], curve.iloc[-1]
    return f"{first['value']:.4g} at length {first['length']:,.0f}, {last['value']:.4g} at {last['length']:,.0f}"


@style()
def efficiency_length_figure(lengths: pd.DataFrame, *, title: str) -> Figure:
    """Draw the efficiency lengths of each attention for time and memory (Figure 2c).

    Args:
        lengths: columns attention, resource, length. Length 0 (always cheaper) is drawn as a word, infinity (never
            cheaper) as a hatched bar across the figure, and NaN not at all.
    """
    memory = lengths[lengths["resource"] == "memory"].sort_values("length", ascending=False, na_position="first")
    order = list(dict.fromkeys([*memory["attention"], *lengths["attention"]]))
    legend = _legend_height(["time", "memory"])
    figure, axes = _axes(0.75 + 0.3 * len(order) + legend, title=title, labels=order, bottom=0.45 + legend)
    _rows(axes, order)
    finite = lengths["length"][lengths["length"] < math.inf]
    end = 1.05 * finite.max() if finite.max() > 0 else 1.0
    axes.set_xlim(0, end)
    for offset, resource, color in ((-0.19, "time", POSITIVE), (0.19, "memory", NEGATIVE)):
        own = lengths[lengths["resource"] == resource].set_index("attention")["length"].reindex(order)
        places = [row + offset for row in range(len(order))]
        bars = axes.barh(places, own.fillna(0).clip(upper=end), 0.34, color=color, label=resource)
        for bar, place, (name, length) in zip(bars, places, own.items(), strict=True):
            word = {0.0: "always", math.inf: "never"}.get(length, "")
            if word == "never":
                bar.set(facecolor="none", edgecolor=color, hatch="////", linewidth=0)
            axes.text(0.01 * end, place, word, color=color if word == "always" else INK, size=6.5, va="center")
            value = word or ("none" if math.isnan(length) else f"{length:,.0f}")
            mark(bar, str(name), f"{name}, {resource}: {value}")
    axes.set_xlabel("efficiency length, lower is better")
    _legend_below(figure, axes)
    return figure


def _legend_height(labels: Sequence[str]) -> float:
    return 0.17 * math.ceil(len(labels) / _legend_columns(labels))


def _legend_columns(labels: Iterable[str]) -> int:
    """Return the number of legend columns that fit into the figure."""
    return max(int((WIDTH - 0.2) / (0.45 + 0.06 * max(map(len, labels), default=1))), 1)


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = _legend_columns(labels)
    figure.legend(
        handles, labels, loc="lower left", ncols=columns, borderaxespad=0.2, columnspacing=1, labelspacing=0.25
    )
