"""Metrics that a task reports at several sequence lengths, as ``ppl_512``: extrapolation (Figure 3c)."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

AT_LENGTH = re.compile(r"(?P<metric>.+)_(?P<length>[1-9]\d{0,8})")


def is_curve(metrics: pd.Series) -> pd.Series:
    """Which of the metrics' names are those of a point on a curve."""
    return metrics.str.fullmatch(AT_LENGTH.pattern)


def extrapolation_curves(measured: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Curves in the results of one pattern: ``{(cell, metric): columns attention, length, value}``.

    Args:
        measured: rows of :func:`cab.reports.leaderboard.measurements`.
    """
    points = measured[is_curve(measured["metric"])]
    if points.empty:
        return {}
    parts = points["metric"].str.extract(AT_LENGTH)
    points = points.assign(metric=parts["metric"], length=parts["length"].astype(int))
    points = points[points["value"].map(math.isfinite)]
    return {
        (str(cell), str(metric)): part[["attention", "length", "value"]]
        for (cell, metric), part in points.groupby(["cell", "metric"])
    }
