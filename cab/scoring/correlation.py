"""Do attentions rank alike in two patterns, or in two tasks? (Section 4.2 and appendix I, Figures 3a and 4.)"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from cab.records.results import PAPER_DIR
from cab.scoring.index import AVERAGE
from cab.scoring.normalization import population

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["kind", "pattern", "a", "b", "pearson", "shared", "p_value", "low", "high", "note"]
LRA = "LRA"
ENOUGH = 5
"""Attentions below which a correlation is called too few to conclude from: |r| of 0.95 is chance 1 time in 20 at 4."""


def pattern_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """Pearson correlation of the average indices of every two patterns, over the attentions that both have.

    Args:
        scores: as :func:`cab.scoring.score_table` gives them.

    Returns:
        Columns kind (``pattern``), pattern (empty), a, b, pearson, shared (how many attentions), p_value (two-sided,
        of no correlation), low and high (95% confidence interval by Fisher's z, which needs four attentions), note.
        ``none`` is left out, and of ``vanilla``, ``eager`` and ``flash`` only the first that has any index counts, as
        in the paper. No number for fewer than three shared
        attentions; ``note`` says ``too few`` for fewer than five.
    """
    averages = scores[scores["task"] == AVERAGE]
    return _correlations(averages, "pattern", pattern="")


def benchmark_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """The same for every pattern and Long Range Arena, the fifth column of Figure 3a: kind ``benchmark``, ``b`` LRA.

    Its scores are published accuracies, means of five tasks (results/paper/lra.csv): of few attentions, and of other
    training than these; CAB does not print which it took.
    """
    import pandas as pd

    averages = scores[scores["task"] == AVERAGE]
    accuracy = pd.read_csv(PAPER_DIR / "lra.csv", index_col="attention").mean(axis=1)
    arena = pd.DataFrame({"pattern": LRA, "attention": accuracy.index, "index": accuracy.to_numpy()})
    pairs = _correlations(pd.concat([averages, arena]), "pattern", pattern="")
    return pairs[pairs["b"] == LRA].assign(kind="benchmark").reset_index(drop=True)


def task_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """The same for every two tasks of each pattern: kind ``task``, ``pattern`` where, ``a`` and ``b`` the tasks."""
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
    """Correlation, size, p-value, bounds of its confidence interval, note."""
    from scipy import special

    size = len(x)
    if size < 3:
        return math.nan, size, math.nan, math.nan, math.nan, f"too few: {size} shared, a correlation needs 3"
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, size, math.nan, math.nan, math.nan, "not defined: the attentions do not differ"
    r = float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))
    p_value = float(special.betainc(size / 2 - 1, 0.5, 1 - r * r))
    low = high = math.nan
    if size > 3 and abs(r) < 1:
        reach = float(special.ndtri(0.975)) / math.sqrt(size - 3)
        low, high = math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach)
    note = f"too few to conclude from: {size} shared" if size < ENOUGH else ""
    return r, size, p_value, low, high, note
