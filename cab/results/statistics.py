"""Statistics over seeds: the only tests and intervals that commands and pages use.

Every attention has its own variance (Student; Welch and Satterthwaite for sums and differences). Nothing is pooled over
attentions, because their seeds differ by a factor of up to a thousand in standard deviation.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

CONFIDENCE = 0.95
EQUIVALENCE_MARGIN = 2.0
"""Smallest relevant difference, in percentage points of softmax's gain."""
ONE_SEED_MARK = "*"
ONE_SEED_LEGEND = f"{ONE_SEED_MARK} a single seed in at least one cell: no interval, no significance"

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Estimate:
    """An estimated mean with the variance of the estimate.

    Attributes:
        variance: variance of the estimate; NaN for a single seed.
        degrees: degrees of freedom of the variance; infinite if the variance is 0.
    """

    value: float
    variance: float
    degrees: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Return the mean of independent values of one attention, one per seed."""
        size = len(values)
        if size < 2:
            return cls(statistics.fmean(values), math.nan, 0)
        return cls(statistics.fmean(values), statistics.variance(values) / size, size - 1)

    @property
    def is_known(self) -> bool:
        """Whether the variance is known, which requires two seeds in every part."""
        return math.isfinite(self.variance)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return Student's confidence interval; NaN if the variance is unknown."""
        if not self.variance:
            return self.value, self.value
        if not self.is_known:
            return math.nan, math.nan
        half_width = student_quantile(self.degrees, confidence) * math.sqrt(self.variance)
        return self.value - half_width, self.value + half_width

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the true value is 0; NaN if the variance is unknown."""
        from scipy import special

        if not self.variance:
            return float(self.value == 0)
        return 2 * float(special.stdtr(self.degrees, -abs(self.value) / math.sqrt(self.variance)))

    def probability_above(self, limit: float) -> float:
        """Return the one-sided p-value of the hypothesis that the true value is at least ``limit``."""
        from scipy import special

        if not self.variance:
            return float(self.value >= limit)
        return float(special.stdtr(self.degrees, (self.value - limit) / math.sqrt(self.variance)))

    def upper_bound(self, level: float) -> float:
        """Return the one-sided upper confidence bound that the true value exceeds with probability ``level``."""
        return self.interval(1 - 2 * level)[1]

    def is_within(self, margin: float, center: float) -> bool:
        """Return whether two one-sided tests at 5% show that the true value is within ``margin`` of ``center``."""
        low, high = self.interval(confidence=0.9)
        return center - margin < low and high < center + margin


@functools.cache
def student_quantile(degrees: float, confidence: float = CONFIDENCE) -> float:
    """Return the quantile of Student's distribution that bounds a two-sided interval."""
    from scipy import special

    return float(special.stdtrit(degrees, (1 + confidence) / 2))


def weighted_sum(terms: Iterable[tuple[float, Estimate]]) -> Estimate:
    """Return the sum of independent estimates times weights, with Satterthwaite's degrees of freedom."""
    value = variance = denominator = 0.0
    for weight, term in terms:
        weighted_variance = weight**2 * term.variance
        value += weight * term.value
        variance += weighted_variance
        denominator += weighted_variance**2 / term.degrees if term.degrees else math.nan
    return Estimate(value, variance, variance**2 / denominator if denominator else math.inf)


def difference(one: Estimate, other: Estimate) -> Estimate:
    """Return the difference of two independent estimates (Welch)."""
    return weighted_sum([(1.0, one), (-1.0, other)])


class Verdict(StrEnum):
    """Verdict on a result compared with softmax attention, or on the first of two attentions."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    SOLVED = "solved"
    UNDECIDED = "undecided"
    ONE_SEED = "one seed"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down procedure (Holm 1979).

    Rejecting those below a level bounds the probability of any false rejection by that level.
    """
    import numpy as np

    p, order = np.array(p_values, dtype=float), np.argsort(p_values, kind="stable")
    p[order] = np.maximum.accumulate(np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0))
    return [*map(float, p)]


def upper_bounds(family: Mapping[Name, Estimate], limit: float, *, level: float = 1 - CONFIDENCE) -> dict[Name, float]:
    """Return a one-sided upper bound of each estimate, adjusted for their number by Holm's step-down procedure.

    The estimates are taken by their p-value for "at least ``limit``", smallest first. Of n estimates, the first has
    the bound at ``level`` / n; each bound below the limit reduces n by one for the following ones. So the bounds below
    the limit are the rejections of Holm's procedure: the probability that any of them is false is at most ``level``.
    """
    bounds, size = {}, len(family)
    for name in sorted(family, key=lambda name: family[name].probability_above(limit)):
        bounds[name] = family[name].upper_bound(level / size)
        size -= bounds[name] < limit
    return bounds


def judge_pairs(family: Mapping[Name, Estimate]) -> dict[Name, Verdict]:
    """Return whether each difference of a family is significant (two-sided, Holm's correction)."""
    p_values = {pair: gap.p_value for pair, gap in family.items() if gap.is_known}
    adjusted = dict(zip(p_values, holm([*p_values.values()]), strict=True))

    def verdict(pair: Name) -> Verdict:
        if pair not in adjusted:
            return Verdict.ONE_SEED
        if adjusted[pair] >= 1 - CONFIDENCE:
            return Verdict.UNDECIDED
        return Verdict.BETTER if family[pair].value > 0 else Verdict.WORSE

    return {pair: verdict(pair) for pair in family}


ORDER = ["better", "worse", "difference", "low", "high", "verdict"]


def compare_pairs(estimates: Mapping[str, Estimate]) -> list[tuple[Any, ...]]:
    """Compare every two attentions, one family of tests (see :func:`judge_pairs`).

    Returns:
        Rows with the columns :data:`ORDER`: the names in the order of ``estimates``, their difference with the 95%
        interval of a single pair, and the verdict on the first.
    """
    pairs = {pair: difference(*(estimates[name] for name in pair)) for pair in itertools.combinations(estimates, 2)}
    verdicts = judge_pairs(pairs)
    return [(*pair, gap.value, *gap.interval(), str(verdicts[pair])) for pair, gap in pairs.items()]


def correlation_interval(r: float, size: int) -> tuple[float, float]:
    """Return the 95% confidence interval of Pearson's ``r`` by Fisher's z; NaN if it requires more pairs."""
    if size < 4 or abs(r) >= 1:
        return math.nan, math.nan
    half_width = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) / math.sqrt(size - 3)
    return math.tanh(math.atanh(r) - half_width), math.tanh(math.atanh(r) + half_width)
