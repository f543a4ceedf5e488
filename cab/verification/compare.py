"""How far two outputs are apart, in numbers that do not depend on their scale."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

ROUNDING = 1e-4
"""Allowed where the same sums may be taken in another order (float32): hundreds of roundings, no defect."""

LEAK = 1e-5
"""Allowed where nothing but the noise of a Fourier transform can differ (float32)."""


def error_at(actual: Tensor, expected: Tensor, floor: float = 0.0) -> Tensor:
    """Error at every position, [..., D] to [...]: root mean square over the width, relative to the size there.

    The size is that of the expected output at the position plus its median over all positions, so that neither
    small outputs at some positions nor large ones at others hide an error; ``floor`` is added to it. Values that
    are not finite in one of the two count as infinite error.
    """
    actual, expected = actual.detach().double(), expected.detach().double()
    size = expected.pow(2).mean(-1).sqrt()
    error = (actual - expected).pow(2).mean(-1).sqrt()
    finite = size[size.isfinite()]
    typical = finite.median() if finite.numel() else size.new_zeros(())
    relative = (error / (size + typical + floor)).where(error != 0.0, 0.0)
    return relative.nan_to_num(nan=torch.inf)


def difference(actual: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """The largest error at any position; zero when there is none to compare."""
    return error_at(actual, expected, floor).max().item() if expected.numel() else 0.0


def gradient_floor(named: Mapping[str, Tensor]) -> float:
    """What counts as size of a gradient that is zero but for rounding: a hundredth of the largest among ``named``."""
    sizes = [x.double().pow(2).mean().sqrt().item() for x in named.values() if x.numel()]
    return 0.01 * max((size for size in sizes if math.isfinite(size)), default=0.0)


def limit_for(epsilon: float, limit: float) -> float:
    """``limit`` (for float32) as it is for numbers of relative spacing ``epsilon``: at most 4 spacings are added."""
    return limit if epsilon < 1e-6 else max(limit, 4.0 * epsilon)


def distance(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the error of all values, relative to that of the expected ones; infinite for NaN."""
    error = (actual.detach().double() - expected.detach().double()).pow(2).mean().sqrt().item()
    size = expected.detach().double().pow(2).mean().sqrt().item()
    if error == 0.0:
        return 0.0
    return error / size if size > 0.0 and math.isfinite(error) else math.inf
