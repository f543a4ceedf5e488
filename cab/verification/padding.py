"""Batch and padding checks: neither other rows nor padding affect the output of a row."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, ROUNDING, compared, difference, error_at, errors
from cab.verification.inputs import LAYOUTS, Inputs, Module, masked_inputs, outputs_and_gradients, rows_alone
from cab.verification.subject import Subject

LENGTHS = ((1, 1.0), (17, 4.0), (65, 1.0), (130, 1.0))
MANY = ((17, 7), (17, 40), (3, 300))
"""Lengths and batch sizes of larger batches."""


@check("batches", "relative change of the other rows", limit=LEAK)
def rows_independent(subject: Subject) -> Measurements:
    """Rows are independent: replacing one row, even with values of 5 times the scale, leaves the others unchanged."""
    for length, scale in (*LENGTHS, *((n, 1.0) for n in subject.long)):
        module, inputs = subject.case(length, batch=3, scale=scale)
        for factor in (1.0, 5.0):
            change = _change_of_others(module, inputs, subject.draw(module, length, scale=factor * scale, seed=2))
            yield change, f"n={length}, inputs x{scale:g}, row 1 x{factor:g}"


@check("batches", "relative change of the other rows", limit=LEAK)
def rows_in_training(subject: Subject) -> Measurements:
    """In training mode with a fixed seed, the output of a row does not change when another row is replaced."""
    for length, batch, dropout in ((17, 3, 0.0), (33, 9, subject.dropout), *((n, 3, 0.0) for n in subject.long)):
        module, inputs = subject.case(length, batch=batch, dropout=dropout, training=True)
        change = _change_of_others(module, inputs, subject.draw(module, length, scale=5.0, seed=2))
        yield change, f"n={length}, {batch} rows, dropout {dropout:g}, row 1 x5"


@torch.no_grad()
def _change_of_others(module: Module, inputs: Inputs, other: Inputs) -> float:
    """Return the change of the other outputs when row 1 becomes the first row of ``other``."""
    is_other = torch.arange(len(inputs.query), device=inputs.query.device) != 1
    first = other.tensors()
    replaced = {name: torch.where(is_other[:, None, None], x, first[name][:1]) for name, x in inputs.tensors().items()}
    expected, actual = (x.run(module, seed=1)[is_other] for x in (inputs, replace(inputs, **replaced)))
    return difference(actual, expected)


@check("batches", "gradient with respect to another row")
def rows_gradient(subject: Subject) -> Measurements:
    """In training mode, the gradient of a row's output with respect to every other row is exactly zero."""
    for length in (1, 33, *subject.long):
        batch = 2 if length in subject.long else 3
        module, inputs = subject.case(length, batch=batch, dropout=subject.dropout, training=True, requires_grad=True)
        output = inputs.run(module)
        (output[1] * torch.randn_like(output[1])).sum().backward()
        for name, x in inputs.tensors().items():
            yield 0.0 if x.grad is None else x.grad[torch.arange(batch) != 1].abs().max(), f"n={length}, {name}"


@check("batches", "relative error between a single row and the same row in a batch", limit=ROUNDING)
def batch_size(subject: Subject) -> Measurements:
    """Every row gives the same output in a batch of one, of three and of up to 300."""
    cases = [(length, 3, scale) for length, scale in LENGTHS] + [(length, batch, 1.0) for length, batch in MANY]
    for length, batch, scale in cases + [(length, 3, 1.0) for length in subject.long]:
        module, inputs = subject.case(length, batch=batch, scale=scale)
        where = f"n={length}, {batch} rows, inputs x{scale:g}"
        yield from compared(single_row_errors, module, inputs, where, limit=subject.rounded())


