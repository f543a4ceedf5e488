"""Correlation of attention rankings: between patterns, tasks, benchmarks, sets of results, and probes and tasks.

Section 4.2, Appendix I, Figures 3a and 4. In all correlations attention ``none`` is excluded, and only the first of
``vanilla``, ``eager`` and ``flash`` with an index is included, as in the paper.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cab.errors import UserError
from cab.files.text_table import csv_errors
from cab.patterns import pattern_rank
from cab.records.results import PAPER_DIR
from cab.scoring.index import AVERAGE
from cab.scoring.normalization import population
from cab.scoring.statistics import correlation_interval

if TYPE_CHECKING:
    import pandas as pd

CORRELATION = ["kind", "pattern", "a", "b", "pearson", "shared", "p_value", "low", "high", "note"]
AGREEMENT = ["spearman", "low", "high", "p_value", "shared", "disagree", "note"]
LRA = "LRA"
ENOUGH = 5
"""Minimum number of attentions for a conclusion; with 4, abs(r) exceeds 0.95 by chance in 1 of 20 cases."""
SETTING = ["preset", "pattern", "dataset", "pairs", "distance", "noise", "embed_dim"]
"""Columns that identify a setting in a table of probes."""


def pattern_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the Pearson correlation of the average indices of every two patterns, over their shared attentions.

    Args:
        scores: table returned by :func:`cab.scoring.index.score_table`.

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
    """Return the correlation of every two tasks ``a`` and ``b`` of each pattern, with kind ``task``."""
    import pandas as pd

    tasks = scores[scores["task"] != AVERAGE]
    tables = [_correlations(rows, "task", pattern=name) for name, rows in tasks.groupby("pattern", sort=False)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=CORRELATION)


def _correlations(scores: pd.DataFrame, kind: str, *, pattern: Hashable) -> pd.DataFrame:
    import pandas as pd

    wide = scores.pivot(index="attention", columns=kind, values="index")
    wide = wide.loc[wide.index.isin(population(wide.index)), scores[kind].unique()]
    rows = []
    for a, b in itertools.combinations(wide.columns, 2):
        shared = wide[[a, b]].dropna()
        rows.append((kind, pattern, a, b, *_pearson(shared[a].to_numpy(), shared[b].to_numpy())))
    return pd.DataFrame(rows, columns=CORRELATION)


def _pearson(x: np.ndarray, y: np.ndarray) -> tuple[float, int, float, float, float, str]:
    from scipy import special

    size, note = len(x), _note(x, y)
    if size < 3 or note.startswith("undefined"):
        return math.nan, size, math.nan, math.nan, math.nan, note
    r = float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1))
    p_value = float(special.betainc(size / 2 - 1, 0.5, 1 - r * r))
    return r, size, p_value, *correlation_interval(r, size, ranks=False), note


def _note(x: Any, y: Any) -> str:
    """Return why the scores of shared attentions allow no correlation or no conclusion."""
    size = len(x)
    if size < 3:
        return f"{size} shared attentions, at least 3 required"
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return "undefined: all attentions have the same score"
    return f"inconclusive: only {size} shared attentions" if size < ENOUGH else ""


def rank_agreement(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's rank correlation of the compositional indices of two sets of results, per pattern and task.

    Args:
        one: table returned by :func:`cab.scoring.index.score_table`.
        other: a second such table.

    Returns:
        Columns pattern, task (``all`` for the average), spearman, low and high (95% confidence interval by Fisher's z
        with the variance of Bonett and Wright 2000), p_value (exact for up to seven attentions, otherwise Student's
        t), shared, disagree (the attention whose ranks differ most, and both ranks), note.
    """
    import pandas as pd

    one, other = (table.assign(task=table["task"].str.lower()) for table in (one, other))
    both = one.merge(other, on=["pattern", "task", "attention"], suffixes=("_one", "_other"))
    both = both.dropna(subset=["index_one", "index_other"])
    rows = []
    for (pattern, task), scores in both.groupby(["pattern", "task"], sort=False):
        shared = scores[scores["attention"].isin(population(scores["attention"]))].set_index("attention")
        rows.append((str(pattern), str(task), *_agreement(shared["index_one"], shared["index_other"])))
    rows.sort(key=lambda row: (pattern_rank(row[0]), row[1] != AVERAGE))
    return pd.DataFrame(rows, columns=["pattern", "task", *AGREEMENT])


