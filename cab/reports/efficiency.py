"""Cost curves by length, with the length above which each attention is cheaper than softmax attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from cab.efficiency.cost import DECODING
from cab.files.disk import write_figure
from cab.reports import figures
from cab.reports.sections import Block, Picture, Section
from cab.reports.tables import data_table, element_id
from cab.scoring.efficiency_length import efficiency_length

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cab.efficiency.cost import Cost

COLUMNS = ["attention", "pattern", "phase", "length", "seconds", "bytes"]
RESOURCES = {"time": ("seconds", 1e3), "memory": ("bytes", 2.0**-20)}
"""Column of the costs, and factor to milliseconds or MiB."""


class CostFigure(NamedTuple):
    """The cost of every attention by length, in one pattern and phase."""

    pattern: str
    phase: str
    resource: str
    unit: str
    figure: Figure


def cost_figures(costs: pd.DataFrame, lengths: pd.DataFrame | None = None) -> Iterator[CostFigure]:
    """Yield the figures of all patterns and phases, time before memory; efficiency ``lengths`` are drawn as rings."""
    looks = figures.looks(costs["attention"])
    for (pattern, phase), rows in costs.groupby(["pattern", "phase"], sort=False):
        units = ("ms per token", "MiB of state") if phase in DECODING else ("ms per call", "MiB")
        for (resource, (column, factor)), unit in zip(RESOURCES.items(), units, strict=True):
            curves = rows[["attention", "length"]].assign(value=rows[column] * factor)
            rings = []
            if lengths is not None:
                of_phase = (lengths["pattern"] == pattern) & (lengths["phase"] == phase)
                rings = list(_crossings(curves, lengths[of_phase & (lengths["resource"] == resource)]))
            title = f"{pattern} {phase}: {resource}"
            figure = figures.length_figure(curves, title=title, ylabel=unit, looks=looks, crossings=rings)
            yield CostFigure(str(pattern), str(phase), resource, unit, figure)


def _crossings(curves: pd.DataFrame, lengths: pd.DataFrame) -> Iterator[tuple[str, float, float]]:
    """Yield attention, efficiency length and interpolated cost of each length within the measured range."""
    for name, length in lengths[["attention", "length"]].itertuples(index=False, name=None):
        curve = curves[(curves["attention"] == name) & (curves["value"] > 0)].sort_values("length")
        if len(curve) and curve["length"].iloc[0] <= length <= curve["length"].iloc[-1]:
            value = np.exp(np.interp(np.log(length), np.log(curve["length"]), np.log(curve["value"])))
            yield name, length, float(value)


def efficiency_section(costs: pd.DataFrame) -> Section:
    """Return the section of costs: one block per pattern and phase, with the efficiency lengths."""
    lengths = efficiency_length(costs)
    pictures: dict[tuple[str, str], list[Picture]] = {}
    for pattern, phase, resource, unit, figure in cost_figures(costs, lengths):
        title = f"Pattern {pattern}, {phase}: {resource} by length, {unit}"
        file = f"figure2{'a' if resource == 'time' else 'b'}-{pattern}-{phase}-{resource}"
        pictures.setdefault((pattern, phase), []).append(Picture(figure, title, file))
    blocks = []
    for (pattern, phase), shown in pictures.items():
        rows = lengths[(lengths["pattern"] == pattern) & (lengths["phase"] == phase)]
        figure = figures.efficiency_length_figure(rows, title="Efficiency length")
        caption = f"Pattern {pattern}, {phase}: efficiency length relative to softmax attention"
        shown.append(Picture(figure, caption, f"figure2c-{pattern}-{phase}"))
        wide = rows.pivot(index="attention", columns="resource", values=["length", "low", "high", "r2"])
        wide.columns = [", ".join(reversed(names)) for names in wide.columns]
        table_id = element_id("efficiency", pattern, phase)
        table = data_table(wide.reset_index(), table_id=table_id, caption=caption)
        text = (
            "Rings mark the efficiency length, above which the attention is cheaper than softmax attention (∞: never)."
        )
        blocks.append(Block(f"{pattern}, {phase}", text, shown, [table]))
    return Section("efficiency", "Efficiency", blocks=blocks)


def plot(costs: Iterable[Cost], folder: Path) -> list[Path]:
    """Plot time and memory against length: one PNG per pattern, phase and resource."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = [[getattr(cost, name) for name in COLUMNS] for cost in costs if cost.status == "ok"]
    paths = []
    for pattern, phase, resource, _, figure in cost_figures(pd.DataFrame(measured, columns=COLUMNS)):
        with figures.style():
            paths.append(write_figure(figure, folder / f"{pattern}-{phase}-{resource}.png".lower(), dpi=200))
    return paths
