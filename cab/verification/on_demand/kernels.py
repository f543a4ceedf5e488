"""Backends of operations (:mod:`cab.kernels`) against their readable forms in float64.

The attention is called with the backends that its device would choose. The arguments of their calls are computed three
times: by the backend, by the readable form in float64, and by the readable form in float32 with the roundings of a
kernel. The first two give the error of the backend, the last two its limit.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from cab.errors import UnsupportedError, first_line
from cab.kernels import REFERENCE, Backend, Operation, operations, use, used
from cab.verification.check import Measurements, check
from cab.verification.entries import initial_state, read_chunks
from cab.verification.inputs import Inputs, Module
from cab.verification.subject import WHOLE, Subject

MARGIN = 3.0
"""Factor on the error of the readable form: a kernel rounds intermediate results, too."""

HEADS, WIDTHS, LENGTHS = 2, (64, 128), (131, 1030)

Form = Callable[..., Any]

Pair = tuple[str, str]
"""Names of an operation and of its backend."""


class Agreement(NamedTuple):
    """The largest error of a backend relative to its limit."""

    operation: str
    backend: str
    error: float
    limit: float
    where: str

    @property
    def excess(self) -> float:
        """Error relative to the limit; infinite for NaN."""
        return math.inf if math.isnan(self.error) else self.error / self.limit

    @property
    def passed(self) -> bool:
        return self.excess <= 1.0


class Call(NamedTuple):
    """A call of an operation for which ``backend`` was chosen."""

    operation: Operation[..., Any]
    backend: Backend
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    outputs: list[Tensor]
    """Those of the readable form, on which the outputs of the attention depend."""


@check(
    "kernels",
    "error of a backend relative to its limit",
    limit=lambda _: 1.0,
    applies=lambda s: s.keeps_whole_contract and bool(operations_of(s)),
)
def backend_errors(subject: Subject) -> Measurements:
    """Backends are as exact as the readable forms of their operations: outputs, states and gradients."""
    widths, lengths = (WIDTHS, LENGTHS) if subject.long else (WIDTHS[:1], LENGTHS[:1])
    for found in agreements(subject, widths, lengths):
        name = f"{found.operation} {found.backend}"
        yield found.excess, f"{name} (error {found.error:.1e}), {found.where}", None, f"{name} is inexact"


def agreements(
    subject: Subject, widths: Sequence[int] = WIDTHS, lengths: Sequence[int] = LENGTHS
) -> Iterator[Agreement]:
    """Compare every backend that computes an operation of the attention on its device, at each size and precision.

    Calls have padding, or in a causal pattern two pieces, of which the second has the state after the first. Backends
    that compute no call are added to ``subject.skipped`` with their reason.
    """
    compared, reasons = set[Pair](), dict[Pair, str]()
    pairs, nothing = list[Pair](), torch.empty(0, device=subject.device)
    for operation, backend in ((each, backend) for each in operations_of(subject) for backend in each.backends):
        if backend.device == nothing.device.type and backend.is_installed:
            pairs.append((operation.name, backend.name))
        else:
            reasons[operation.name, backend.name] = str(backend.reason(torch.float32, True, nothing))
    for width in widths if pairs else ():
        for length in lengths:
            for dtype in (torch.float32, *({torch.bfloat16} & {*subject.autocast_dtypes})):
                for how, way in WAYS.items():
                    for call, weights in _calls(subject, pairs, way, width, length, dtype, reasons):
                        where = f"{how} in {str(dtype)[6:]}, {width} features, {length} tokens"
                        yield _agreement(call, weights, dtype, where)
                        compared.add((call.operation.name, call.backend.name))
    skipped = {pair: reason for pair, reason in reasons.items() if pair not in compared}
    subject.skipped += [f"{' '.join(pair)}: {reason}" for pair, reason in skipped.items()]


def operations_of(subject: Subject) -> list[Operation[..., Any]]:
    """Return the operations that the attention calls, also within readable forms, and that have backends."""
    if operations_of not in subject.shared:
        module = subject.build()
        with torch.no_grad(), _stand_ins(), used() as uses:
            for selection in (None, REFERENCE):
                with use(selection):
                    subject.draw(module, WHOLE).run(module)
        subject.shared[operations_of] = set(uses.counts)
    return [
        operation
        for operation in operations()
        if operation.backends and operation.name in subject.shared[operations_of]
    ]


# --- calls of an attention -------------------------------------------------------------------------------------------


def _padded(module: Module, subject: Subject, length: int) -> Tensor:
    inputs = subject.draw(module, length, padding="right").requiring_grad()
    return inputs.run(module).where(inputs.real.unsqueeze(-1), 0.0)


def _in_pieces(module: Module, subject: Subject, length: int) -> Tensor:
    inputs: Inputs = subject.draw(module, length, batch=1).requiring_grad()
    if not subject.prefills:
        return inputs.run(module)
    first = length // 2 + 1  # no piece is so short that kernels of fla decline it
    return read_chunks(module, inputs, (first, length - first), initial_state(module, inputs))[0]


Way = Callable[[Module, Subject, int], Tensor]
"""Computes the outputs of a module for a number of tokens."""

WAYS: dict[str, Way] = {"with padding": _padded, "in pieces": _in_pieces}


def _calls(
    subject: Subject,
    pairs: Sequence[Pair],
    way: Way,
    width: int,
    length: int,
    dtype: torch.dtype,
    reasons: dict[Pair, str],
) -> Iterator[tuple[Call, list[Tensor]]]:
    """Yield the last call of each backend, one of ``pairs``, and the gradients of its outputs.

    Backends that are not the first choice are selected by name. Why others are not chosen is added to ``reasons``.
    """
    module = subject.build(embed_dim=HEADS * width, num_heads=HEADS)
    device = torch.device(subject.device).type
    seen = set[Pair]()
    for pair in (None, *pairs):
        if pair in seen:
            continue
        selected = use(None if pair is None else dict([pair]))
        with _stand_ins() as calls, used() as uses, selected:
            try:
                with torch.autocast(device, torch.bfloat16, enabled=dtype is torch.bfloat16):
                    output = way(module, subject, length)
            except UnsupportedError as error:
                assert pair is not None
                reasons[pair] = str(error).partition(": ")[2]
                continue
            weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
            new = {key: call for key, call in calls.items() if key not in seen and pair in (None, key)}
            # among the stand-ins, since chunks of long sequences are computed again in the backward pass
            found = [(call, [_gradient(output, weights, x) for x in call.outputs]) for call in new.values()]
        reasons |= {(name, other): why for name, by in uses.refusals.items() for other, why in by.items()}
        seen |= set(new)
        yield from found


def _gradient(output: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the output of an attention to one of an operation, random if it does not depend on it."""
    found: Tensor | None = None
    if x.requires_grad:
        [found] = torch.autograd.grad(output, x, weights, retain_graph=True, allow_unused=True)
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x) if found is None else found


