"""Padding checks that are not relations: a single real token, one mask for both, and the output at padding."""

from __future__ import annotations

import torch

from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, difference
from cab.verification.subject import Subject


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
