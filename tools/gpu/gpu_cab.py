"""Run `cab` on a GPU where no Triton kernel has been compiled: `python -m tools.gpu.gpu_cab efficiency gla ...`.

A kernel of flash-linear-attention has up to 60 candidates, which Triton compiles one after another: minutes per
attention. Here at most 16 candidates of a kernel are compiled, on all cores at once, and each is timed for 20 ms.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

from cab.cli.main import program

MOST = 16
"""Candidates of one kernel, evenly spaced in its list."""


def compile_candidates(prune: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Autotuner.prune_configs``, which selects the candidates of a call, to compile some of them."""
    from triton.runtime._async_compile import AsyncCompileMode

    @wraps(prune)
    def prune_configs(tuner: Any, arguments: dict[str, Any]) -> Any:
        candidates = list(prune(tuner, arguments))
        candidates = candidates[:: math.ceil(len(candidates) / MOST)]
        with ThreadPoolExecutor() as cores, AsyncCompileMode(cores, ignore_errors=True):
            for candidate in candidates:
                tuner.fn.warmup(**tuner.nargs, **arguments, **candidate.all_kwargs())
        return candidates

    return prune_configs


def tune_quickly() -> None:
    """Make Triton's autotuner compile in parallel and time each candidate for 20 ms."""
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    Autotuner.prune_configs = compile_candidates(Autotuner.prune_configs)
    Autotuner.do_bench = partial(do_bench, warmup=5, rep=20)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # a CPU build of torch has no Triton
        tune_quickly()
    program()
