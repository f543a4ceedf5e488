"""Numbers that are measurements: one check of NaN, infinity and overflow for all tables and tasks."""

from __future__ import annotations

from typing import Any, TypeGuard, overload

LARGEST_FLOAT = 3.4028235e38
"""Largest number of float32, in which networks compute, as it is printed.

Squares of their sums are finite in float64.
"""
SMALLEST_FLOAT = 2.0**-126
"""Smallest normal number of float32."""


@overload
def is_finite(value: float | None) -> TypeGuard[float]: ...


@overload
def is_finite(value: Any) -> Any: ...


def is_finite(value: Any) -> Any:
    """Return whether a number, or each number of an array, is neither None, NaN or infinite nor exceeds float32."""
    return value is not None and abs(value) <= LARGEST_FLOAT
