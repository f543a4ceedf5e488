"""Correlation of attention rankings between patterns and between tasks (Section 4.2, Appendix I, Figures 3a and 4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from cab.records.results import PAPER_DIR
from cab.scoring.index import AVERAGE
from cab.scoring.normalization import population
from cab.scoring.statistics import correlation_interval

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["kind", "pattern", "a", "b", "pearson", "shared", "p_value", "low", "high", "note"]
LRA = "LRA"
ENOUGH = 5
"""Minimum number of attentions for a conclusion; with 4, abs(r) exceeds 0.95 by chance in 1 of 20 cases."""


def pattern_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the Pearson correlation of the average indices of every two patterns, over their shared attentions.

    Args:
        scores: table returned by :func:`cab.scoring.score_table`.

    Returns: Columns kind (``pattern``), pattern (empty), a, b, pearson, shared (number of attentions), p_value
        (two-sided, of no correlation), low and high (95% confidence interval by Fisher's z, which requires four
        attentions), note. Attention ``none`` is excluded, and only the first of ``vanilla``, ``eager`` and ``flash``
        with an index is included, as in the paper. The correlation is NaN for fewer than three shared attentions, and
        the note says that it is inconclusive for fewer than five.
    """
    averages = scores[scores["task"] == AVERAGE]
    return _correlations(averages, "pattern", pattern="")


def benchmark_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of every pattern with Long Range Arena (Figure 3a, fifth column).

    Columns are those of :func:`pattern_correlation`, with kind ``benchmark`` and ``b`` LRA. The LRA scores are
    published accuracies averaged over five tasks (results/paper/lra.csv). They cover few attentions and a different
    training setup; the paper does not specify which LRA scores it used.
    """
    import pandas as pd

    averages = scores[scores["task"] == AVERAGE]
    accuracy = pd.read_csv(PAPER_DIR / "lra.csv", index_col="attention").mean(axis=1)
    arena = pd.DataFrame({"pattern": LRA, "attention": accuracy.index, "index": accuracy.to_numpy()})
    pairs = _correlations(pd.concat([averages, arena]), "pattern", pattern="")
    return pairs[pairs["b"] == LRA].assign(kind="benchmark").reset_index(drop=True)


def task_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of every two tasks ``a`` and ``b`` of each pattern, with kind ``task``."""
    import pandas as pd

    tasks = scores[scores["task"] != AVERAGE]
    tables = [_correlations(part, "task", pattern=name) for name, part in tasks.groupby("pattern", sort=False)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)


def _correlations(scores: pd.DataFrame, kind: str, *, pattern: Hashable) -> pd.DataFrame:
    import pandas as pd

    known = scores.dropna(subset=["index"])
    members = set(population(scores["attention"]))
    index: dict[str, dict[str, float]] = {name: {} for name in scores[kind].unique()}
    for name, attention, ci in known[[kind, "attention", "index"]].itertuples(index=False, name=None):
        index[name][attention] = ci
    rows = []
    for a, b in itertools.combinations(index, 2):
        shared = sorted(index[a].keys() & index[b].keys() & members)
        numbers = _pearson([index[a][name] for name in shared], [index[b][name] for name in shared])
        rows.append((kind, pattern, a, b, *numbers))
    return pd.DataFrame(rows, columns=COLUMNS)


def _pearson(x: list[float], y: list[float]) -> tuple[float, int, float, float, float, str]:
    """Return correlation, size, p-value, bounds of the confidence interval, and note."""
    from scipy import special

    size = len(x)
    if size < 3:
        return math.nan, size, math.nan, math.nan, math.nan, f"{size} shared attentions, at least 3 required"
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, size, math.nan, math.nan, math.nan, "undefined: all attentions have the same score"
    r = float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))
    p_value = float(special.betainc(size / 2 - 1, 0.5, 1 - r * r))
    low, high = correlation_interval(r, size, ranks=False)
    note = f"inconclusive: only {size} shared attentions" if size < ENOUGH else ""
    return r, size, p_value, low, high, note
