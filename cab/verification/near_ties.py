"""Errors between two calls of a module, apart from choices that rounding decides.

A method that selects blocks or hashes tokens meets scores that differ by less than a rounding error, at about one token
in some thousands. Two calls that sum in a different order may then choose differently, and both are right.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

from torch import Tensor

from cab.verification.inputs import Inputs, Module

RARE = 0.01
"""Largest share of positions at which near ties can explain an error."""

Measure = Callable[[Module, Inputs], dict[str, Tensor]]
"""A comparison of calls of a module: relative errors at every position, by the name of the compared part."""


def largest_errors(measure: Measure, module: Module, inputs: Inputs, *, limit: float) -> dict[str, float]:
    """Return the largest error of every part, in float64 where near ties may explain the error in float32.

    That is where some positions, but at most one in a hundred, exceed ``limit``, and the module computes in float64.
    A defect also shows in float64; a near tie hardly ever occurs there.
    """
    errors = measure(module, inputs)
    rare = {part for part, error in errors.items() if 0 < (error > limit).sum() <= RARE * error.numel()}
    if rare:
        with contextlib.suppress(Exception):  # float64 is optional
            exact = measure(copy.deepcopy(module).double(), inputs.double())
            errors |= {part: exact[part] for part in rare}
    return {part: error.max().item() if error.numel() else 0.0 for part, error in errors.items()}
