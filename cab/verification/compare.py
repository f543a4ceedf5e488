"""Scale-independent differences between tensors, and the limits for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cab.verification.inputs import Inputs, Module

ROUNDING = 1e-4
"""Limit where sums may be computed in another order (float32): allows hundreds of rounding errors."""

LEAK = 1e-5
"""Limit where only the rounding noise of an FFT can differ (float32)."""


def error_at(actual: Tensor, expected: Tensor, floor: float = 0.0) -> Tensor:
    """Return the relative error at every position: [..., D] to [...], root mean square over the width.

    The error is divided by the RMS of the expected output at the position, plus the median RMS over all positions,
    plus ``floor``. Neither small outputs at some positions nor large outputs at others hide an error. Non-finite
    values in one tensor count as infinite error, and in both as none: checks of finite values report those. Tensors
    without elements have no error.
    """
    if not expected.numel():
        return expected.new_zeros(expected.shape[:-1], dtype=torch.float64)
    actual, expected = actual.detach().double(), expected.detach().double()
    size = expected.pow(2).mean(-1).sqrt()
    error = (actual - expected).pow(2).mean(-1).sqrt()
    finite = size[size.isfinite()]
    typical = finite.median() if finite.numel() else size.new_zeros(())
    relative = (error / (size + typical + floor)).where(error != 0.0, 0.0)
    return relative.nan_to_num(nan=torch.inf).where(actual.isfinite().all(-1) | expected.isfinite().all(-1), 0.0)


def difference(actual: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Return the largest error at any position, or zero for empty tensors."""
    return max(error_at(actual, expected, floor).flatten().tolist(), default=0.0)


def gradient_floor(named: Mapping[str, Tensor]) -> float:
    """Return 1% of the largest RMS among ``named``: the ``floor`` for gradients that are zero except for rounding."""
    return 0.01 * max(filter(math.isfinite, map(rms, named.values())), default=0.0)


def rms(x: Tensor) -> float:
    """Return the root mean square of all values, 0 without values."""
    return x.detach().double().pow(2).mean().sqrt().item() if x.numel() else 0.0


def distance(actual: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Return the RMS of the error over all values, relative to the RMS of ``expected`` plus ``floor``; inf for NaN."""
    error, size = rms(actual.double() - expected.double()), rms(expected) + floor
    if error == 0.0:
        return 0.0
    return error / size if size > 0.0 and math.isfinite(error) else math.inf


class Operations(TorchDispatchMode):
    """Passes each operation, with the tensors it reads and those it returns, to a function."""

    def __init__(self, see: Callable[[Any, list[Any], list[Any]], None]) -> None:
        super().__init__()
        self.see = see

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Run compiled kernels (FlexAttention) as without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.see(func, *([x for x in tree_leaves(tree) if isinstance(x, Tensor)] for tree in ((args, kwargs), output)))
        return output


@torch.no_grad()
def coarsest(function: Callable[[], object]) -> float:
    """Return the machine epsilon of the coarsest dtype in which ``function`` computes (float32: 1.2e-7)."""
    dtypes = {torch.float32}
    with Operations(lambda _func, _read, written: dtypes.update(x.dtype for x in written if x.is_floating_point())):
        function()
    return max(torch.finfo(dtype).eps for dtype in dtypes)


def rounding(module: Module, inputs: Inputs) -> float:
    """Return :func:`coarsest` for one row: the dtype does not depend on the batch size."""
    return coarsest(lambda: inputs.rows(slice(0, 1)).run(module))


RARE = 0.01
"""Largest share of positions at which near ties can explain an error.

A method that selects blocks or hashes tokens meets scores that differ by less than a rounding error, at about one token
in some thousands. Two calls that sum in a different order may then choose differently, and both are right.
"""
