"""How far indices scatter from seed to seed: standard errors, bootstrap confidence intervals, resolved orders."""

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
    """The error of one index: draws [DRAWS] around 0, its variance, and what its degrees of freedom follow from."""

    draws: np.ndarray
    variance: float
    variance_of_variance: float
    """Sum over places of variance^2 / degrees of freedom (Welch and Satterthwaite)."""

    def interval(self, centre: float) -> tuple[float, float]:
        """The 95% confidence interval around ``centre``: an expanded percentile interval (Hesterberg 2015).

        A percentile interval from few residuals is too narrow by the ratio of Student's and the normal quantile, which
        it is widened by.
        """
        if self.variance == 0:
            return centre, centre
        widening = t_quantile_ratio(self.variance**2 / self.variance_of_variance)
        low, high = np.quantile(self.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) * widening
        return centre + float(low), centre + float(high)

    def __add__(self, other: StandardError) -> StandardError:
        """The error of the sum of two numbers that were measured apart."""
        variances = self.variance_of_variance + other.variance_of_variance
        return StandardError(self.draws + other.draws, self.variance + other.variance, variances)

    def __sub__(self, other: StandardError) -> StandardError:
        """The error of their difference."""
        return self + StandardError(-other.draws, other.variance, other.variance_of_variance)

    @classmethod
    def mean(cls, errors: Iterable[StandardError]) -> StandardError:
        """The error of the mean of indices that were measured apart."""
        errors = list(errors)
        size = len(errors)
        return cls(
            np.mean([error.draws for error in errors], axis=0),
            sum(error.variance for error in errors) / size**2,
            sum(error.variance_of_variance for error in errors) / size**4,
        )


@functools.cache
def t_quantile_ratio(degrees: float) -> float:
    """By how much an interval from few residuals must be wider than a normal one."""
    from scipy import special

    quantile = (1 + LEVEL) / 2
    return float(special.stdtrit(degrees, quantile) / special.ndtri(quantile))


class SeedVariance:
    """The errors of the indices that runs with several seeds make.

    Three seeds say little about one place. So the residuals of all attentions with two seeds or more in a place are
    pooled, scaled by sqrt(seeds / (seeds - 1)); each index is redrawn by drawing its seeds' residuals, place by place,
    from the pools. This takes attentions to scatter alike in a place; one that scatters more than the pool has its
    residuals scaled up to its own deviation. Mean and deviation of the normalisation are taken as known. Draws depend
    only on the numbers and the names: the same results give the same interval.

    In simulations with three seeds, 95% intervals cover the truth 95 to 97 times in 100; 86 times for an attention in a
    single place that scatters four times as much as the others.

    Args:
        runs: a row a run with columns pattern, task, attention, place and share: what the run adds to the index of its
            task; NaN where it lacks a number.
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
        """The error of a task's index; None where any of its places has one seed."""
        key = (pattern, task, attention)
        return None if key in self._single else self._errors.get(key)
