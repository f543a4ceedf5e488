"""Needles: retrieval accuracy of a language model by depth and length."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cab.reports import figures, palette
from cab.reports.inline_svg import inline_svg
from cab.reports.sections import Block
from cab.reports.tables import Column, Entry, Row, Table, element_id, plain
from cab.reports.task_sections import TaskSection

if TYPE_CHECKING:
    import pandas as pd

METRIC = re.compile(r"accuracy_(?P<length>\d+)_depth_(?P<depth>\d+)")
_PLACE = ["preset", "dataset", "config_variant"]
_CELL = [*_PLACE, "attention", "length", "depth"]
PANELS = 3
"""Number of attentions per row of the figure."""


def needle_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per attention, length and depth over ``runs``.

    Columns preset, dataset, config_variant, attention, length in tokens, depth (middle of a part of the text, in
    percent from its start); accuracy (NaN for an unsupported length), its standard deviation (NaN for a single seed),
    seeds.
    """
    found = runs["metric"].str.extract(METRIC)
    runs = runs.assign(length=found["length"], depth=found["depth"]).dropna(subset=["length"])
    runs = runs.astype({"length": int, "depth": int, "value": float})
    table = runs.groupby(_CELL).agg(accuracy=("value", "mean"), deviation=("value", "std"), seeds=("seed", "nunique"))
    return table.reset_index()


def grids(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows with equal settings, with a heading."""
    for (preset, dataset, config_variant), own in table.groupby(_PLACE, sort=False):
        heading = f"Needles, {dataset}, preset {preset}" + (f": {config_variant}" if config_variant else "")
        yield heading, own


@figures.style()
def grid_figure(own: pd.DataFrame) -> Figure:
    """Draw one panel per attention: accuracy by length (columns) and depth (rows)."""
    names = sorted(own["attention"].unique(), key=lambda name: (name != figures.REFERENCE, name))
    lengths, depths = sorted(own["length"].unique()), sorted(own["depth"].unique())
    rows = -(-len(names) // PANELS)
    figure = Figure(figsize=(2 * figures.WIDTH, 0.4 + rows * (0.7 + 0.24 * len(depths))), layout="constrained")
    panels = figure.subplots(rows, PANELS, squeeze=False).flatten()
    for axes, name in zip(panels, names, strict=False):
        found = own[own["attention"] == name].set_index(["length", "depth"])["accuracy"]
        for column, length in enumerate(lengths):
            for row, depth in enumerate(depths):
                value = float(found.get((length, depth), math.nan))
                known = math.isfinite(value)
                strength = 0.04 + 0.5 * value if known else 0.25
                color = palette.POSITIVE if known else palette.GRID
                cell = Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=color, alpha=strength, linewidth=0)
                words = plain(value, 2) if known else "no result"
                figures.mark(axes.add_patch(cell), name, f"{name}, {length} tokens, depth {depth}%: {words}")
                axes.text(column, row, words if known else "", ha="center", va="center", fontsize=7)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{depth}%" for depth in depths])
        axes.tick_params(length=0)
        axes.set_xlim(-0.5, len(lengths) - 0.5)
        axes.set_ylim(len(depths) - 0.5, -0.5)
        axes.set_title(figures.short(name))
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    figure.supxlabel("length, tokens", fontsize=8, color=palette.MUTED)
    figure.supylabel("depth", fontsize=8, color=palette.MUTED)
    return figure


def needle_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per setting with a grid per attention and the table."""
    for number, (heading, own) in enumerate(grids(table)):
        svg = inline_svg(grid_figure(own), name=f"needle-{number}", title=heading)
        text = (
            "Trained at the shortest length. Depth 0% is the start of the text, 100% the position before the questions."
        )
        yield Block(heading, text, [Markup(svg)], [_grid_table(own, f"needle-{number}-table", heading)])


def _grid_table(own: pd.DataFrame, name: str, heading: str) -> Table:
    depths = sorted(own["depth"].unique())
    columns = [
        Column("attention"),
        Column("length"),
        *(Column(f"{depth}%", "↑", "higher is better") for depth in depths),
    ]
    table = Table(element_id(name), f"{heading}: accuracy by depth", columns, [])
    for (attention, _), found in own.groupby(["attention", "length"], sort=False):
        length = int(found["length"].iloc[0])
        accuracy = found.set_index("depth")["accuracy"].reindex(depths)
        cells = [
            Entry(plain(value, 3), value) if math.isfinite(value) else table.missing("length not supported")
            for value in accuracy
        ]
        table.rows.append(Row(str(attention), [Entry(str(length), length), *cells]))
    return table


SECTION = TaskSection(
    name="needles",
    title="Needles",
    summary="Retrieval of facts from a long text by a language model, by depth and length. Not included in the "
    "compositional index.",
    table=needle_table,
    blocks=needle_blocks,
    figures=lambda rows: ((heading.lower(), grid_figure(own)) for heading, own in grids(rows)),
)
