"""Tune Triton kernels quickly where none has been compiled.

A kernel of flash-linear-attention has up to 60 candidates, which Triton compiles one after another: minutes per
attention. Here at most 16 candidates of a kernel are compiled, on all cores at once, and each is timed for 20 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

MOST = 16
"""Candidates of one kernel, evenly spaced in its list."""


def compile_candidates(prune: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Autotuner.prune_configs``, which selects the candidates of a call, to compile some of them."""
    from triton.runtime._async_compile import AsyncCompileMode

    @wraps(prune)
    def prune_configs(tuner: Any, arguments: dict[str, Any]) -> Any:
        candidates = list(prune(tuner, arguments))
        candidates = candidates[:: math.ceil(len(candidates) / MOST)]
        named = tuner.nargs | {name: value for name, value in arguments.items() if name != "warmup"}
        with ThreadPoolExecutor() as cores, AsyncCompileMode(cores, ignore_errors=True):
            for candidate in candidates:
                tuner.fn.warmup(**named, **candidate.all_kwargs())
        return candidates

    return prune_configs


def tune_quickly() -> None:
    """Make Triton's autotuner compile in parallel and time each candidate for 20 ms."""
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    Autotuner.prune_configs = compile_candidates(Autotuner.prune_configs)
    Autotuner.do_bench = partial(do_bench, warmup=5, rep=20)
