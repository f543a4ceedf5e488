"""A stratified test of rank agreement by permutations, and its power."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

RANK_DRAWS = 4_999
RankedScores = Mapping[Hashable, "tuple[pd.DataFrame, pd.DataFrame]"]
"""Two tables of scores per stratum, with one row per attention and one column per cell; NaN where there is no score."""


def rank_test(scores: RankedScores, *, draws: int = RANK_DRAWS) -> tuple[float, float]:
    """Return the summed covariance of ranks and the one-sided p-value of positive agreement.

    The null distribution permutes the attentions of the first table within each stratum, with all their cells together,
    because scores of one attention in several cells are dependent. A cell with fewer than two attentions adds nothing.

    Args:
        scores: pairs of tables with equal rows and columns; higher is better.
        draws: number of random permutations, from a fixed seed.
    """
    random = np.random.default_rng(1)
    tables = [(one.to_numpy(float), other.to_numpy(float)) for one, other in scores.values()]
    observed = sum(_covariance(one, other) for one, other in tables)
    at_least = 0
    for _ in range(draws):
        drawn = sum(_covariance(one[random.permutation(len(one))], other) for one, other in tables)
        at_least += drawn >= observed - 1e-9
    return observed, (1 + at_least) / (1 + draws)


def _covariance(one: np.ndarray, other: np.ndarray) -> float:
    from scipy import stats

    total = 0.0
    for x, y in zip(one.T, other.T, strict=True):
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() > 1:
            total += float(np.cov(stats.rankdata(x[known]), stats.rankdata(y[known]))[0, 1])
    return total


def rank_test_power(sizes: Sequence[int], correlation: float, *, draws: int = 20_000, level: float = 0.05) -> float:
    """Return the simulated power of :func:`rank_test` with one cell per stratum.

    Args:
        sizes: number of attentions per stratum.
        correlation: Pearson's correlation of normal scores in every stratum.
        draws: number of simulated results, from a fixed seed.
        level: one-sided level of the test.
    """
    random = np.random.default_rng(1)

    def summed_covariances(true: float) -> np.ndarray:
        total = np.zeros(draws)
        for size in (size for size in sizes if size > 1):
            x, noise = random.standard_normal((2, draws, size))
            y = true * x + np.sqrt(1 - true**2) * noise
            ranks = [values.argsort(1).argsort(1) - (size - 1) / 2 for values in (x, y)]
            total += (ranks[0] * ranks[1]).sum(1) / (size - 1)
        return total

    null = np.sort(summed_covariances(0.0))
    p_values = 1 - np.searchsorted(null, summed_covariances(correlation) - 1e-9) / draws
    return float((p_values <= level).mean())
