"""The definition of a check and its measurement: the worst value, its location and the limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cab.verification.subject import Subject

FLOAT32 = 2.0**-23
"""Machine epsilon of float32, the unit of some limits."""

Measurements = Iterator[tuple[Any, ...]]
"""The results of a check: value and location, then optionally limit, finding and more; see :meth:`Worst.add`."""

Limit = float | Callable[[Subject], float]
"""Largest value that passes, for every subject or as a function of the subject."""


@dataclass(frozen=True)
class Check:
    """A property that an attention must have in every pattern to which the check applies.

    Attributes:
        summary: the property in one sentence.
        quantity: the measured quantity.
        limit: largest value that passes, unless a measurement has its own. A number other than 0 is for float32.
        applies: whether a subject is expected to have the property.
        is_timed: whether the result depends on the speed of the machine.
        declared_in: class attribute that declares an intended deviation, unless a measurement excludes it.
        runs_long: whether long sequences are measured as well; always False in the quick suite.
    """

    name: str
    group: str
    summary: str
    quantity: str
    measurements: Callable[[Subject], Measurements]
    limit: Limit = 0.0
    applies: Callable[[Subject], bool] = lambda _: True
    is_quick: bool = True
    is_timed: bool = False
    declared_in: str = ""
    runs_long: bool = True

    def measure(self, subject: Subject) -> Worst:
        """Return the worst measurement of ``subject``."""
        limit = self.limit(subject) if callable(self.limit) else self.limit and subject.rounded(self.limit)
        worst = Worst(self.quantity, limit=limit, declared_in=self.declared_in)
        try:
            for measurement in self.measurements(subject):
                worst.add(*measurement)
        except Exception:
            if not worst.count or worst.passed:
                raise  # otherwise, the failure before the exception is the cause
        if not worst.count:
            worst.add(0.0, "no call, as none is expected to have the property")
        return worst


CHECKS: dict[str, Check] = {}
"""Every check by name."""

Function = Callable[..., Measurements]
"""A function of a subject."""


def check(group: str, quantity: str, **options: Any) -> Callable[[Function], Function]:
    """Register the decorated function as a check; the first paragraph of its docstring states the property.

    ``options`` are further attributes of :class:`Check`.
    """

    def add(function: Function) -> Function:
        name, summary = function.__name__, " ".join((function.__doc__ or "").split("\n\n")[0].split())
        CHECKS[name] = Check(name, group, summary, quantity, function, **options)
        return function

    return add


class Worst:
    """The largest of several measurements relative to their limits, and its location.

    >>> worst = Worst("error", limit=0.1)
    >>> worst.add(0.05, "n=3")
    >>> worst.add(0.2, "n=5")
    >>> worst.passed, worst.detail
    (False, 'error 0.2 > 0.1 at n=5 (worst of 2)')
    """

    def __init__(self, quantity: str, *, limit: float, declared_in: str = "") -> None:
        self.quantity, self.usual_limit, self.usual_declaration = quantity, limit, declared_in
        self.value, self.where, self.limit, self.finding, self.declared_in = 0.0, "", limit, "", declared_in
        self.count = 0

    def add(
        self,
        value: float | Tensor,
        where: str,
        limit: float | None = None,
        finding: str = "",
        declared_in: str | None = None,
    ) -> None:
        """Add one measurement; NaN counts as infinite.

        Args:
            value: the measured value.
            where: setup and location of the measurement.
            limit: largest value that passes (default: that of the check).
            finding: sentence that states the defect if the value exceeds the limit.
            declared_in: attribute that declares this deviation (default: that of the check; empty: none).
        """
        limit = self.usual_limit if limit is None else limit
        value = math.inf if math.isnan(float(value)) else float(value)
        self.count += 1
        if self.count == 1 or _excess(value, limit) > _excess(self.value, self.limit):
            self.value, self.limit, self.where, self.finding = value, limit, where, finding
            self.declared_in = self.usual_declaration if declared_in is None else declared_in

    @property
    def passed(self) -> bool:
        assert self.count, "a check needs at least one measurement"
        return self.value <= self.limit

    @property
    def detail(self) -> str:
        limit = "(no limit declared)" if self.limit == math.inf else f"{'<=' if self.passed else '>'} {self.limit:.2g}"
        where = f"at {self.where}" if self.value or self.count == 1 else f"in {self.count} measurements"
        number = f" (worst of {self.count})" if self.value and self.count > 1 else ""
        return f"{self.quantity} {self.value:.2g} {limit} {where}{number}"


def _excess(value: float, limit: float) -> float:
    if limit == 0.0:
        return math.inf if value > 0.0 else 0.0
    return value / limit
