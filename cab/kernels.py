"""Registry of operations that have several backends: readable PyTorch, and kernels that compute the same faster.

An attention calls an operation; which backend computes it is decided per call, from the arguments:

    recurrence = Operation("recurrence", in_pytorch, Backend("fla", by_fla, package="fla", dtypes=(torch.bfloat16,)))
    output, state = recurrence(query, key, value, log_decay, state)

By default the first backend that does not refuse computes it, and otherwise the reference, named ``pytorch``.

    with kernels.use("pytorch"), kernels.used() as uses:  # or "fla", {"softmax": "flash"}, None for the default
        module(x)
    uses.counts    # {"recurrence": {"pytorch": 1}}, empty if no operation was called
    uses.refusals  # {"recurrence": {"fla": "not on cuda"}}
    kernels.backends()  # {"recurrence": ("fla", "pytorch"), ...}: operations of the modules imported so far

With one name, operations that lack this backend are computed by their reference, never by a third one; so a module has
used backend ``name`` if and only if ``name in uses.names``. A named backend that refuses raises UnsupportedError, for a
reason that the user can change. The type of a call is the caller's choice, who may have upcast its inputs: operations
lack a backend that does not multiply it, unless the caller passes the type of the layer's heads (``rounding_to``).
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial, update_wrapper
from importlib.util import find_spec
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from cab.errors import UnsupportedError, UserError

REFERENCE = "pytorch"
NAMES = (REFERENCE, "triton", "fla", "flex", "flash", "cudnn", "efficient")
"""Names of backends: the reference, CAB's Triton kernels, flash-linear-attention, and those of torch for softmax."""

Selection = str | Mapping[str, str] | None
"""A backend for all operations that have it, a backend by operation, or None for an automatic choice."""

P = ParamSpec("P")
R = TypeVar("R")


def _accepts(*_: Any, **__: Any) -> str | None:
    return None


@dataclass(eq=False)
class Backend:
    """A kernel for an operation, and when it must not run.

    Attributes:
        name: one of :data:`NAMES`.
        run: computes the operation from the same arguments as its reference.
        package: package that it needs.
        device: type of the device on which it runs.
        dtypes: types that it multiplies.
        compiles: whether it runs inside ``torch.compile`` without breaking the graph.
        is_deterministic: whether two processes round alike.
        refuses: returns why it cannot compute these arguments, or None.
        declines: returns why another backend is better for these arguments unless this one is named, or None.
    """

    name: str
    run: Callable[..., Any]
    _: KW_ONLY
    package: str = ""
    device: str = "cuda"
    dtypes: Collection[torch.dtype] = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    compiles: bool = True
    is_deterministic: bool = True
    refuses: Callable[..., str | None] = _accepts
    declines: Callable[..., str | None] = _accepts
    is_installed: bool = field(init=False)

    def __post_init__(self) -> None:
        assert self.name in NAMES
        self.is_installed = not self.package or find_spec(self.package) is not None

    def reason(self, dtype: torch.dtype, is_named: bool, *inputs: Any, **options: Any) -> str | None:
        """Return why it does not multiply these inputs in ``dtype``, or None; a named one does not decline."""
        if inputs[0].device.type != self.device:
            return f"not on {self.device}"
        if not self.is_installed:
            return f"package {self.package} is not installed"
        if dtype not in self.dtypes:
            return str(dtype).removeprefix("torch.")
        if not self.compiles and torch.compiler.is_compiling():
            return "torch.compile"
        if not self.is_deterministic and torch.are_deterministic_algorithms_enabled():
            return "deterministic algorithms"
        declined = None if is_named else self.declines(*inputs, **options)  # first: to refuse may break a graph
        return self.refuses(*inputs, **options) if declined is None else declined


