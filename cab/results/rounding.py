"""Interval arithmetic on printed digits: the range of values that a printed number can represent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

AGREES = "agrees"
EXPLAINED = "explained by rounding"
CONTRADICTS = "contradicts"
UNKNOWN = "cannot be recomputed"
VERDICTS = (AGREES, EXPLAINED, CONTRADICTS, UNKNOWN)


class Interval(NamedTuple):
    """The numbers from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def around(cls, center: float, reach: float) -> Interval:
        """Return the interval of half-width ``reach`` around ``center``."""
        return cls(center - reach, center + reach)

    @classmethod
    def printed(cls, text: str) -> Interval:
        """Return the values that can be rounded or truncated to the digits of ``text``; the paper's tables do both."""
        value, step = float(text), unit(text)
        return cls(value - step / 2, value + step) if value >= 0 else cls(value - step, value + step / 2)

    @classmethod
    def mean(cls, intervals: Sequence[Interval]) -> Interval:
        """Return the range of the mean of values in ``intervals``."""
        return cls(*(float(np.mean(bounds)) for bounds in zip(*intervals, strict=True)))

    def meets(self, other: Interval) -> bool:
        """Return whether the intervals overlap."""
        return self.low <= other.high and other.low <= self.high


def unit(text: str) -> float:
    """Return one unit in the last printed digit: 0.01 for ``3.40``."""
    return 10.0 ** -len(text.partition(".")[2])


def normalized(value: Interval, mean: Interval, std: Interval, *, higher_is_better: bool) -> Interval:
    """Return the range of (value - mean) / std, with the sign changed if lower is better."""
    above = (value.low - mean.high, value.high - mean.low)
    low, high = above if higher_is_better else (-above[1], -above[0])
    return Interval(low / (std.high if low >= 0 else std.low), high / (std.low if high >= 0 else std.high))


def deviation_of(values: Sequence[Interval]) -> Interval:
    """Return bounds of the sample standard deviation (ddof 1).

    Errors of at most h in n values change it by at most their own sample standard deviation, h * sqrt(n / (n - 1)).
    """
    centers = [(value.low + value.high) / 2 for value in values]
    reach = max(value.high - value.low for value in values) / 2 * math.sqrt(len(values) / (len(values) - 1))
    std = float(np.std(centers, ddof=1))
    return Interval(max(std - reach, 0.0), std + reach)


def range_of(function: Callable[[np.ndarray], float], values: np.ndarray, reach: np.ndarray) -> Interval:
    """Return the range of a smooth ``function`` for inputs within ``reach`` of ``values``, to first order."""
    steps = np.diag(reach)
    slope = np.array([function(values + step) - function(values - step) for step in steps])
    corner = np.sign(slope) * reach
    return Interval(function(values - corner), function(values + corner))


def verdict(printed: str, recomputed: float, possible: Interval, *, tolerance: float) -> str:
    """Compare a printed number with the recomputed one, whose range is ``possible`` by the digits of its inputs."""
    if abs(float(printed) - recomputed) <= tolerance:
        return AGREES
    return EXPLAINED if possible.meets(Interval.printed(printed)) else CONTRADICTS
