"""Interval arithmetic on printed digits: what a table can have meant."""

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
    """All numbers from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def around(cls, centre: float, reach: float) -> Interval:
        return cls(centre - reach, centre + reach)

    @classmethod
    def printed(cls, text: str) -> Interval:
        """What can have been rounded to, or cut after, the digits in ``text``: the paper's tables do both."""
        value, step = float(text), unit(text)
        return cls(value - step / 2, value + step) if value >= 0 else cls(value - step, value + step / 2)

    @classmethod
    def mean(cls, intervals: Sequence[Interval]) -> Interval:
        return cls(*(float(np.mean(bounds)) for bounds in zip(*intervals, strict=True)))

    def meets(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


def unit(text: str) -> float:
    """One unit in the last printed place: 0.01 for ``3.40``."""
    return 10.0 ** -len(text.partition(".")[2])


def normalized(value: Interval, mean: Interval, std: Interval, *, higher_is_better: bool) -> Interval:
    """(value - mean) / std, or (mean - value) / std where lower is better."""
    above = (value.low - mean.high, value.high - mean.low)
    low, high = above if higher_is_better else (-above[1], -above[0])
    return Interval(low / (std.high if low >= 0 else std.low), high / (std.low if high >= 0 else std.high))


def deviation_of(values: Sequence[Interval]) -> Interval:
    """Bounds of the sample deviation (ddof 1).

    Errors of at most h in n numbers move it by at most their own sample deviation, h * sqrt(n / (n - 1)).
    """
    centres = [(value.low + value.high) / 2 for value in values]
    reach = max(value.high - value.low for value in values) / 2 * math.sqrt(len(values) / (len(values) - 1))
    std = float(np.std(centres, ddof=1))
    return Interval(max(std - reach, 0.0), std + reach)


def range_of(function: Callable[[np.ndarray], float], values: np.ndarray, reach: np.ndarray) -> Interval:
    """Least and largest value of a smooth ``function`` for inputs within ``reach`` of ``values``, to first order."""
    steps = np.diag(reach)
    slope = np.array([function(values + step) - function(values - step) for step in steps])
    corner = np.sign(slope) * reach
    return Interval(function(values - corner), function(values + corner))


def verdict(printed: str, recomputed: float, possible: Interval, *, tolerance: float) -> str:
    """How a printed number stands to the recomputed one.

    Args:
        possible: what can come out within the printed digits of everything that goes into it.
        tolerance: difference that still counts as agreement.
    """
    if abs(float(printed) - recomputed) <= tolerance:
        return AGREES
    return EXPLAINED if possible.meets(Interval.printed(printed)) else CONTRADICTS
