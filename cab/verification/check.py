"""The definition of a check and its measurement: the worst value, its location and the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cab.verification.subject import Subject

FLOAT32 = 2.0**-23
"""Machine epsilon of float32, the unit of some limits."""


@dataclass(frozen=True)
class Check:
    """A property that an attention must have in every pattern to which the check applies."""

    name: str
    group: str
    summary: str
    applies: Callable[[Subject], bool]
    measure: Callable[[Subject], Worst]
    is_quick: bool = True
    """Whether the quick suite includes the check."""
    is_timed: bool = False
    """Whether the result depends on the speed of the machine."""
    runs_long: bool = True
    """Whether the check also measures long sequences; always False in the quick suite."""


CHECKS: dict[str, Check] = {}
"""Every check by name, in execution order."""


def always(_subject: Subject) -> bool:
    """Accept every subject."""
    return True


def causal(subject: Subject) -> bool:
    """Return whether the pattern is causal (CS or CC)."""
    return subject.pattern.is_causal


def cross(subject: Subject) -> bool:
    """Return whether the pattern is cross attention (NC or CC)."""
    return subject.pattern.is_cross


def keeps_contract(subject: Subject) -> bool:
    """Return whether the subject has to satisfy the whole contract."""
    return subject.keeps_whole_contract


def decodes(subject: Subject) -> bool:
    """Return whether decoding has to be verified."""
    return subject.decodes


Measure = Callable[[Subject], "Worst"]


def check(
    group: str, *, applies: Callable[[Subject], bool] = always, is_quick: bool = True, is_timed: bool = False
) -> Callable[[Measure], Measure]:
    """Register the decorated function as a check of ``group``; its docstring's first paragraph states the property."""

    def add(measure: Measure) -> Measure:
        summary = " ".join((measure.__doc__ or "").split("\n\n")[0].split())
        CHECKS[measure.__name__] = Check(measure.__name__, group, summary, applies, measure, is_quick, is_timed)
        return measure

    return add


class Worst:
    """The largest of several measurements relative to their limits, and its location.

    >>> worst = Worst("error", limit=0.1)
    >>> worst.add(0.05, "n=3")
    >>> worst.add(0.2, "n=5")
    >>> worst.passed, worst.detail
    (False, 'error 0.2 > 0.1 at n=5 (worst of 2)')
    """

    def __init__(self, quantity: str, *, limit: float) -> None:
        self.quantity = quantity
        self.limit = limit
        self.value = 0.0
        self.where = ""
        self.count = 0

    def add(self, value: float | Tensor, where: str, *, limit: float | None = None) -> None:
        """Add one measurement, with its own ``limit`` if given; NaN counts as infinite."""
        limit = self.limit if limit is None else limit
        value = float(value)
        value = math.inf if math.isnan(value) else value
        self.count += 1
        if self.count == 1 or _excess(value, limit) > _excess(self.value, self.limit):
            self.value, self.limit, self.where = value, limit, where

    @property
    def passed(self) -> bool:
        assert self.count, "a check needs at least one measurement"
        return self.value <= self.limit

    @property
    def detail(self) -> str:
        limit = "(no limit declared)" if self.limit == math.inf else f"{'<=' if self.passed else '>'} {self.limit:.2g}"
        where = f"at {self.where}" if self.value or self.count == 1 else f"in {self.count} measurements"
        if self.value and self.count > 1:
            where += f" (worst of {self.count})"
        return f"{self.quantity} {self.value:.2g} {limit} {where}"


def _excess(value: float, limit: float) -> float:
    if limit == 0.0:
        return math.inf if value > 0.0 else 0.0
    return value / limit
