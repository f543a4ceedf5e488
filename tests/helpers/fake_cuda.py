"""CUDA devices without a GPU: tensors with ``is_cuda``, shape and dtype but no numbers, and a count of what they cost.

Inside of :func:`fake_cuda` every tensor on ``cuda`` is fake, and every tensor on the CPU is real. The branches that a
layer takes on CUDA and CUDA's autocast run as on a GPU. Kernels that torch cannot trace (flash-linear-attention, the
Triton kernels, FlexAttention, scaled_dot_product_attention) are replaced by stubs.
Only forward passes run, by default without gradients.
"""

import ctypes
import math
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[2]
CUDA, META = 1, 14  # numbers of these device types in torch's table of device guards

FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"} | {
    *("detach", "lift_fresh", "_unsafe_view")
}
"""Operators that launch no kernel, in addition to views."""

FROM_NOTHING = {"full_like", "ones_like", "rand_like", "randn_like", "zeros_like", "zero_", "fill_"} | {
    f"new_{name}" for name in ("full", "ones", "zeros")
}
"""Operators that do not read their tensor."""

ANSWER = 1  # the number that a read of a fake tensor gives, so that the layer runs to its end


class Counts(TorchDispatchMode):
    """Bytes and host reads of the operators on fake CUDA tensors.

    Bytes are those of the inputs and outputs of each operator, without fusion or caches; an expanded dimension counts
    once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.kernels: Counter[str] = Counter()
        """Calls of each kernel that a stub replaces."""
        self.host: list[str] = []
        """Reads of a CUDA tensor by the host and blocking copies, ``file:line operator``, in order."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Stay invisible to code that declines its kernels while operators are counted."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        device = kwargs.get("device")
        if not any(x.is_cuda for x in inputs) and (device is None or torch.device(device).type == "cpu"):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        name = func._overloadpacket.__name__
        read = self.reads(name, args, kwargs, inputs)
        if read:
            self.host.append(f"{place()} {read}")
            if name in ANSWERS:
                return ANSWERS[name](*args, **kwargs)
        if name in {"index", "index_put", "index_put_", "_unsafe_index"}:
            args = (args[0], [as_positions(x, args[0]) for x in args[1]], *args[2:])
        output = func(*args, **kwargs)
        outputs = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        if outputs and not func.is_view and name not in FREE:
            self.bytes += sum(map(size, outputs if name in FROM_NOTHING else [*inputs, *outputs]))
        return output

    def count(self, kernel: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], extra: int = 0) -> None:
        """Count a call of a stub that reads ``inputs``, writes ``outputs`` and moves ``extra`` bytes."""
        self.kernels[kernel] += 1
        self.bytes += sum(size(x) for x in [*inputs, *outputs] if x is not None) + extra

    def reads(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: list[Tensor]) -> str | None:
        """Return how the operator makes the host wait for the device, or None."""
        if name in ANSWERS and kwargs.get("output_size") is None:
            return name
        if name in {"index", "index_put", "index_put_", "_unsafe_index"}:
            indices = [x for x in args[1] if x is not None]
            if any(x.dtype in {torch.bool, torch.uint8} for x in indices):
                return f"{name} with a mask"
            if any(not x.is_cuda for x in indices):
                return f"{name} with indices on the host"
        if name in {"_to_copy", "copy_"}:
            target = torch.device(kwargs["device"]) if kwargs.get("device") else args[0].device
            blocks = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            if target.type == "cpu" or (blocks and any(not x.is_cuda for x in inputs)):
                return f"{name} to {target.type}"
        return None


def place() -> str:
    """Return the innermost line of the project that is running."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and ".venv" not in path.parts and "tests" not in path.parts:
            return f"{path.relative_to(ROOT)}:{frame.lineno}"
    return "?"


def as_positions(index: Tensor | None, x: Tensor) -> Tensor | None:
    """Return an index on the device, with a mask replaced by as many positions as it could select."""
    if index is None or index.dtype not in {torch.bool, torch.uint8}:
        return None if index is None else torch.empty_like(index, device=x.device)
    return torch.empty(index.numel(), dtype=torch.long, device=x.device)


def _unique(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    return x.flatten().clone(), torch.empty_like(x, dtype=torch.long), x.new_empty(x.numel(), dtype=torch.long)


ANSWERS: dict[str, Callable[..., Any]] = {
    "_local_scalar_dense": lambda x: bool(ANSWER) if x.dtype is torch.bool else ANSWER,
    "equal": lambda *_: True,
    "nonzero": lambda x: x.new_empty(x.numel(), x.dim(), dtype=torch.long),
    "masked_select": lambda x, _: torch.empty_like(x.flatten()),
    "_unique2": _unique,
    "unique_dim": _unique,
    "repeat_interleave": lambda repeats, **_: torch.empty_like(repeats, dtype=torch.long),
    "bincount": lambda x, *_: x.new_empty(x.numel(), dtype=torch.long),
}
"""Operators whose result or its shape the host waits for, and stand-ins of the result."""


def size(x: Tensor) -> int:
    """Return the bytes that a tensor occupies; an expanded dimension counts once."""
    return x.element_size() * math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride or not n)


@contextmanager
def fake_cuda(autocast: torch.dtype | None = None) -> Iterator[Counts]:
    """Make tensors on ``cuda`` fake and count their operators; ``autocast`` is the dtype of CUDA's autocast, if any."""
    with (
        pytest.MonkeyPatch.context() as patch,
        cuda_guard(),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        Counts() as counts,
    ):
        for module, names in stubs(counts).items():
            for name, stub in names.items():
                patch.setattr(module, name, stub)
        kernels = SimpleNamespace(**{name: triton_stub(counts, name) for name in TRITON})
        patch.setitem(sys.modules, "attentions.kernels.triton_kernels", kernels)  # whose import needs a GPU's compiler
        before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(False)  # as by default, unlike in the tests
        torch.set_autocast_enabled("cuda", autocast is not None)
        torch.set_autocast_dtype("cuda", autocast or before[1])
        try:
            yield counts
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
            torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
            torch.clear_autocast_cache()


