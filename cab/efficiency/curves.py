"""Cost curves by length, with the length above which each attention is cheaper than softmax attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from cab.efficiency.cost import DECODING
from cab.files.disk import write_figure
from cab.results import figures
from cab.results.efficiency_length import efficiency_length
from cab.results.sections import Block, Picture, Section
from cab.results.table import Table, element_id

if TYPE_CHECKING:
    from cab.efficiency.cost import Cost

COLUMNS = ["attention", "pattern", "phase", "length", "seconds", "bytes"]
RESOURCES = (("a", "time", "seconds", 1e3), ("b", "memory", "bytes", 2.0**-20))
"""Part of Figure 2, resource, column of the costs, and factor to milliseconds or MiB."""


def cost_pictures(costs: pd.DataFrame) -> Iterator[tuple[str, str, Picture]]:
    """Yield pattern, phase and cost of every attention by length, time before memory."""
    looks = figures.looks(costs["attention"])
    for (pattern, phase), rows in costs.groupby(["pattern", "phase"], sort=False):
        units = ("ms per token", "MiB of state") if phase in DECODING else ("ms per call", "MiB")
        for (part, resource, column, factor), unit in zip(RESOURCES, units, strict=True):
            curves = rows[["attention", "length"]].assign(value=rows[column] * factor)
            figure = figures.length_figure(curves, title=f"{pattern} {phase}: {resource}", ylabel=unit, looks=looks)
            title = f"Pattern {pattern}, {phase}: {resource} by length, {unit}"
            yield str(pattern), str(phase), Picture(figure, title, f"figure2{part}-{pattern}-{phase}-{resource}")


def efficiency_section(costs: pd.DataFrame) -> Section:
    """Return the section of costs: one block per pattern and phase, with the efficiency lengths."""
    lengths = efficiency_length(costs)
    pictures: dict[tuple[str, str], list[Picture]] = {}
    for pattern, phase, picture in cost_pictures(costs):
        pictures.setdefault((pattern, phase), []).append(picture)
    blocks = []
    for (pattern, phase), shown in pictures.items():
        rows = lengths[(lengths["pattern"] == pattern) & (lengths["phase"] == phase)]
        caption = f"Pattern {pattern}, {phase}: efficiency length relative to softmax attention"
        figure = figures.efficiency_length_figure(rows, title="Efficiency length")
        shown.append(Picture(figure, caption, f"figure2c-{pattern}-{phase}"))
        wide = rows.pivot(index="attention", columns="resource", values=["length", "low", "high", "r2"])
        wide.columns = [", ".join(reversed(names)) for names in wide.columns]
        table = Table.of(wide.reset_index(), id=element_id("efficiency", pattern, phase), caption=caption)
        text = "Above its efficiency length, an attention is cheaper than softmax attention (∞: never)."
        blocks.append(Block(f"{pattern}, {phase}", text, shown, [table]))
    return Section("efficiency", "Efficiency", blocks=blocks)


def plot(costs: Iterable[Cost], folder: Path) -> list[Path]:
    """Plot time and memory against length: one PNG per pattern, phase and resource."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = [[getattr(cost, name) for name in COLUMNS] for cost in costs if cost.status == "ok"]
    paths = []
    for _, _, picture in cost_pictures(pd.DataFrame(measured, columns=COLUMNS)):
        name = picture.file.partition("-")[2].lower()
        with figures.style():
            paths.append(write_figure(picture.figure, folder / f"{name}.png", dpi=200))
    return paths