@torch.no_grad()
def single_row_errors(module: Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the error at every target of some rows as a batch of one."""
    together, batch = inputs.run(module), len(inputs.query)
    rows = {row: inputs.rows(slice(row, row + 1)) for row in sorted({0, 1, 2, batch // 2, batch - 1})}
    return {f"row {row}": error_at(alone.run(module)[0], together[row]) for row, alone in rows.items()}


BATCH = 5


@check("padding", "relative error of a padded row", limit=ROUNDING, layouts=LAYOUTS[:3])
def padded(subject: Subject, layout: str) -> Measurements:
    """Rows with padding (also of the source), in a batch and by themselves, give the output without padding."""
    for length, num_heads, scale in ((17, 4, 1.0), (17, 1, 4.0), (70, 4, 1.0), *((n, 2, 1.0) for n in subject.long)):
        batch = 3 if length in subject.long else BATCH
        module, inputs = subject.case(length, batch=batch, scale=scale, padding=layout, num_heads=num_heads)
        measure = partial(row_errors, single=length not in subject.long)
        where = f"n={length}, heads {num_heads}, inputs x{scale:g}"
        finding = f"padded keys or positions change the output (padding {layout})"
        yield from compared(measure, module, inputs, where, limit=subject.rounded(), finding=finding)


@check(
    "padding",
    "relative error of a padded row",
    limit=ROUNDING,
    applies=lambda s: "row" in s.padding_layouts,
    declared_in="padding_layouts",
)
def padded_row(subject: Subject) -> Measurements:
    """Rows of padding only, or with a source of padding only, give finite values and do not affect other rows."""
    advice = "mask weights with torch.finfo(dtype).min instead of -inf, or clamp the sum by which they are divided"
    yield from padded(subject, "row")
    module, inputs = subject.case(17, batch=BATCH, padding="row", training=True, requires_grad=True)
    output = inputs.run(module)
    (output * torch.randn_like(output))[inputs.real].sum().backward()
    for name, x in [*inputs.tensors().items(), *module.named_parameters()]:
        is_finite = x.grad is None or bool(x.grad.isfinite().all())
        finding = f"a sequence of padding alone makes the gradient of {name} NaN or inf: {advice}"
        yield 0.0 if is_finite else torch.inf, f"n=17, gradient of {name}", None, finding
    if inputs.key is not None:  # targets without a source token: undefined, but finite
        finding = f"a source of padding alone makes outputs NaN or inf: {advice}"
        yield 0.0 if output.isfinite().all() else torch.inf, "n=17, output for an empty source", None, finding


@check(
    "padding",
    "relative error of a single real token",
    limit=ROUNDING,
    applies=lambda s: bool(s.padding_layouts),
    declared_in="padding_layouts",
)
def padded_single_token(subject: Subject) -> Measurements:
    """Sequences with a single real token, at every place, give the output of this token alone."""
    for length in (17, 70):
        module, inputs = subject.case(length, length, batch=length)
        positions = torch.arange(length, device=inputs.query.device)
        if "inside" not in subject.padding_layouts:
            ends = {"right": 0, "left": length - 1}
            positions = positions[[end for layout, end in ends.items() if layout in subject.padding_layouts]]
            inputs = inputs.rows(slice(0, len(positions)))
        hidden = torch.arange(length, device=positions.device) != positions[:, None]
        for names in (("query",), ("key",), ("query", "key")) if inputs.key is not None else (("query",),):
            masked = replace(inputs, **{f"{name}_padding": hidden for name in names})
            cut = names if "key" not in names else (*names, "value")
            alone = {name: x[~hidden][:, None] for name, x in inputs.tensors().items() if name in cut}
            with torch.no_grad():
                output, expected = masked.run(module), replace(inputs, **alone).run(module)
            error = error_at(output[masked.real], expected.flatten(0, 1)).max()
            yield error, f"n={length}, one real token in {' and '.join(names)}"


@check("padding", "relative error of a padded row in training", limit=ROUNDING, layouts=LAYOUTS)
def padded_in_training(subject: Subject, layout: str) -> Measurements:
    """In training mode, padded rows give the same output as without padding, whatever the content of the padding."""
    for length in (33, *(subject.long if layout == "inside" else ())):
        module, inputs = subject.case(length, batch=3, padding=layout, training=True)
        filled = inputs.filled(lambda x: 30.0 * torch.randn_like(x))
        with torch.no_grad():
            together, other = (x.run(module, seed=1)[inputs.real] for x in (inputs, filled))
            yield difference(other, together), f"n={length}, replaced padding"
        if not subject.is_random_in_training:
            yield from compared(partial(row_errors, seed=1), module, inputs, f"n={length}", limit=subject.rounded())


@check("padding", "gradient with respect to padding", layouts=LAYOUTS)
def padding_gradient(subject: Subject, layout: str) -> Measurements:
    """No real output has a gradient with respect to padded inputs."""
    module, inputs = subject.case(33, batch=BATCH, padding=layout, training=True, dropout=subject.dropout)
    inputs = inputs.requiring_grad()
    output = inputs.run(module)
    (output * torch.randn_like(output))[inputs.real].sum().backward()
    for name, x, mask in masked_inputs(inputs):
        yield 0.0 if x.grad is None else x.grad[mask].abs().max(), f"n=33, {name}"


POISON = {"right": math.nan, "left": math.inf, "inside": math.nan, "row": 1e10}
FINITE_POISON = 1e4
"""Value of the padding for modules of other packages, many of which multiply padding by zero."""


@check("padding", "relative change of outputs or gradients", limit=LEAK, layouts=LAYOUTS)
def padding_poison(subject: Subject, layout: str) -> Measurements:
    """Extreme values in the padding (NaN, inf, 1e10; 1e4 in foreign modules) change no real output or gradient."""
    poison = FINITE_POISON if subject.is_foreign else POISON[layout]
    module, clean = subject.case(33, batch=BATCH, padding=layout)
    poisoned = clean.filled(lambda x: torch.full_like(x, poison))
    direction = torch.randn_like(clean.query)
    actual, expected = (outputs_and_gradients(module, x, direction) for x in (poisoned, clean))
    yield from errors(actual, expected, f"n=33, padding of {poison:g}")


@check(
    "padding", "relative change caused by an all-False mask", limit=ROUNDING, applies=lambda s: bool(s.padding_layouts)
)
def padding_of_nothing(subject: Subject) -> Measurements:
    """No output changes when an all-False mask is passed."""
    for length in (1, 17, 33):
        module, inputs = subject.case(length)
        masks = {"query": "query_padding", "key": "key_padding"}
        nothing = {masks[name]: mask for name, _, mask in masked_inputs(inputs) if name in masks}
        with torch.no_grad():
            yield difference(replace(inputs, **nothing).run(module), inputs.run(module)), f"n={length}"


@check(
    "padding",
    "relative error between one mask and both",
    limit=LEAK,
    applies=lambda s: s.keeps_whole_contract and not s.pattern.is_cross,
)
def padding_either_mask(subject: Subject) -> Measurements:
    """In self patterns, passing the query mask, the key mask or both gives the same output."""
    module, inputs = subject.case(17, batch=BATCH, padding="right")
    with torch.no_grad():
        both = inputs.run(module)
        for name in ("query_padding_mask", "key_padding_mask"):
            one = module(inputs.query, **{name: inputs.query_padding})
            yield difference(one[inputs.real], both[inputs.real]), f"{name} alone"


@check("padding", "output at a padded target", applies=lambda s: s.keeps_whole_contract)
def padding_output(subject: Subject) -> Measurements:
    """At padded targets, the output is zero."""
    for layout in ("left", "row"):
        module, inputs = subject.case(17, batch=BATCH, padding=layout)
        with torch.no_grad():
            yield inputs.run(module)[~inputs.real].abs().max(), f"padding {layout}"


@torch.no_grad()
def row_errors(module: Module, inputs: Inputs, *, single: bool = False, seed: int | None = None) -> dict[str, Tensor]:
    """Return the error at every real target of each row in the batch, and as a ``single`` row with its padding."""
    together, errors = inputs.run(module, seed=seed), {}
    for row, alone in rows_alone(inputs):
        expected, real = alone.run(module, seed=seed)[0], inputs.real[row]
        errors[f"row {row}"] = error_at(together[row, real], expected)
        if single:
            output = inputs.rows(slice(row, row + 1)).run(module, seed=seed)
            errors[f"row {row} as a batch of one"] = error_at(output[0, real], expected)
    return errors