class Operation(Generic[P, R]):
    """A function with a readable reference in PyTorch and faster backends, in the order of preference.

    Args:
        name: unique name, by which ``trainer.kernels`` and records refer to it.
        reference: the function in PyTorch, for any device and dtype. Its first argument is a tensor.
        backends: its kernels.
    """

    def __init__(self, name: str, reference: Callable[P, R], *backends: Backend) -> None:
        _OPERATIONS[name] = self
        self.name, self.reference, self.backends = name, reference, backends
        update_wrapper(self, getattr(reference, "func", reference))

    def __call__(self, *inputs: P.args, **options: P.kwargs) -> R:
        return self._compute(None, *inputs, **options)

    def rounding_to(self, dtype: torch.dtype) -> Callable[P, R]:
        """Return the operation for a layer with heads in ``dtype``, to which products may be rounded, but not sums."""
        return partial(self._compute, dtype)

    def choose(self, dtype: torch.dtype | None, *inputs: Any, **options: Any) -> Backend | None:
        """Return the backend for these inputs, or None for the reference.

        Args:
            dtype: of the layer's heads, to which products may be rounded. By default that of the first input, and a
                backend that does not multiply it is passed over.
            inputs: as for a call, also tensors of the same shapes, dtype and device.
            options: as for a call.

        Raises:
            UnsupportedError: if the selected backend refuses.
        """
        first: Tensor = inputs[0]
        factors, named = first.dtype if dtype is None else dtype, _selected(self)
        for backend in self.backends:
            if named is None or named == backend.name:
                reason = backend.reason(factors, named is not None, *inputs, **options)
                if reason is None:
                    return backend
                if named is not None and (dtype is not None or factors in backend.dtypes):
                    raise UnsupportedError(f"{named} does not compute {self.name}: {reason}")
                _note(self.name, backend.name, reason)
        return None

    def _compute(self, dtype: torch.dtype | None, *inputs: P.args, **options: P.kwargs) -> R:
        backend = self.choose(dtype, *inputs, **options)
        _note(self.name, REFERENCE if backend is None else backend.name)
        result: R = (self.reference if backend is None else backend.run)(*inputs, **options)
        return result


@dataclass
class Uses:
    """Calls of operations by backend, and why others were not chosen (the last reason), by operation and backend.

    A compiled module is counted where it is traced, not at each call.
    """

    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    refusals: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def names(self) -> set[str]:
        """Names of the backends that ran."""
        return {name for counts in self.counts.values() for name in counts}


_OPERATIONS: dict[str, Operation[..., Any]] = {}


class _State:
    """Module state, not context variables: ``torch.compile`` reads it without breaking the graph."""

    selection: Selection = None
    uses: tuple[Uses, ...] = ()


def _selected(operation: Operation[..., Any]) -> str | None:
    selection = _State.selection
    return selection if selection is None or isinstance(selection, str) else selection.get(operation.name)


def _note(operation: str, backend: str, refusal: str | None = None) -> None:
    for uses in _State.uses:
        if refusal is None:
            uses.counts[operation][backend] += 1
        else:
            uses.refusals[operation][backend] = refusal


# As torch.compiler.assume_constant_result, without loading the compiler: it runs while a call is traced.
_note._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check(selection: Selection) -> None:
    """Raise UserError for an unknown backend, or an operation that no imported module defines."""
    known = backends()
    if isinstance(selection, str) and selection not in NAMES:
        raise UserError(f"unknown kernels {selection!r}; choose from {', '.join(NAMES)}")
    for name, backend in () if selection is None or isinstance(selection, str) else selection.items():
        if backend not in known.get(name, ()):
            choices = "; ".join(f"{name}: {', '.join(names)}" for name, names in known.items())
            raise UserError(f"unknown kernels {name}: {backend}; choose from {choices}")


@contextlib.contextmanager
def use(selection: Selection) -> Iterator[None]:
    """Select backends inside the block, see :data:`Selection`; UserError as from :func:`check`."""
    check(selection)
    before, _State.selection = _State.selection, selection
    try:
        yield
    finally:
        _State.selection = before


@contextlib.contextmanager
def used() -> Iterator[Uses]:
    """Count the calls of operations inside the block, by backend."""
    uses = Uses()
    _State.uses = (*_State.uses, uses)
    try:
        yield uses
    finally:
        _State.uses = tuple(x for x in _State.uses if x is not uses)


def operations() -> list[Operation[..., Any]]:
    """Return the operations that the modules imported so far define."""
    return list(_OPERATIONS.values())


def backends() -> dict[str, tuple[str, ...]]:
    """Return the names of the backends of each of the :func:`operations`, in the order of preference."""
    return {op.name: (*(backend.name for backend in op.backends), REFERENCE) for op in operations()}


def kernel_times(call: Callable[[], object]) -> dict[str, list[float]]:
    """Call once under the profiler and return the seconds of each kernel, copy and fill on the GPU, by name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    times = defaultdict[str, list[float]](list)
    for event in profile.events() or ():
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            times[event.name].append(event.time_range.elapsed_us() / 1e6)
    return dict(times)


def device_kernels(call: Callable[[], object]) -> list[str]:
    """Call once under the profiler and return the names of the kernels that ran on the GPU.

    A backend may choose among kernels of its own, so its name does not say which one ran.
    """
    return sorted(name for name in kernel_times(call) if not name.startswith(("Memcpy", "Memset")))
