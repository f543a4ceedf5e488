"""Triton kernels without a GPU: run by Triton's interpreter, and compiled for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest

from cab import kernels

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton, which make setup installs on Linux")


def interpreted(kernel: Any) -> Any:
    """A kernel that takes tensors of the CPU; only its own module's functions are, not every kernel of the process."""
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(kernel.fn)


def run_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the backends of this name compute on a CPU instead of CUDA, in every operation."""
    for operation in kernels.operations():
        for backend in operation.backends:
            if backend.name == name:
                monkeypatch.setattr(backend, "device", "cpu")


def compiled(
    kernel: Any, tensors: Mapping[str, str], numbers: Mapping[str, str], constants: Mapping[str, Any], num_warps: int
) -> Any:
    """A kernel for compute capability 9.0, from the types of arguments, down to what the GPU would run."""
    import triton
    from triton.backends.compiler import GPUTarget

    kinds = {**tensors, **numbers, **dict.fromkeys(constants, "constexpr")}
    signature = {name: kinds[name] for name in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature=signature, constexprs=dict(constants))
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    assert made.asm["cubin"]
    return made
