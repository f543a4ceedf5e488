"""Metrics that a task reports at several sequence lengths, such as perplexity: extrapolation (Figure 3c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def extrapolation_curves(measured: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the curves in the results of one pattern: ``{(place, metric): columns attention, length, value}``.

    Args: measured: rows of :func:`cab.reports.leaderboard.measurements`; metric ``ppl_512`` at length 512 is a point of
            curve ``ppl``.
    """
    points = measured.dropna(subset=["at_length", "value"])
    names = zip(points["metric"], points["at_length"], strict=True)
    points = points.assign(
        metric=[name.removesuffix(f"_{length:.0f}") for name, length in names],
        length=points["at_length"].astype(int),
    )
    return {
        (str(place), str(metric)): part[["attention", "length", "value"]]
        for (place, metric), part in points.groupby(["place", "metric"])
    }