@contextlib.contextmanager
def _stand_ins() -> Iterator[dict[Pair, Call]]:
    """Let readable forms compute in place of all backends, and collect the last call by operation and backend."""
    calls: dict[Pair, Call] = {}

    def stand_in(operation: Operation[..., Any], backend: Backend) -> Form:
        def run(*inputs: Any, **options: Any) -> Any:
            wide, named = tree_map(_upcast, (inputs, options))
            result = operation.reference(*wide, **named)
            outputs = [result] if isinstance(result, Tensor) else list(result)
            outputs[0] = outputs[0].to(inputs[0].dtype)
            calls[operation.name, backend.name] = Call(operation, backend, inputs, options, outputs)
            return outputs[0] if isinstance(result, Tensor) else tuple(outputs)

        return run

    kept = [(operation, backend, backend.run) for operation in operations() for backend in operation.backends]
    try:
        for operation, backend, _ in kept:
            backend.run = stand_in(operation, backend)
        yield calls
    finally:
        for _, backend, run in kept:
            backend.run = run


def _upcast(x: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return a tensor of real numbers in ``dtype`` or wider, and anything else as it is."""
    return x.to(torch.promote_types(x.dtype, dtype)) if isinstance(x, Tensor) and x.is_floating_point() else x


# --- comparison ------------------------------------------------------------------------------------------------------


class KernelRounding(TorchFunctionMode):
    """Rounds the factors of matrix products and of sums of products, and 1 + exp(x) in a softplus.

    Products and sums keep their type. fla's softplus is without ``log1p``, so a small one has the error of one.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._softmax_attention(*args, **kwargs)
        if func in (Tensor.matmul, Tensor.__matmul__, torch.matmul, torch.bmm):
            args = [self._rounded(x) for x in args]
        elif func in (torch.baddbmm, torch.addcmul, Tensor.baddbmm_, Tensor.addcmul_):
            args = [args[0], *(self._rounded(x) for x in args[1:])]
        elif func is F.softplus and len(args) == 1 and not kwargs:
            x = args[0]
            return (1.0 + x.clamp(max=20.0).exp()).log().where(x <= 20.0, x)
        return func(*args, **kwargs)

    def _rounded(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).to(x.dtype)

    def _softmax_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        _dropout: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> Tensor:
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        logits = self._rounded(query) @ self._rounded(key).mT * scale
        if is_causal:
            mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:
            logits = logits + mask if mask.is_floating_point() else logits.masked_fill(~mask, -torch.inf)
        return self._rounded(logits.softmax(dim=-1)) @ self._rounded(value)


def _agreement(call: Call, weights: list[Tensor], dtype: torch.dtype, where: str) -> Agreement:
    """Return the worst error of a backend among its outputs and gradients; the readable forms run on a CPU."""
    operation, backend, inputs, _, outputs = call
    rounded = inputs[0].dtype if inputs[0].dtype in backend.dtypes else dtype
    try:
        found = _results(backend.run, call, weights, lambda x: x)
    except Exception as error:
        return Agreement(operation.name, backend.name, math.inf, MARGIN, f"{first_line(error)} {where}")
    with use(REFERENCE):
        exact = _results(operation.reference, call, weights, lambda x: _upcast(x, torch.float64).cpu())
        with KernelRounding(rounded):
            own = _results(operation.reference, call, weights, lambda x: _upcast(x).cpu())
    worst: list[Agreement] = []
    for (name, x), (_, y), (_, z) in zip(found, own, exact, strict=True):
        scale = float(z.norm().clamp(min=1e-30))
        distance, limit = (float((value.double() - z).norm()) / scale for value in (x.cpu(), y.to(x.dtype)))
        limit = MARGIN * max(limit, torch.finfo(torch.float32).eps)
        worst.append(Agreement(operation.name, backend.name, distance, limit, f"{name} {where}"))
    assert len(found) > len(outputs), "an attention differentiates its operations"
    return max(worst, key=lambda found: found.excess)


def _results(
    form: Form, call: Call, weights: list[Tensor], convert: Callable[[Tensor], Tensor]
) -> list[tuple[str, Tensor]]:
    """Return outputs, where ``weights`` are not zero, and gradients of all tensors that need one in the attention."""
    arguments = inspect.signature(call.operation.reference).bind(*call.inputs, **call.options).arguments
    names = {id(x): name for name, argument in arguments.items() for x in tree_leaves(argument)}
    leaves: list[tuple[str, Tensor]] = []

    def leaf(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        copy = convert(x.detach()).requires_grad_(x.requires_grad)
        if x.requires_grad:
            leaves.append((f"gradient of {names[id(x)]}", copy))
        return copy

    inputs, options = tree_map(leaf, (call.inputs, call.options))
    with torch.enable_grad():
        result = form(*inputs, **options)
        outputs = [result] if isinstance(result, Tensor) else list(result)
        loss = sum((x.double() * weight.to(x.device)).sum() for x, weight in zip(outputs, weights, strict=True))
        assert isinstance(loss, Tensor)
        # edges, as `grad` of tensors suspends KernelRounding, and gradients written by hand are to be rounded, too
        edges = [get_gradient_edge(x) for _, x in leaves]
        given = torch.autograd.grad([get_gradient_edge(loss)], edges, [torch.ones_like(loss)], allow_unused=True)
    tensors = [torch.zeros_like(x) if grad is None else grad for (_, x), grad in zip(leaves, given, strict=True)]
    seen = [x.detach() * (weight != 0.0).to(x.device) for x, weight in zip(outputs, weights, strict=True)]
    names_of_outputs = ["output", *("state" for _ in seen[1:])]
    return [*zip(names_of_outputs, seen, strict=True), *zip((name for name, _ in leaves), tensors, strict=True)]
