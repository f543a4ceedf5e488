"""Triton kernels without a GPU: run by Triton's interpreter, and compiled for a GPU that is not there."""

import builtins
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from cab import kernels

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton, which make setup installs on Linux")
needs_fla = pytest.mark.skipif(find_spec("fla") is None, reason="fla, which make setup installs on Linux")


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


def interpret_fla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run flash-linear-attention where TRITON_INTERPRET=1 was set before Triton was loaded.

    The interpreter times no settings, its loops count in Python's numbers, it has no bare gather, and it stores
    bfloat16 as integers, which a sum would add.
    """
    import fla.modules
    import fla.ops.gated_delta_product
    import fla.ops.gdn2  # noqa: F401
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.autotuner import Autotuner

    monkeypatch.setattr(Autotuner, "run", _with_the_first_setting)
    for name, module in list(sys.modules.items()):
        if name.startswith(("fla.ops", "fla.modules")):
            monkeypatch.setattr(module, "range", _steps, raising=False)
            if hasattr(module, "gather"):
                monkeypatch.setattr(module, "gather", lambda *given, **more: tl.gather(*given, **more))
    convert = interpreter._convert_float

    def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == (tl.bfloat16, tl.float32):
            return _widened(data)
        return (
            _rounded(data) if (source, target) == (tl.float32, tl.bfloat16) else convert(data, source, target, rounding)
        )

    monkeypatch.setattr(interpreter, "_convert_float", convert_float)

    def get_bf16(_: Any, value: float) -> Any:
        return interpreter.TensorHandle(_rounded(np.array([value], dtype=np.float32)), tl.bfloat16)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "get_bf16", get_bf16, raising=False)
    add_up = interpreter.ReduceOps.sum

    def sum_up(self: Any, given: Any) -> Any:
        if given.dtype != tl.bfloat16:
            return add_up(self, given)
        total = np.sum(_widened(given.handle.data), axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(_rounded(total).reshape(np.shape(total)), tl.bfloat16)

    monkeypatch.setattr(interpreter.ReduceOps, "sum", sum_up)
    for name in ("binary_op", "unary_op", "create_dot", "create_fma"):
        method = getattr(interpreter.InterpreterBuilder, name)
        monkeypatch.setattr(interpreter.InterpreterBuilder, name, _in_float32(method))


def _with_the_first_setting(self: Any, *args: Any, **kwargs: Any) -> Any:
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    setting = self.prune_configs(kwargs)[0].all_kwargs()
    self.pre_hook({**self.nargs, **kwargs, **setting}, reset_only=True)
    return self.fn.run(*args, **kwargs, **setting)


def _steps(*ends: Any) -> Iterable[Any]:
    """Of a loop in a kernel tensors, as when it is compiled."""
    import triton.language as tl
    from triton.runtime.interpreter import _implicit_cvt

    numbers = builtins.range(*map(int, ends))
    return map(_implicit_cvt, numbers) if any(isinstance(end, tl.tensor) for end in ends) else numbers


def _widened(data: Any) -> Any:
    """Bits of bfloat16 as float32."""
    return (data.astype(np.uint32) << 16).view(np.float32)


def _rounded(data: Any) -> Any:
    """Bits of bfloat16 nearest to float32, ties to even."""
    bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
    nearest = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(data), np.uint16(0x7FC0), nearest)


def _in_float32(method: Callable[..., Any]) -> Callable[..., Any]:
    """Compute operands of bfloat16 in float32 and round the result."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def is_narrow(x: Any) -> bool:
        return isinstance(x, TensorHandle) and x.dtype == tl.bfloat16

    @wraps(method)
    def compute(self: Any, *args: Any, **options: Any) -> Any:
        wide = [TensorHandle(_widened(x.data), tl.float32) if is_narrow(x) else x for x in args]
        result = method(self, *wide, **options)
        tensors = [x for x in args if isinstance(x, TensorHandle)]
        if is_narrow(tensors[-1]) and result.data.dtype == np.float32:
            return TensorHandle(_rounded(result.data), tl.bfloat16)
        return result

    return compute


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
