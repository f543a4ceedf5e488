"""Rank agreement of attentions between two sets of results, such as mini runs and published results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cab.patterns import pattern_rank
from cab.scoring.correlation import ENOUGH
from cab.scoring.normalization import population
from cab.scoring.statistics import correlation_interval

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["pattern", "task", "spearman", "low", "high", "p_value", "shared", "disagree", "note"]


def rank_agreement(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's rank correlation of the compositional indices of two sets of results, per pattern and task.

    Args:
        one, other: tables returned by :func:`cab.scoring.score_table`.

    Returns:
        Columns pattern, task (``all`` for the average), spearman, low and high (95% confidence interval by Fisher's z
            with the variance of Bonett and Wright 2000, (1 + rho^2 / 2) / (n - 3)), p_value (exact for up to seven
            attentions, otherwise Student's t), shared, disagree (the attention whose ranks differ most, and both ranks
            among the shared attentions), note. Attention ``none`` is excluded, as in the other correlations.
    """
    import pandas as pd

    keys = ["pattern", "task"]
    one, other = (table.assign(task=table["task"].str.lower()) for table in (one, other))
    both = one.merge(other, on=[*keys, "attention"], suffixes=("_one", "_other")).dropna(
        subset=["index_one", "index_other"]
    )
    rows = []
    for (pattern, task), part in both.groupby(keys, sort=False):
        shared = part[part["attention"].isin(population(part["attention"]))].set_index("attention")
        rows.append((str(pattern), str(task), *agreement(shared["index_one"], shared["index_other"])))
    rows.sort(key=lambda row: (pattern_rank(row[0]), row[1] != "all"))
    return pd.DataFrame(rows, columns=COLUMNS)


def agreement(x: pd.Series, y: pd.Series) -> tuple[float, float, float, float, int, str, str]:
    """Return the columns of :data:`COLUMNS` from the third on, for two scores per attention (higher is better)."""
    size = len(x)
    if size < 3 or x.nunique() == 1 or y.nunique() == 1:
        note = (
            f"{size} shared attentions, at least 3 required"
            if size < 3
            else "undefined: all attentions have the same score"
        )
        return math.nan, math.nan, math.nan, math.nan, size, "", note
    ranks = x.rank(ascending=False), y.rank(ascending=False)
    rho = float(ranks[0].corr(ranks[1]))
    low, high = correlation_interval(rho, size, ranks=True)
    apart = (ranks[0] - ranks[1]).abs()
    name = str(apart.idxmax())
    disagree = f"{name}: {ranks[0][name]:g} and {ranks[1][name]:g}" if apart.max() else ""
    note = f"inconclusive: only {size} shared attentions" if size < ENOUGH else ""
    return rho, low, high, _p_value(x, y), size, disagree, note


def _p_value(x: pd.Series, y: pd.Series) -> float:
    """Return the two-sided p-value of the hypothesis of no correlation."""
    from scipy import stats

    if len(x) > 7:
        return float(stats.spearmanr(x, y).pvalue)
    found = stats.permutation_test(
        (x,), lambda values: stats.spearmanr(values, y).statistic, permutation_type="pairings", n_resamples=math.inf
    )
    return float(found.pvalue)
