"""Backends by the Triton kernels of flash-linear-attention, if it is installed (extra `cuda`).

They multiply numbers of bfloat16 with each other and keep sums, decays and states in float32; numbers of float32 they
multiply as TF32, or refuse. They break the graph of a compiled model. They tune themselves at their first call of a
shape, by the clock, so two processes may round differently.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from cab.kernels import Backend

LABEL = "kernels of flash-linear-attention"
"""Profiler region around its kernels; `cab efficiency` names what follows "kernels of ", and counts no operations."""

FACTORS = torch.bfloat16
"""The type of what is multiplied."""

SHORTEST = 64
"""Tokens of one of their blocks; fewer are faster in PyTorch."""


def _accepts(*_: Any, **__: Any) -> str | None:
    return None


def declines_few(heads: Tensor, *_: Any, **__: Any) -> str | None:
    """Decline heads [B, H, N, ...] of few tokens."""
    return f"fewer than {SHORTEST} tokens" if heads.shape[2] < SHORTEST else None


def fla_backend(
    run: Callable[..., Any],
    refuses: Callable[..., str | None] = _accepts,
    declines: Callable[..., str | None] = declines_few,
) -> Backend:
    """Return the backend that computes by ``run``, whose first argument is heads [B, H, N, ...]."""
    limits: dict[str, Any] = {"dtypes": (FACTORS,), "compiles": False, "is_deterministic": False}
    return Backend("fla", run, package="fla", refuses=refuses, declines=declines, **limits)


FAULTY_TRITON = (3, 4), (3, 7, 1)
"""First version in which, and first after which, gradients of decays per head are wrong on Hopper GPUs."""


@functools.cache
def has_wrong_gradients(device: torch.device) -> bool:
    """Return whether flash-linear-attention raises in backward passes with decays per head on this GPU."""
    version = tuple(map(int, re.findall(r"\d+", metadata.version("triton"))[:3]))
    return FAULTY_TRITON[0] <= version < FAULTY_TRITON[1] and torch.cuda.get_device_capability(device)[0] == 9


def call(path: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of flash-linear-attention, named by its path in the package ``fla``."""
    with record_function(LABEL):
        return find(path)(*arguments, **options)


def find(path: str) -> Callable[..., Any]:
    """Return the function with this path in the package ``fla``."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(f"fla.{module}"), name)
    return function
