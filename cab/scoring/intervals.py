"""Seed variance of indices: standard errors and bootstrap confidence intervals."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 2000
LEVEL = 0.95
Key = tuple[str, str, str]
"""Pattern, task, attention."""


@dataclass(frozen=True)
class StandardError:
    """The standard error of one index.

    Attributes:
        draws: bootstrap deviations from the index, [DRAWS].
        variance: variance of the index.
        variance_of_variance: sum over places of variance^2 / degrees of freedom (Welch and Satterthwaite).
    """

    draws: np.ndarray
    variance: float
    variance_of_variance: float

    def interval(self, center: float) -> tuple[float, float]:
        """Return the 95% confidence interval around ``center``: an expanded percentile interval (Hesterberg 2015).

        A percentile interval from few residuals is too narrow by the ratio of Student's and the normal quantile; it is
        expanded by this ratio.
        """
        if self.variance == 0:
            return center, center
        widening = t_quantile_ratio(self.variance**2 / self.variance_of_variance)
        low, high = np.quantile(self.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) * widening
        return center + float(low), center + float(high)

    def __add__(self, other: StandardError) -> StandardError:
        """Return the error of the sum of two independent values."""
        variances = self.variance_of_variance + other.variance_of_variance
        return StandardError(self.draws + other.draws, self.variance + other.variance, variances)

    def __sub__(self, other: StandardError) -> StandardError:
        """Return the error of the difference of two independent values."""
        return self + StandardError(-other.draws, other.variance, other.variance_of_variance)

    @classmethod
    def mean(cls, errors: Iterable[StandardError]) -> StandardError:
        """Return the error of the mean of independent indices."""
        errors = list(errors)
        size = len(errors)
        return cls(
            np.mean([error.draws for error in errors], axis=0),
            sum(error.variance for error in errors) / size**2,
            sum(error.variance_of_variance for error in errors) / size**4,
        )


@functools.cache
def t_quantile_ratio(degrees: float) -> float:
    """Return the ratio of Student's and the normal quantile for the confidence level."""
    from scipy import special

    quantile = (1 + LEVEL) / 2
    return float(special.stdtrit(degrees, quantile) / special.ndtri(quantile))


class SeedVariance:
    """Standard errors of the indices of runs with several seeds.

    Three seeds are insufficient to estimate the variance in a single place (backbone and data set). Therefore the
    residuals of all attentions with at least two seeds in a place are pooled and scaled by sqrt(seeds / (seeds - 1)).
    Each index is bootstrapped by drawing residuals of its seeds from the pool of each place. This assumes that
    attentions have equal variance in a place; if the standard deviation of an attention exceeds the pooled one, its
    residuals are scaled up to it. Mean and standard deviation of the normalization are treated as known. The draws
    depend only on values and names, so equal results give equal intervals.

    In simulations with three seeds, 95% intervals have a coverage of 95% to 97%, and of 86% for an attention in a
    single place with four times the standard deviation of the others.

    Args:
        runs: one row per run with columns pattern, task, attention, place and share (contribution of the run to the
            index of its task, NaN if it lacks a value).
    """

    def __init__(self, runs: pd.DataFrame) -> None:
        place = ["pattern", "task", "place"]
        runs = runs.dropna(subset=["share"])
        seeds = runs.groupby([*place, "attention"])["share"].transform("size")
        self._errors: dict[Key, StandardError] = {}
        runs = runs.assign(seeds=seeds)
        residual = runs["share"] - runs.groupby([*place, "attention"])["share"].transform("mean")
        runs["residual"] = residual * np.sqrt(seeds / np.maximum(seeds - 1, 1))
        single = runs[seeds == 1]
        self._single = set(zip(single["pattern"], single["task"], single["attention"], strict=True))
        for (pattern, task, name), part in runs[seeds > 1].groupby(place, sort=False):
            self._add_place(str(pattern), str(task), str(name), part)

    def _add_place(self, pattern: str, task: str, place: str, runs: pd.DataFrame) -> None:
        pool = runs["residual"].to_numpy()
        groups = runs.groupby("attention", sort=False)["residual"]
        degrees = len(pool) - groups.ngroups
        pooled = math.sqrt(float((pool**2).mean()))
        for attention, own in groups:
            key = (pattern, task, str(attention))
            ratio = max(1.0, math.sqrt(float((own**2).mean())) / pooled) if pooled else 1.0
            random = np.random.default_rng(zlib.crc32(repr((*key, place)).encode()))
            draws = ratio * pool[random.integers(len(pool), size=(len(own), DRAWS))].mean(axis=0)
            variance = (ratio * pooled) ** 2 / len(own)
            error = StandardError(draws, variance, variance**2 / degrees)
            self._errors[key] = self._errors[key] + error if key in self._errors else error

    def error(self, pattern: str, task: str, attention: str) -> StandardError | None:
        """Return the standard error of a task's index; None if any of its places has a single seed."""
        key = (pattern, task, attention)
        return None if key in self._single else self._errors.get(key)
