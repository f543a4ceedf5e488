"""Metrics that a task reports."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Gt

STRICT: dict[str, Any] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""Configuration of pydantic for the types in a record, which checks them when a record is read."""


@dataclass(frozen=True)
class Metric:
    """A metric of a task: declared without a ``value``, recorded with one.

    Attributes:
        name: its name in result files and tables.
        value: the measured number; None if there is none.
        unit: its unit.
        higher_is_better: whether larger values are better.
        primary: whether it contributes to the compositional index; other metrics are only reported.
        at_length: sequence length in tokens, if the metric is one point of a curve against length (CAB, Figure 3c).
    """

    __pydantic_config__ = STRICT

    name: str
    value: float | None = field(default=None, kw_only=True)
    unit: str
    higher_is_better: bool
    primary: bool = True
    at_length: Annotated[int, Gt(0)] | None = field(default=None, kw_only=True)

    def measured(self, value: float | None) -> Metric:
        """Return a copy with the value; None, NaN and infinity become None."""
        is_number = value is not None and math.isfinite(value)
        return dataclasses.replace(self, value=float(value) if is_number else None)  # type: ignore[arg-type]


def mean_over_batches(sums: Iterable[tuple[float, int]]) -> float:
    """Return the mean of a value over all batches, from its sum and its count in each; NaN without any value."""
    total, count = total_of(sums)
    return total / count if count else math.nan


def total_of(sums: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Return the sum of all sums and of all counts."""
    total, count = 0.0, 0
    for batch_sum, batch_count in sums:
        total += batch_sum
        count += batch_count
    return total, count


def mean_scores(examples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over examples of each score."""
    return {name: mean_over_batches((scores[name], 1) for scores in examples) for name in examples[0]}
