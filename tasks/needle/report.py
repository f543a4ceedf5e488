"""Needles: retrieval accuracy of a language model by depth and length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from cab.results import figures
from cab.results.formats import numbers
from cab.results.sections import Block, Picture, TaskSection
from cab.results.summarize import summarize
from cab.results.table import Column, Row, Table

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
    runs = runs.join(runs["metric"].str.extract(METRIC)).dropna(subset=["length"])
    runs = runs.astype({"length": int, "depth": int, "value": float})
    runs = runs.sort_values(_CELL, kind="stable")
    table = summarize(runs, _CELL).assign(seeds=runs.groupby(_CELL)["seed"].nunique().to_list())
    return table.rename(columns={"mean": "accuracy", "sd": "deviation"})[[*_CELL, "accuracy", "deviation", "seeds"]]


def grids(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows with equal settings, with a heading."""
    for (preset, dataset, config_variant), rows in table.groupby(_PLACE, sort=False):
        yield f"Needles, {dataset}, preset {preset}" + (f": {config_variant}" if config_variant else ""), rows


@figures.style()
def grid_figure(grid: pd.DataFrame) -> Figure:
    """Draw one panel per attention: accuracy by length (columns) and depth (rows)."""
    names = figures.reference_first(grid["attention"])
    lengths, depths = sorted(grid["length"].unique()), sorted(grid["depth"].unique())
    rows = -(-len(names) // PANELS)
    figure = Figure(figsize=(2 * figures.WIDTH, 0.4 + rows * (0.7 + 0.24 * len(depths))))
    panels = figure.subplots(rows, PANELS, squeeze=False).flatten()
    for axes, name in zip(panels, names, strict=False):
        accuracy = grid[grid["attention"] == name].pivot(index="depth", columns="length", values="accuracy")
        values = accuracy.reindex(index=depths, columns=lengths).to_numpy()
        labels = [f"{depth}%" for depth in depths]
        figures.heat_map(axes, values, rows=labels, columns=[str(length) for length in lengths], missing="")
        axes.set_title(figures.short(name))
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    figure.supxlabel("length, tokens", fontsize=8, color=figures.MUTED)
    figure.supylabel("depth", fontsize=8, color=figures.MUTED)
    return figure


def needle_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per setting with a grid per attention and the table."""
    text = "Trained at the shortest length. Depth 0% is the start of the text, 100% the position before the questions."
    for number, (heading, grid) in enumerate(grids(table)):
        picture = Picture(grid_figure(grid), heading, heading.lower())
        yield Block(heading, text, [picture], [_grid_table(grid, f"needle-{number}-table", heading)])


def _grid_table(grid: pd.DataFrame, table_id: str, heading: str) -> Table:
    wide = grid.pivot(index=["attention", "length"], columns="depth", values="accuracy").reset_index()
    columns = [Column("length", numbers(wide["length"], 0))]
    for depth in sorted(grid["depth"].unique()):
        columns.append(Column(f"{depth}%", numbers(wide[depth], reason="length not supported"), "higher"))
    return Table([*map(Row, wide["attention"])], columns, caption=f"{heading}: accuracy by depth", id=table_id)


SECTION = TaskSection(
    name="needles",
    title="Needles",
    summary="Retrieval of facts from a long text by a language model, by depth and length. Not included in the "
    "compositional index.",
    table=needle_table,
    blocks=needle_blocks,
)
