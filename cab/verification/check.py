"""What a check is, and what it reports: the worst that it measured, where, and what was allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cab.verification.subject import Subject

FLOAT32 = 2.0**-23
"""Relative spacing of float32, in which limits are written."""


@dataclass(frozen=True)
class Check:
    """A named property that every attention has in the patterns it applies to."""

    name: str
    group: str
    summary: str
    applies: Callable[[Subject], bool]
    measure: Callable[[Subject], Worst]
    is_quick: bool = True
    """Whether it belongs to the quick form of the suite."""
    is_timed: bool = False
    """Whether its outcome depends on the speed of the machine."""
    runs_long: bool = True
    """Whether it looks at a long sequence too; not in the quick form."""


CHECKS: dict[str, Check] = {}
"""Every check by name, in the order in which they run."""


def always(_subject: Subject) -> bool:
    return True


def causal(subject: Subject) -> bool:
    return subject.pattern.is_causal


def cross(subject: Subject) -> bool:
    return subject.pattern.is_cross


def keeps_contract(subject: Subject) -> bool:
    return subject.keeps_whole_contract


def decodes(subject: Subject) -> bool:
    return subject.decodes


Measure = Callable[[Subject], "Worst"]


def check(
    group: str, *, applies: Callable[[Subject], bool] = always, is_quick: bool = True, is_timed: bool = False
) -> Callable[[Measure], Measure]:
    """Decorator: the function is a check of ``group``; its docstring says what holds."""

    def add(measure: Measure) -> Measure:
        summary = " ".join((measure.__doc__ or "").split("\n\n")[0].split())
        CHECKS[measure.__name__] = Check(measure.__name__, group, summary, applies, measure, is_quick, is_timed)
        return measure

    return add


class Worst:
    """The largest of several measurements in units of what each was allowed, and where it was found.

    >>> worst = Worst("error", limit=0.1)
    >>> worst.add(0.05, "n=3")
    >>> worst.add(0.2, "n=5")
    >>> worst.passed, worst.detail
    (False, 'error 0.2 at n=5 (worst of 2); at most 0.1 expected')
    """

    def __init__(self, what: str, *, limit: float) -> None:
        self.what = what
        self.limit = limit
        self.value = 0.0
        self.where = ""
        self.count = 0

    def add(self, value: float | Tensor, where: str, *, limit: float | None = None) -> None:
        """One measurement; ``limit`` where it is not that of the others. A value that is no number is the worst."""
        limit = self.limit if limit is None else limit
        value = float(value)
        value = math.inf if math.isnan(value) else value
        self.count += 1
        if self.count == 1 or _excess(value, limit) > _excess(self.value, self.limit):
            self.value, self.limit, self.where = value, limit, where

    @property
    def passed(self) -> bool:
        assert self.count, "a check that measured nothing says nothing"
        return self.value <= self.limit

    @property
    def detail(self) -> str:
        allowed = "nothing declared" if self.limit == math.inf else f"at most {self.limit:.2g} expected"
        where = f"at {self.where}" if self.value or self.count == 1 else f"in {self.count} measurements"
        if self.value and self.count > 1:
            where += f" (worst of {self.count})"
        return f"{self.what} {self.value:.2g} {where}; {allowed}"


def _excess(value: float, limit: float) -> float:
    if limit == 0.0:
        return math.inf if value > 0.0 else 0.0
    return value / limit
