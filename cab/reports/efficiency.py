"""Cost curves by length, with the length above which each attention is cheaper than softmax attention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

    from cab.efficiency.cost import Cost

UNITS = {"time": ("seconds", 1e3, "milliseconds"), "memory": ("bytes", 2.0**-20, "MiB")}
"""Column of the costs, factor and unit for plotting."""


class Curves(NamedTuple):
    """The cost curves of one resource, pattern and phase.

    Attributes: curves: columns attention, length, value. crossings: (attention, length, value) of the efficiency
        lengths within the measured range, on the attention's curve.
    """

    pattern: str
    phase: str
    resource: str
    unit: str
    curves: pd.DataFrame
    crossings: list[tuple[str, float, float]]


def cost_curves(costs: pd.DataFrame, lengths: pd.DataFrame) -> Iterator[Curves]:
    """Yield the curves of all patterns and phases in ``costs``, time before memory.

    Args:
        costs: columns attention, pattern, phase, length, seconds, bytes; NaN if not measured.
        lengths: columns attention, pattern, phase, resource, length.
    """
    for (pattern, phase), part in costs.groupby(["pattern", "phase"], sort=False):
        for resource, (column, factor, unit) in UNITS.items():
            curves = part[["attention", "length"]].assign(value=part[column] * factor)
            own = lengths[
                (lengths["pattern"] == pattern) & (lengths["phase"] == phase) & (lengths["resource"] == resource)
            ]
            crossings = [
                (name, length, _value_at(curves[curves["attention"] == name], length))
                for name, length in own[["attention", "length"]].itertuples(index=False, name=None)
            ]
            inside = [crossing for crossing in crossings if math.isfinite(crossing[2])]
            yield Curves(str(pattern), str(phase), resource, unit, curves, inside)


def _value_at(curve: pd.DataFrame, length: float) -> float:
    """Interpolate ``curve`` at ``length`` linearly on logarithmic axes; NaN outside the measured range."""
    import numpy as np

    known = curve[curve["value"] > 0].sort_values("length")
    if not math.isfinite(length) or known.empty or not known["length"].min() <= length <= known["length"].max():
        return math.nan
    return float(np.exp(np.interp(np.log(length), np.log(known["length"]), np.log(known["value"]))))


def plot(costs: Iterable[Cost], folder: Path) -> list[Path]:
    """Plot time and memory against length: one PNG per pattern, phase and resource."""
    import pandas as pd

    from cab.efficiency.cost import DECODING
    from cab.efficiency.report import by_phase
    from cab.reports.figures import length_figure, looks, style

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for group in by_phase(costs):
        pattern, phase = group[0].pattern, group[0].phase
        decodes = phase in DECODING
        resources = {
            "time": ("ms per token" if decodes else "ms per call", lambda cost: cost.seconds * 1e3),
            "memory": ("MiB of state" if decodes else "MiB", lambda cost: cost.bytes / 2**20),
        }
        for resource, (ylabel, value) in resources.items():
            rows = [(cost.attention, cost.length, value(cost)) for cost in group if cost.status == "ok"]
            curves = pd.DataFrame(rows, columns=["attention", "length", "value"])
            if curves.empty:
                continue
            title = f"{pattern} {phase}: {resource}"
            figure = length_figure(curves, title=title, ylabel=ylabel, looks=looks(curves["attention"]))
            paths.append(folder / f"{pattern}-{phase}-{resource}.png".lower())
            with style():
                figure.savefig(paths[-1], dpi=200)
    return paths