def _agreement(x: pd.Series, y: pd.Series) -> tuple[float, float, float, float, int, str, str]:
    """Return the columns of :data:`AGREEMENT` for two scores per attention (higher is better)."""
    size, note = len(x), _note(x, y)
    if size < 3 or note.startswith("undefined"):
        return math.nan, math.nan, math.nan, math.nan, size, "", note
    ranks = x.rank(ascending=False), y.rank(ascending=False)
    rho = float(ranks[0].corr(ranks[1]))
    low, high = correlation_interval(rho, size, ranks=True)
    differences = (ranks[0] - ranks[1]).abs()
    name = str(differences.idxmax())
    disagree = f"{name}: {ranks[0][name]:g} and {ranks[1][name]:g}" if differences.max() else ""
    return rho, low, high, _rank_p_value(x, y), size, disagree, note


def _rank_p_value(x: pd.Series, y: pd.Series) -> float:
    from scipy import stats

    if len(x) > 7:
        return float(stats.spearmanr(x, y).pvalue)
    test = stats.permutation_test(
        (x,), lambda values: stats.spearmanr(values, y).statistic, permutation_type="pairings", n_resamples=math.inf
    )
    return float(test.pvalue)


def read_probes(path: Path) -> pd.DataFrame:
    """Read a table of probes, as written by ``cab leaderboard`` to ``probes.csv``.

    Raises:
        ValueError: the file does not exist or lacks a column.
    """
    import pandas as pd

    if not path.is_file():
        raise UserError(f"no table of probes at {path}; pass a probes.csv written by `cab leaderboard`")
    with csv_errors(path):
        table = pd.read_csv(path)
    if lacking := {*SETTING, "attention", "accuracy"} - set(table.columns):
        raise UserError(f"{path} is not a table of probes; missing columns: {', '.join(sorted(lacking))}")
    return table


def probe_agreement(probes: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return Spearman's correlation of the accuracy in each probe with the index of each task of the same pattern.

    Each probe is represented by the setting that covers most attentions with an index in the task. Among several, the
    one with the lowest mean accuracy is used, because all attentions solve easy settings.

    Returns:
        Columns pattern, probe (``recall, pairs 16, ...``), and those of :func:`rank_agreement`, without pairs of probe
        and task with fewer than three shared attentions.
    """
    import pandas as pd

    rows = []
    scores = scores.dropna(subset=["index"])
    for (pattern, task), indices in scores.groupby(["pattern", "task"], sort=False):
        index = indices.set_index("attention")["index"]
        index = index[index.index.isin(population(index.index))]
        shared = probes[(probes["pattern"] == pattern) & probes["attention"].isin(index.index)]
        for dataset, measured in shared.groupby("dataset", sort=False):
            setting, accuracy = _fullest(measured)
            if len(accuracy) > 2:
                agreement = _agreement(accuracy, index[accuracy.index])
                rows.append((str(pattern), f"{dataset}, {setting}", str(task), *agreement))
    rows.sort(key=lambda row: (pattern_rank(row[0]), row[2] != AVERAGE, row[2]))
    return pd.DataFrame(rows, columns=["pattern", "probe", "task", *AGREEMENT])


def _fullest(measured: pd.DataFrame) -> tuple[str, pd.Series]:
    """Return the setting with most attentions as text, and the accuracy of each attention in it."""
    groups = [rows for _, rows in measured.groupby(SETTING, dropna=False)]
    rows = max(groups, key=lambda rows: (rows["attention"].nunique(), -rows["accuracy"].mean()))
    setting = f"pairs {rows['pairs'].iloc[0]:g}, width {rows['embed_dim'].iloc[0]:g}"
    return setting, rows.groupby("attention")["accuracy"].mean()
