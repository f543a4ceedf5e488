"""Pairwise comparison of attentions by their indices."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cab.scoring.index import Scores
from cab.scoring.statistics import Contrast, difference, judge

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["pattern", "task", "better", "worse", "difference", "low", "high", "verdict"]


def order_table(scores: Scores) -> pd.DataFrame:
    """Compare every two attentions with an index in a pattern and task.

    Returns:
        Columns pattern, task, better, worse (by index), difference, low and high (95% confidence interval of
            a single pair), verdict on ``better`` (see :func:`cab.scoring.statistics.judge`; the family is all
            pairs of the pattern and task). An index has no smallest relevant difference, so no pair is ``equivalent``.
    """
    import pandas as pd

    rows = []
    known = scores.table.dropna(subset=["index"])
    for (pattern, task), part in known.groupby(["pattern", "task"], sort=False):
        own = {name: scores.estimates[str(pattern), str(task), name] for name in part["attention"]}  # best first
        pairs = {pair: difference(own[pair[0]], own[pair[1]]) for pair in itertools.combinations(own, 2)}
        verdicts = judge({pair: Contrast(gap, 0.0, None) for pair, gap in pairs.items()})
        for pair, gap in pairs.items():
            rows.append((pattern, task, *pair, gap.value, *gap.interval(), str(verdicts[pair])))
    return pd.DataFrame(rows, columns=COLUMNS)
