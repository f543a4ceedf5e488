"""Pairwise comparison of attentions: differences of indices and their significance over seeds."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from cab.scoring.index import Scores

if TYPE_CHECKING:
    import pandas as pd


class Comparison(NamedTuple):
    """The difference of two indices.

    Attributes:
        difference: difference of the indices.
        low, high: bounds of the 95% confidence interval over seeds.
        resolved: whether the difference is significant: ``yes``, ``no``, or ``unknown`` if either has a single seed.
    """

    difference: float
    low: float
    high: float
    resolved: str


def compare(scores: Scores, pattern: str, task: str, better: str, worse: str) -> Comparison:
    """Compare ``better`` with ``worse``; both must have an index in the pattern and task."""
    table = scores.table
    own = table[(table["pattern"] == pattern) & (table["task"] == task)].set_index("attention")["index"]
    return _comparison(scores, (pattern, task), (better, worse), float(own[better] - own[worse]))


def order_table(scores: Scores) -> pd.DataFrame:
    """Compare every two attentions with an index in a pattern and task.

    Returns:
        Columns pattern, task, better, worse, and those of :class:`Comparison`. The 95% level applies to a single pair:
            one of twenty pairs without a difference is expected to appear significant.
    """
    import pandas as pd

    rows = []
    known = scores.table.dropna(subset=["index"])
    for (pattern, task), part in known.groupby(["pattern", "task"], sort=False):
        index = dict(zip(part["attention"], part["index"], strict=True))  # best first
        place = (str(pattern), str(task))
        rows += [
            (*place, *pair, *_comparison(scores, place, pair, index[pair[0]] - index[pair[1]]))
            for pair in itertools.combinations(index, 2)
        ]
    return pd.DataFrame(rows, columns=["pattern", "task", "better", "worse", *Comparison._fields])


def _comparison(scores: Scores, place: tuple[str, str], pair: tuple[str, str], difference: float) -> Comparison:
    one, other = (scores.errors.get((*place, name)) for name in pair)
    if one is None or other is None:
        return Comparison(difference, math.nan, math.nan, "unknown")
    low, high = (one - other).interval(difference)
    return Comparison(difference, low, high, "yes" if low > 0 or high < 0 else "no")
