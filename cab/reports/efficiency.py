"""Costs against length as curves, with the length at which each attention becomes cheaper than softmax attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

UNITS = {"time": ("seconds", 1e3, "milliseconds"), "memory": ("bytes", 2.0**-20, "MiB")}
"""Column of the costs, factor and unit that curves are drawn in."""


class Curves(NamedTuple):
    """One resource of one pattern and phase.

    ``curves`` has the columns attention, length, value; ``crossings`` are (attention, length, value), on the
    attention's own curve, of the efficiency lengths inside the measured range.
    """

    pattern: str
    phase: str
    resource: str
    unit: str
    curves: pd.DataFrame
    crossings: list[tuple[str, float, float]]


def cost_curves(costs: pd.DataFrame, lengths: pd.DataFrame) -> Iterator[Curves]:
    """The curves of all patterns and phases in ``costs``, time before memory.

    Args:
        costs: columns attention, pattern, phase, length, seconds, bytes; what was not measured is NaN.
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
    """``curve`` at ``length``, straight between measured points on logarithmic axes; NaN outside of them."""
    import numpy as np

    known = curve[curve["value"] > 0].sort_values("length")
    if not math.isfinite(length) or known.empty or not known["length"].min() <= length <= known["length"].max():
        return math.nan
    return float(np.exp(np.interp(np.log(length), np.log(known["length"]), np.log(known["value"]))))