@contextmanager
def cuda_guard() -> Iterator[None]:
    """Let a build of torch without CUDA index and copy fake CUDA tensors.

    Many of its operators enter the device of their tensor through a table, which has no entry for CUDA in such a
    build. The entry for meta tensors does nothing, so it serves for fake ones.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    table = (ctypes.c_void_p * (META + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = table[CUDA]
    table[CUDA] = before or table[META]
    try:
        yield
    finally:
        table[CUDA] = before


def to_fake_cuda(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Move a module to fake CUDA, its floating-point parameters and buffers to ``dtype`` if given. In place."""

    def move(x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=dtype if dtype and x.is_floating_point() else x.dtype, device="cuda")

    for part in module.modules():
        part._parameters.update({name: nn.Parameter(move(x)) for name, x in part._parameters.items() if x is not None})
        part._buffers.update({name: move(x) for name, x in part._buffers.items() if x is not None})
    return module


# --- Stubs of kernels that torch cannot trace ---------------------------------------------


FLA_CHUNK = 64


class FlaFunction:
    """A function of flash-linear-attention, which copies inputs that are not contiguous, but for convolutions.

    A recurrence maps q, k, v and more [B, T, H, ...] to outputs and the last state, and writes and reads the state
    [K, V] before each chunk. The others map an input to an output of its shape, a convolution also to a state.
    """

    def __init__(self, counts: Counts, path: str) -> None:
        self.path, self.count = path, partial(counts.count, f"fla {path.rpartition('.')[-1]}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        convolves = self.path.endswith("causal_conv1d")
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        inputs = [x if convolves and x is inputs[0] else x.contiguous() for x in inputs]
        if "v" not in kwargs:
            output = torch.empty_like(inputs[0], memory_format=torch.contiguous_format)
            self.count(inputs, [output])
            return (output, None) if convolves else output
        value, (batch, length, _, keys) = kwargs["v"], kwargs["q"].shape
        heads, width = value.shape[2:]
        output = torch.empty(batch, length, heads, width, dtype=value.dtype, device=value.device)
        if not kwargs.keys() & {"initial_state", "h0"}:
            self.count(inputs, [output])
            return output
        state = torch.empty(batch, heads, keys, width, dtype=torch.float32, device=value.device)
        self.count(inputs, [output, state], 4 * batch * heads * -(-length // FLA_CHUNK) * keys * width)
        return (None, state, output) if "h0" in kwargs else (output, state)


def _turned(query: Tensor, _key: Tensor, _norm: Tensor, _key_norm: Tensor, bias: Tensor, *_: Tensor) -> Any:
    (rows, length, keys), heads = query.shape, len(bias)
    turned = (query.new_empty(rows, length, heads, keys) for _ in range(2))
    return *turned, query.new_empty(rows, heads, length, dtype=torch.float32)


TRITON: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "recurrence_sums": lambda initial, added, *_: (torch.empty_like(added), torch.empty_like(initial)),
    "delta_rule_states": lambda initial, x, w, *_: (
        torch.empty_like(x),
        initial.new_empty(*w.shape[:3], *initial.shape[2:]),
        torch.empty_like(initial),
    ),
    "gated_skip": lambda x, *_: (torch.empty_like(x),),
    "turned": _turned,
}
"""The outputs of our Triton kernels, from their tensors."""


def triton_stub(counts: Counts, name: str) -> Callable[..., Any]:
    """Return a stub of one of :data:`TRITON`."""

    def run(*inputs: Any, **_: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        outputs = TRITON[name](*tensors)
        counts.count(f"triton {name}", tensors, outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    return run


HALVES = {torch.bfloat16, torch.float16}


def sdpa_backend(query: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Return the kernel that torch takes on CUDA by its documented conditions, with cuDNN's left out."""
    is_half, width = query.dtype in HALVES, query.shape[-1]
    if is_half and mask is None and width == value.shape[-1] and width <= 256:
        return "flash"
    multiple = 8 if is_half else 4
    return "efficient" if width % multiple == 0 and value.shape[-1] % multiple == 0 else "math"


def stubs(counts: Counts) -> dict[Any, dict[str, Callable[..., Any]]]:
    """Return stubs of functions by the module that holds them."""
    from torch.nn.attention import flex_attention as flex

    from attentions.kernels import window_attention
    from cab import flash_linear_attention

    exact = F.scaled_dot_product_attention

    def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *more: Any, **options: Any) -> Tensor:
        if not query.is_cuda:
            return exact(query, key, value, attn_mask, *more, **options)
        if torch.is_autocast_enabled("cuda"):
            half = torch.get_autocast_dtype("cuda")
            query, key, value = (x.to(half) if x.dtype is torch.float32 else x for x in (query, key, value))
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        counts.count(f"sdpa {sdpa_backend(query, value, attn_mask)}", [query, key, value, attn_mask], [output])
        return output

    def flex_attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        counts.count("flex_attention", [query, key, value], [output])
        return output

    return {
        F: {"scaled_dot_product_attention": sdpa},
        flex: {"flex_attention": flex_attention},
        torch: {"compile": lambda function, **_: function},
        torch.cuda: {"device_of": nullcontext},
        flash_linear_attention: {"find": lambda path: FlaFunction(counts, path)},
        window_attention: {"flex_works": lambda *_: True},
    }
