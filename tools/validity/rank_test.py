"""A stratified test of rank agreement by permutations, and its power."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.05
SIMULATED = 20_000
"""Draws from which the power is computed."""


def rank_test(scores: Mapping[Hashable, Any], *, draws: int = 4_999) -> tuple[float, float]:
    """Return the summed covariance of ranks and the one-sided p-value of positive agreement.

    The null distribution permutes the attentions of the first table within each stratum, with all their cells together,
    because scores of one attention in several cells are dependent. A cell with fewer than two attentions adds nothing.

    Args:
        scores: two tables of scores per stratum, with one row per attention and one column per cell; NaN where there is
            no score, and higher is better.
        draws: number of random permutations, from a fixed seed.
    """
    random = np.random.default_rng(1)
    tables = [(one.to_numpy(float), other.to_numpy(float)) for one, other in scores.values()]
    observed = sum(_covariance(one, other) for one, other in tables)
    drawn = [sum(_covariance(random.permutation(one), other) for one, other in tables) for _ in range(draws)]
    return observed, (1 + sum(each >= observed - 1e-9 for each in drawn)) / (1 + draws)


def _covariance(one: np.ndarray, other: np.ndarray) -> float:
    known = np.isfinite(one) & np.isfinite(other)
    cells = [(x[both], y[both]) for x, y, both in zip(one.T, other.T, known.T, strict=True) if both.sum() > 1]
    return sum(float(np.cov(stats.rankdata(x), stats.rankdata(y))[0, 1]) for x, y in cells)


def rank_test_power(sizes: Sequence[int], correlation: float) -> float:
    """Return the simulated power of :func:`rank_test` with one cell per stratum.

    Args:
        sizes: number of attentions per stratum.
        correlation: Pearson's correlation of normal scores in every stratum.
    """
    random = np.random.default_rng(1)

    def summed_covariances(true: float) -> np.ndarray:
        total = np.zeros(SIMULATED)
        for size in (size for size in sizes if size > 1):
            x, noise = random.standard_normal((2, SIMULATED, size))
            y = true * x + np.sqrt(1 - true**2) * noise
            ranks = [values.argsort(1).argsort(1) - (size - 1) / 2 for values in (x, y)]
            total += (ranks[0] * ranks[1]).sum(1) / (size - 1)
        return total

    null = np.sort(summed_covariances(0.0))
    p_values = 1 - np.searchsorted(null, summed_covariances(correlation) - 1e-9) / SIMULATED
    return float((p_values <= LEVEL).mean())
