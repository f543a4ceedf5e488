"""Cost curves by length, with the length above which each attention is cheaper than softmax attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from cab.efficiency.cost import DECODING_PHASES
from cab.files.disk import write_figure
from cab.results import figures
from cab.results.efficiency_length import efficiency_length
from cab.results.sections import Block, Picture, Section
from cab.results.table import Table, element_id

if TYPE_CHECKING:
    from cab.efficiency.cost import Cost

CURVE_COLUMNS = ["attention", "pattern", "phase", "length", "seconds", "bytes"]
COST_AXES = (("a", "time", "seconds", 1e3), ("b", "memory", "bytes", 2.0**-20))
"""Part of Figure 2, resource, column of the costs, and factor to milliseconds or MiB."""
FEWEST_LENGTHS = 3
"""Least number of lengths of one setting in the section, if there are several settings."""


def cost_pictures(costs: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], list[Picture]]]:
    """Yield setting, pattern and phase, and time and memory of every attention by length."""
    looks = figures.looks(costs["attention"])
    for key, rows in costs.groupby(["setting", "pattern", "phase"], sort=False):
        setting, pattern, phase = map(str, key)
        file = element_id(*filter(None, (pattern, phase, setting)))
        units = ("ms per token", "MiB of state") if phase in DECODING_PHASES else ("ms per call", "MiB")
        pictures = []
        for (part, resource, column, factor), unit in zip(COST_AXES, units, strict=True):
            curves = rows[["attention", "length"]].assign(value=rows[column] * factor)
            figure = figures.length_figure(curves, title=f"{pattern} {phase}: {resource}", ylabel=unit, looks=looks)
            title = f"Pattern {pattern}, {phase}{setting and f' ({setting})'}: {resource} by length, {unit}"
            pictures.append(Picture(figure, title, f"figure2{part}-{file}-{resource}"))
        yield (setting, pattern, phase), pictures


def efficiency_section(costs: pd.DataFrame) -> Section:
    """Return the section of costs: one block per setting, pattern and phase, with the efficiency lengths.

    Of several settings, those with at least :data:`FEWEST_LENGTHS` lengths are shown.
    """
    if costs["setting"].nunique() > 1:
        costs = costs[costs.groupby("setting")["length"].transform("nunique") >= FEWEST_LENGTHS]
    lengths = efficiency_length(costs)
    blocks = []
    for (setting, pattern, phase), shown in cost_pictures(costs):
        rows = lengths[(lengths[["setting", "pattern", "phase"]] == [setting, pattern, phase]).all(axis=1)]
        name = f"{pattern}, {phase}{setting and f' ({setting})'}"
        caption = f"Pattern {name}: efficiency length relative to softmax attention"
        figure = figures.efficiency_length_figure(rows, title="Efficiency length")
        identifier = element_id(*filter(None, (pattern, phase, setting)))
        shown.append(Picture(figure, caption, f"figure2c-{identifier}"))
        wide = rows.pivot(index="attention", columns="resource", values=["length", "low", "high", "r2"])
        wide.columns = [", ".join(reversed(names)) for names in wide.columns]
        table = Table.of(wide.reset_index(), id=f"efficiency-{identifier}", caption=caption)
        text = "Above its efficiency length, an attention is cheaper than softmax attention (∞: never)."
        blocks.append(Block(name, text, shown, [table]))
    return Section("efficiency", "Efficiency", blocks=blocks)


def plot(costs: Iterable[Cost], folder: Path) -> list[Path]:
    """Plot time and memory against length: one PNG per pattern, phase and resource."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = [[getattr(cost, name) for name in CURVE_COLUMNS] for cost in costs if cost.status == "ok"]
    paths = []
    for _, pictures in cost_pictures(pd.DataFrame(measured, columns=CURVE_COLUMNS).assign(setting="")):
        for picture in pictures:
            name = picture.file.partition("-")[2].lower()  # without the number of the figure
            with figures.style():
                paths.append(write_figure(picture.figure, folder / f"{name}.png", dpi=200))
    return paths
