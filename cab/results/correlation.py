"""Correlation of compositional indices: between patterns, between tasks, and with Long Range Arena.

Section 4.2, Appendix I, Figures 3a and 4. In all correlations attention ``none`` is excluded, and only the first of
``vanilla``, ``eager`` and ``flash`` with an index is included, as in the paper.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from cab.files.text_table import counted
from cab.records.files import PAPER_DIR
from cab.results.load import AVERAGE, OWN, REFERENCE_SOURCE
from cab.results.normalization import population
from cab.results.published import rows, terms3
from cab.results.statistics import correlation_interval

if TYPE_CHECKING:
    import pandas as pd

CORRELATION = ["kind", "pattern", "a", "b", "pearson", "shared", "p_value", "low", "high", "note"]
LRA = "LRA"
CONCLUSIVE = 5
"""Minimum number of attentions for a conclusion; with 4, abs(r) exceeds 0.95 by chance in 1 of 20 cases."""


def pattern_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the Pearson correlation of the average indices of every two patterns, over their shared attentions.

    Args:
        scores: table of one source, returned by :func:`cab.results.index.index_table`.

    Returns:
        Columns kind (``pattern``), pattern (empty), a, b, pearson (NaN for fewer than three shared attentions), shared
        (number of attentions), p_value (two-sided, of no correlation), low and high (95% confidence interval by
        Fisher's z), note (why there is no correlation or no conclusion).
    """
    return _correlations(scores[scores["task"] == AVERAGE], "pattern", pattern="")


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
    """Return the correlation of every two tasks ``a`` and ``b`` of each pattern, with kind ``task``.

    Tasks have the order of Table 3, so a pair has the same name in all results.
    """
    import pandas as pd

    ranks = {task: rank for rank, task in enumerate(dict.fromkeys(task for _, task, *_ in terms3()))}
    tables = []
    for pattern, of_pattern in scores[scores["task"] != AVERAGE].groupby("pattern", sort=False):
        ordered = of_pattern.sort_values("task", key=lambda names: names.map(ranks), kind="stable")
        tables += [table] if len(table := _correlations(ordered, "task", pattern=pattern)) else []
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=CORRELATION)


def published_correlation(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs that the paper's figures show, with the correlations that were read off the colors.

    Args:
        pairs: columns kind, pattern, a and b of the tables of the other functions.
    """
    import pandas as pd

    shown = {(row["figure"], frozenset((row["a"], row["b"]))): row for row in rows("correlations.csv")}
    made: list[tuple[Any, ...]] = []
    for kind, pattern, a, b in pairs[CORRELATION[:4]].itertuples(index=False, name=None):
        figure = "figure4" if kind == "task" else "figure3a"
        row = shown.get((figure, frozenset(f"{pattern} {name}".strip() for name in (a, b))))
        if row is not None:
            unknown = [math.nan] * 4
            made.append((kind, pattern, a, b, float(row["pearson"]), *unknown, f"Figure {figure[6:]}, ±{row['error']}"))
    return pd.DataFrame(made, columns=CORRELATION)


def cell_correlation(gains: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of K between every two core cells, over the reference results and others alike.

    Columns are those of :func:`pattern_correlation`, with kind ``cell``; ``a`` and ``b`` are ability and pattern.

    Args:
        gains: table returned by :func:`cab.results.retained.gains_table`.
    """
    table = gains[gains["core"].astype(bool) & (gains["seeds"] > 0)]
    table = table.assign(cell=table["ability"] + " " + table["pattern"], index=table["K"])
    table["attention"] += table["source"].map({REFERENCE_SOURCE: "", OWN: " (yours)"})
    return _correlations(table, "cell", pattern="")


def _correlations(scores: pd.DataFrame, kind: str, *, pattern: Hashable) -> pd.DataFrame:
    import pandas as pd

    wide = scores.pivot(index="attention", columns=kind, values="index")
    wide = wide.loc[wide.index.isin(population(wide.index)), scores[kind].unique()]
    made = []
    for a, b in itertools.combinations(wide.columns, 2):
        shared = wide[[a, b]].dropna()
        made.append((kind, pattern, a, b, *_pearson(shared[a].to_numpy(), shared[b].to_numpy())))
    return pd.DataFrame(made, columns=CORRELATION)


def _pearson(x: np.ndarray, y: np.ndarray) -> tuple[float, int, float, float, float, str]:
    """Return pearson, shared, p_value, low, high and note, as in :func:`pattern_correlation`."""
    from scipy import special

    size, reason = len(x), ""
    if size < 3:
        reason = f"{counted(size, 'shared attention')}, at least 3 required"
    elif np.ptp(x) == 0 or np.ptp(y) == 0:
        reason = "undefined: all attentions have the same score"
    if reason:
        return math.nan, size, math.nan, math.nan, math.nan, reason
    r = float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))
    p_value = float(special.betainc(size / 2 - 1, 0.5, 1 - r * r))
    note = f"inconclusive: only {size} shared attentions" if size < CONCLUSIVE else ""
    return r, size, p_value, *correlation_interval(r, size), note
