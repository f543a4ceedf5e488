"""A relation: a transformation of a call after which every entry computes what it computed before.

The check of a relation is its product with entries and setups. A relation is a generator function of the plain
:class:`Call`. It yields a :class:`Variant` for each transformation, or measurements of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from cab.verification.check import CHECKS, Check, Limit, Measurements
from cab.verification.compare import RARE, distance, error_at, gradient_floor
from cab.verification.entries import ENTRIES, PER_TOKEN, Call, Entry, Setup, Values
from cab.verification.side_effects import SETTINGS, restored
from cab.verification.subject import Subject

MARGIN = 4.0
"""Factor on the change that rounded inputs cause: a method rounds more often than its inputs."""


def is_computed(name: str) -> bool:
    """Return whether a value is an output or a gradient; a loss or a buffer has a scale of its own."""
    return name.startswith(("outputs", "gradient"))


@dataclass(frozen=True)
class Variant:
    """A transformed call, and the values that it must have.

    Attributes:
        how: the transformation, after the name of the entry: "after another batch".
        call: the transformed call.
        expected: the part of the plain values per token that is compared (default: all values).
        actual: the part of the values of the call that is compared.
        values: the values of the call, if it has been made.
        base: the expected values (default: those of the plain call).
        names: the values that are compared (default: outputs and gradients).
        factor: factor on the expected gradients.
        explain: function that returns the defect in words if the values differ.
        measure: function of actual and expected values and of the floor of gradients, which returns the errors.
        limit: a larger limit than that of the relation; near ties then explain no error.
        moved: calls of slightly different inputs; errors of up to :data:`MARGIN` times theirs pass.
    """

    how: str
    call: Call
    expected: Callable[[Tensor], Tensor] | None = None
    actual: Callable[[Tensor], Tensor] | None = None
    values: Values | None = None
    base: Values | None = None
    names: Callable[[str], bool] = is_computed
    factor: float = 1.0
    explain: Callable[[], str] | None = None
    measure: Callable[[Tensor, Tensor, float], Tensor] = error_at
    limit: float = 0.0
    moved: Iterable[Call] = ()


def near(dtype: torch.dtype | None) -> float:
    """Return the limit for two computations in ``dtype``: eight times its machine epsilon."""
    return 8.0 * torch.finfo(dtype or torch.float32).eps


def by_blocks(actual: Tensor, expected: Tensor, floor: float, *, size: int = 128, share: float = 0.0) -> Tensor:
    """Return the distance of every ``size`` tokens of a row, or of a parameter, with ``share`` of the floor."""
    size = size if expected.dim() == 3 else expected.shape[1]
    parts = zip(actual.split(size, 1), expected.split(size, 1), strict=True)
    return torch.tensor([distance(x, y, share * floor) for rows in parts for x, y in zip(*rows, strict=True)])


def first(count: int) -> Callable[[Tensor], Tensor]:
    """Return a function to the first tokens of values per token."""
    return lambda x: x[:, :count]


def rows_of(part: Any) -> Callable[[Tensor], Tensor]:
    """Return a function to some rows, and perhaps tokens."""
    return lambda x: x[part]


def transposed(x: Tensor) -> Tensor:
    """Return equal values in memory whose second dimension is the outer one."""
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 1 else x


def _part(x: Tensor) -> Tensor:
    """Return equal values within a tensor that is larger in the last dimension."""
    return torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() > 1 else x


def _moved(x: Tensor) -> Tensor:
    """Return equal values that begin elsewhere in memory."""
    return torch.cat([x, x, x])[len(x) : 2 * len(x)] if x.dim() else x


MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": transposed,
    "whose last dimensions are transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "that are parts of wider tensors": _part,
    "that are parts of longer tensors": _moved,
}
"""Other layouts of equal values in memory."""

Variants = Iterator[Variant | tuple[Any, ...]]
"""Transformed calls, and measurements."""

Function = Callable[..., Variants]


def relation(
    group: str,
    quantity: str = "relative error",
    *,
    entries: tuple[Entry, ...] = ENTRIES,
    setups: Sequence[Setup | int] | Callable[[Subject], Iterable[Setup]] = (17,),
    limit: Limit = 0.0,
    against: Entry | None = None,
    says: str = "differ",
    name: str = "",
    summary: str = "",
    compares: bool = True,
    layouts: tuple[str, ...] = (),
    applies: Callable[[Subject], bool] = lambda _: True,
    **options: Any,
) -> Callable[[Function], Function]:
    """Register the decorated function as a check of its product with ``entries`` and ``setups``.

    Args:
        group: group of the check.
        quantity: the measured quantity.
        setups: setups or lengths, or a function from the subject to its setups.
        limit: largest error that passes; with 0, values must be bit-identical.
        against: entry whose plain values are expected (default: the entry itself).
        says: predicate of the finding, after entry and transformation.
        compares: whether the plain values are computed before the function transforms anything.
        layouts: layouts of padding, each of which is a check called ``<name>_<layout>``; a setup may have one of them.
        name, summary: name and property of the check (default: those of the function).
        applies: whether a subject with one of the entries and the layout is expected to have the property.
        options: further attributes of :class:`cab.verification.check.Check`.
    """

    def add(function: Function) -> Function:
        def measurements(subject: Subject, *, layout: str) -> Measurements:
            sized = setups(subject) if callable(setups) else setups
            chosen = chain.from_iterable((Setup(x) if isinstance(x, int) else x).for_subject(subject) for x in sized)
            padded = [
                setup._replace(padding=layout or setup.padding)
                for setup in chosen
                if not layout or setup.padding in ("", layout)
            ]
            calls = (
                (entry, setup._replace(length=min(setup.length, entry.longest)))
                for entry in entries
                for setup in padded
            )
            for entry, setup in dict.fromkeys(calls):
                if entry.supports(subject, setup.padding):
                    plain = Call.of(subject, setup, entry)
                    if compares:
                        plain_values(plain, against or entry)
                    yield from _measured(function, plain, against or entry, says, limit)

        def is_expected(subject: Subject, *, layout: str) -> bool:
            needed = "inside" if layout == "single_token" else layout
            is_supported = not layout or needed in subject.padding_layouts
            return is_supported and any(entry.supports(subject, layout) for entry in entries) and applies(subject)

        for layout in layouts or ("",):
            key = "_".join(filter(None, (name or function.__name__, layout)))
            property_ = summary or " ".join((function.__doc__ or "").split())
            CHECKS[key] = Check(
                key,
                group,
                f"{property_.removesuffix('.')} (padding {layout})." if layout else property_,
                quantity,
                partial(measurements, layout=layout),
                limit,
                applies=partial(is_expected, layout=layout),
                **options,
            )
        return function

    return add


def _measured(function: Function, call: Call, against: Entry, says: str, limit: Limit) -> Measurements:
    """Yield the measurements of one entry in one setup, in float64 where near ties may explain the errors."""
    allowed = limit(call.subject) if callable(limit) else limit and call.subject.rounded(limit)
    lowest = near(call.entry.dtype) if allowed and call.entry.dtype else 0.0  # bit-identical values remain so
    exact: dict[tuple[str, str], Tensor] | None = None
    for item in function(call):
        if not isinstance(item, Variant):
            value, where, *more = item
            yield value, ", ".join(filter(None, (call.entry.name, where, call.where))), *more
            continue
        if lowest:
            is_usual = item.measure is error_at
            item = replace(item, limit=max(lowest, item.limit), measure=by_blocks if is_usual else item.measure)
        largest, errors = max(allowed, item.limit), _errors(item, against)
        for other in item.moved:
            if any((x > largest).any() for x in errors.values()):
                caused = _errors(replace(item, call=other, values=None), against)
                errors = {name: x.where(x > MARGIN * caused[name], 0.0) for name, x in errors.items()}
        for name, error in errors.items():
            value = float(error.max()) if error.numel() else 0.0
            where = ", ".join((f"{call.entry.name} {item.how}".rstrip(), call.where, name))
            if allowed and not item.limit and 0 < (error > allowed).sum() <= RARE * error.numel():
                exact = _exact_errors(function, call, against) if exact is None else exact
                value = float(exact.get((item.how, name), error).max())
            finding = " ".join(filter(None, (call.entry.name, item.how, says)))
            if against is not call.entry and value > largest and error.shape == item.call.inputs.query.shape[:2]:
                finding += f" from token {int((error > largest).any(0).nonzero()[0])} on"
            yield value, where, largest, (item.explain and value > largest and item.explain()) or finding


def _exact_errors(function: Function, call: Call, against: Entry) -> dict[tuple[str, str], Tensor]:
    """Return the errors in float64; empty if the module does not compute in float64."""
    try:
        plain = Call.of(call.subject, call.setup, call.entry).double().run(against)
        variants = (item for item in function(call.double()) if isinstance(item, Variant))
        return {(v.how, name): error for v in variants for name, error in _errors(v, against, plain).items()}
    except Exception:  # float64 is optional
        return {}


def _errors(variant: Variant, against: Entry, plain: Values | None = None) -> dict[str, Tensor]:
    """Return the error of every value at every position."""
    expected = variant.base or plain or plain_values(variant.call, against)
    actual, errors = variant.values or variant.call.run(), {}
    floor = gradient_floor({name: x for name, x in expected.items() if is_computed(name)})
    for name, x in expected.items():
        is_part = variant.expected is not None or variant.actual is not None
        if not variant.names(name) or (is_part and name not in PER_TOKEN):
            continue
        y = actual.get(name)
        x = x if variant.expected is None else variant.expected(x)
        y = torch.zeros_like(x) if y is None else y if variant.actual is None else variant.actual(y)
        y = y if name == "outputs" else y / variant.factor
        errors[name] = variant.measure(y, x, floor if is_computed(name) else 0.0)
    return errors


def plain_values(call: Call, entry: Entry) -> Values:
    """Return what the plain call computes, which all checks of a subject share."""
    key = (entry.name, call.setup)
    shared = call.subject.shared
    if key not in shared:
        with restored(SETTINGS):
            shared[key] = Call.of(call.subject, call.setup, entry).run()
    return shared[key]
