"""Padding checks that are not relations: a single real token, one mask for both, and the output at padding."""

from __future__ import annotations

from dataclasses import replace

import torch

from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, ROUNDING, difference, error_at
from cab.verification.subject import Subject


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


@check(
    "padding",
    "relative error between one mask and both",
    limit=LEAK,
    applies=lambda s: s.keeps_whole_contract and not s.pattern.is_cross,
)
def padding_either_mask(subject: Subject) -> Measurements:
    """In self patterns, passing the query mask, the key mask or both gives the same output."""
    module, inputs = subject.case(17, batch=5, padding="right")
    with torch.no_grad():
        both = inputs.run(module)
        for name in ("query_padding_mask", "key_padding_mask"):
            one = module(inputs.query, **{name: inputs.query_padding})
            yield difference(one[inputs.real], both[inputs.real]), f"{name} alone"


@check("padding", "output at a padded target", applies=lambda s: s.keeps_whole_contract)
def padding_output(subject: Subject) -> Measurements:
    """At padded targets, the output is zero."""
    for layout in ("left", "row"):
        module, inputs = subject.case(17, batch=5, padding=layout)
        with torch.no_grad():
            yield inputs.run(module)[~inputs.real].abs().max(), f"padding {layout}"
