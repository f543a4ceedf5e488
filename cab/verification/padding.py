"""Padding checks: content, position and amount of padding do not affect outputs at real tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cab.verification.check import Worst, check, check_layouts, keeps_contract, pads, supports
from cab.verification.compare import LEAK, ROUNDING, difference, error_at, gradient_floor, limit_for
from cab.verification.inputs import Inputs, Module, outputs_and_gradients, padded_places, row_alone, with_padding
from cab.verification.near_ties import largest_errors
from cab.verification.subject import Subject, rounding

BATCH = 5


def keeps_contract_in_self(subject: Subject) -> bool:
    """Return whether the whole contract applies, in a self pattern."""
    return subject.keeps_whole_contract and not subject.pattern.is_cross


@check("padding", applies=partial(supports, layout="right"), declared_in="padding_layouts")
def padded_right(subject: Subject) -> Worst:
    """Rows padded on the right (also the source), in a batch and by themselves, give the output without padding."""
    return padded_as_alone(subject, "right")


@check("padding", applies=partial(supports, layout="left"), declared_in="padding_layouts")
def padded_left(subject: Subject) -> Worst:
    """Rows padded on the left (also the source), in a batch and by themselves, give the output without padding."""
    return padded_as_alone(subject, "left")


@check("padding", applies=partial(supports, layout="inside"), declared_in="padding_layouts")
def padded_inside(subject: Subject) -> Worst:
    """Rows with padding between tokens, in a batch and by themselves, give the output without padding."""
    return padded_as_alone(subject, "inside")


@check("padding", applies=partial(supports, layout="row"), declared_in="padding_layouts")
def padded_row(subject: Subject) -> Worst:
    """Rows of padding only, or with a source of padding only, give finite values and do not affect other rows."""
    worst = padded_as_alone(subject, "row")
    module = subject.build().train()
    inputs = with_padding(subject.draw(module, 17, batch=BATCH), "row").requiring_grad()
    output = inputs.run(module)
    (output * torch.randn_like(output))[inputs.real].sum().backward()
    for name, x in [*inputs.tensors().items(), *module.named_parameters()]:
        is_finite = x.grad is None or bool(x.grad.isfinite().all())
        worst.add(0.0 if is_finite else torch.inf, f"n=17, gradient of {name}")
    if inputs.key is not None:  # targets without a source token: undefined, but finite
        worst.add(0.0 if output.isfinite().all() else torch.inf, "n=17, output for an empty source")
    return worst


@check("padding", applies=pads, declared_in="padding_layouts")
def padded_single_token(subject: Subject) -> Worst:
    """Sequences with a single real token, at every place, give the output of this token alone."""
    worst = Worst("relative error of a single real token", limit=ROUNDING)
    for length in (17, 70):
        module = subject.build()
        inputs = subject.draw(module, length, length, batch=length)
        places = torch.arange(length, device=inputs.query.device)
        if "inside" not in subject.padding_layouts:
            ends = {"right": 0, "left": length - 1}
            places = places[[end for layout, end in ends.items() if layout in subject.padding_layouts]]
            inputs = inputs.rows(slice(0, len(places)))
        hidden = torch.arange(length, device=places.device) != places[:, None]
        limit = limit_for(rounding(module, inputs), ROUNDING)
        for names in (("query",), ("key",), ("query", "key")) if inputs.key is not None else (("query",),):
            padded = replace(inputs, **{f"{name}_padding": hidden for name in names})
            cut = names if "key" not in names else (*names, "value")
            alone = {name: x[~hidden][:, None] for name, x in inputs.tensors().items() if name in cut}
            with torch.no_grad():
                output, expected = padded.run(module), replace(inputs, **alone).run(module)
            error = error_at(output[padded.real], expected.flatten(0, 1)).max()
            worst.add(error, f"n={length}, one real token in {' and '.join(names)}", limit=limit)
    return worst


@check_layouts("padding")
def padded_in_training(subject: Subject, layout: str) -> Worst:
    """In training mode, padded rows give the same output as without padding, whatever the content of the padding."""
    worst = Worst("relative error of a padded row in training", limit=ROUNDING)
    for length in (33, *(subject.long if layout == "inside" else ())):
        module = subject.build_for(length).train()
        inputs = with_padding(subject.draw(module, length, batch=3), layout)
        limit = limit_for(rounding(module, inputs), ROUNDING)
        filled = replace(inputs, **{name: x.clone() for name, x in inputs.tensors().items()})
        for _, x, mask in padded_places(filled):
            x[mask] = 30.0 * torch.randn_like(x[mask])
        with torch.no_grad():
            together = inputs.run(module, seed=1)
            other = filled.run(module, seed=1)
            worst.add(
                difference(other[inputs.real], together[inputs.real]), f"n={length}, replaced padding", limit=limit
            )
        if not subject.is_random_in_training:
            for part, error in largest_errors(partial(row_errors, seed=1), module, inputs, limit=limit).items():
                worst.add(error, f"n={length}, {part}", limit=limit)
    return worst


@check_layouts("padding")
def padding_gradient(subject: Subject, layout: str) -> Worst:
    """No real output has a gradient with respect to padded inputs."""
    worst = Worst("gradient with respect to padding", limit=0.0)
    module = subject.build(dropout=subject.dropout).train()
    inputs = with_padding(subject.draw(module, 33, batch=BATCH), layout).requiring_grad()
    output = inputs.run(module)
    (output * torch.randn_like(output))[inputs.real].sum().backward()
    for name, x, mask in padded_places(inputs):
        worst.add(0.0 if x.grad is None else x.grad[mask].abs().max(), f"n=33, {name}")
    return worst


POISON = {"right": math.nan, "left": math.inf, "inside": math.nan, "row": 1e10}
FINITE_POISON = 1e4
"""Value of the padding for modules of other packages, many of which multiply padding by zero."""


@check_layouts("padding")
def padding_poison(subject: Subject, layout: str) -> Worst:
    """Extreme values in the padding (NaN, inf, 1e10; 1e4 in foreign modules) change no real output or gradient."""
    worst = Worst("relative change of outputs or gradients", limit=LEAK)
    poison = FINITE_POISON if subject.is_foreign else POISON[layout]
    module = subject.build()
    clean = with_padding(subject.draw(module, 33, batch=BATCH), layout)
    poisoned = replace(clean, **{name: x.clone() for name, x in clean.tensors().items()})
    for _, x, mask in padded_places(poisoned):
        x[mask] = poison
    direction = torch.randn_like(clean.query)
    expected = outputs_and_gradients(module, clean, direction)
    actual = outputs_and_gradients(module, poisoned, direction)
    floor = gradient_floor(expected)
    for name, reference in expected.items():
        worst.add(difference(actual[name], reference, floor), f"n=33, padding of {poison:g}, {name}")
    return worst


@check("padding", applies=pads)
def padding_of_nothing(subject: Subject) -> Worst:
    """No output changes when an all-False mask is passed."""
    worst = Worst("relative change caused by an all-False mask", limit=ROUNDING)
    for length in (1, 17, 33):
        module = subject.build()
        inputs = subject.draw(module, length)
        nothing = {"query_padding": torch.zeros_like(inputs.query[..., 0], dtype=torch.bool)}
        if inputs.key is not None:
            nothing["key_padding"] = torch.zeros_like(inputs.key[..., 0], dtype=torch.bool)
        with torch.no_grad():
            worst.add(difference(replace(inputs, **nothing).run(module), inputs.run(module)), f"n={length}")
    return worst


@check("padding", applies=keeps_contract_in_self)
def padding_either_mask(subject: Subject) -> Worst:
    """In self patterns, passing the query mask, the key mask or both gives the same output."""
    worst = Worst("relative error between one mask and both", limit=LEAK)
    module = subject.build()
    inputs = with_padding(subject.draw(module, 17, batch=BATCH), "right")
    with torch.no_grad():
        both = inputs.run(module)
        for name in ("query_padding_mask", "key_padding_mask"):
            one = module(inputs.query, **{name: inputs.query_padding})
            worst.add(difference(one[inputs.real], both[inputs.real]), f"{name} alone")
    return worst


@check("padding", applies=keeps_contract)
def padding_output(subject: Subject) -> Worst:
    """At padded targets, the output is zero."""
    worst = Worst("output at a padded target", limit=0.0)
    for layout in ("left", "row"):
        module = subject.build()
        inputs = with_padding(subject.draw(module, 17, batch=BATCH), layout)
        with torch.no_grad():
            worst.add(inputs.run(module)[~inputs.real].abs().max(), f"padding {layout}")
    return worst


def padded_as_alone(subject: Subject, layout: str) -> Worst:
    """Compare every row of a padded batch, also as a batch of one, with the same row without padding and masks."""
    worst = Worst("relative error of a padded row", limit=ROUNDING)
    for length, num_heads, scale in ((17, 4, 1.0), (17, 1, 4.0), (70, 4, 1.0), *((n, 2, 1.0) for n in subject.long)):
        module = subject.build_for(length, num_heads=num_heads)
        inputs = with_padding(
            subject.draw(module, length, batch=3 if length in subject.long else BATCH, scale=scale), layout
        )
        limit = limit_for(rounding(module, inputs), ROUNDING)
        measure = partial(row_errors, single=length not in subject.long)
        for part, error in largest_errors(measure, module, inputs, limit=limit).items():
            worst.add(error, f"n={length}, heads {num_heads}, inputs x{scale:g}, {part}", limit=limit)
    return worst


@torch.no_grad()
def row_errors(module: Module, inputs: Inputs, *, single: bool = False, seed: int | None = None) -> dict[str, Tensor]:
    """Return the error at every real target of each row in the batch, and as a ``single`` row with its padding."""
    together, errors = inputs.run(module, seed=seed), {}
    for row, real in enumerate(inputs.real):
        alone = row_alone(inputs, row)
        if alone is not None:
            expected = alone.run(module, seed=seed)[0]
            errors[f"row {row}"] = error_at(together[row, real], expected)
            if single:
                padded = inputs.rows(slice(row, row + 1)).run(module, seed=seed)
                errors[f"row {row} as a batch of one"] = error_at(padded[0, real], expected)
    return errors
