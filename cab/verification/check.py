"""The definition of a check and its measurement: the worst value, its location and the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from cab.verification.inputs import LAYOUTS
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
    declared_in: str = ""
    """Class attribute that declares an intended deviation from the property; empty if there is none."""


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


def pads(subject: Subject) -> bool:
    """Return whether the subject supports any padding layout."""
    return bool(subject.padding_layouts)


def supports(subject: Subject, layout: str) -> bool:
    """Return whether the subject supports a padding layout."""
    return layout in subject.padding_layouts


Measure = Callable[[Subject], "Worst"]


def check(
    group: str,
    *,
    applies: Callable[[Subject], bool] = always,
    is_quick: bool = True,
    is_timed: bool = False,
    declared_in: str = "",
) -> Callable[[Measure], Measure]:
    """Register the decorated function as a check of ``group``; its docstring's first paragraph states the property."""

    def add(measure: Measure) -> Measure:
        name, summary = measure.__name__, _summary(measure)
        CHECKS[name] = Check(
            name, group, summary, applies, measure, is_quick=is_quick, is_timed=is_timed, declared_in=declared_in
        )
        return measure

    return add


LayoutMeasure = Callable[..., "Worst"]
"""A function of a subject and a padding layout."""


def check_layouts(group: str, *, applies: Callable[..., bool] = supports) -> Callable[[LayoutMeasure], LayoutMeasure]:
    """Register the decorated function as one check per padding layout, called ``<function>_<layout>``."""

    def add(measure: LayoutMeasure) -> LayoutMeasure:
        for layout in LAYOUTS:
            check = Check(
                f"{measure.__name__}_{layout}",
                group,
                f"{_summary(measure).removesuffix('.')} (padding {layout}).",
                applies=partial(applies, layout=layout),
                measure=partial(measure, layout=layout),
                declared_in="padding_layouts",
            )
            CHECKS[check.name] = check
        return measure

    return add


def _summary(measure: Callable[..., object]) -> str:
    return " ".join((measure.__doc__ or "").split("\n\n")[0].split())


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
        self.usual = self.limit = limit
        self.value = 0.0
        self.where = ""
        self.finding = ""
        self.count = 0

    def add(self, value: float | Tensor, where: str, *, limit: float | None = None, finding: str = "") -> None:
        """Add one measurement, with its own ``limit`` if given; NaN counts as infinite.

        Args:
            value: the measured value.
            where: setup and location of the measurement.
            limit: largest value that passes (default: that of all measurements).
            finding: sentence that states the defect if the value exceeds the limit.
        """
        limit = self.usual if limit is None else limit
        value = float(value)
        value = math.inf if math.isnan(value) else value
        self.count += 1
        if self.count == 1 or _excess(value, limit) > _excess(self.value, self.limit):
            self.value, self.limit, self.where, self.finding = value, limit, where, finding

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
