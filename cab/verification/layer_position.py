"""Layer position check: a method that depends on its layer index satisfies the contract in every layer."""

from __future__ import annotations

from dataclasses import replace

from cab.attention import LayerPosition
from cab.verification.check import CHECKS, Worst, check
from cab.verification.inputs import LAYOUTS
from cab.verification.subject import Subject, names_argument

POSITIONS = (LayerPosition(0, 4), LayerPosition(3, 4))
"""Positions in addition to the one used by all other checks, the only layer of one."""

KEPT = (
    *("lookahead_gradient", "decode_steps", *(f"decode_padded_{layout}" for layout in LAYOUTS)),
    *("padded_left", "batch_size", "gradient_is_derivative"),
)


def takes_layer_position(subject: Subject) -> bool:
    """Return whether the constructor has the argument ``layer_position``."""
    return names_argument(subject.cls, "layer_position")


@check("layer_position", applies=takes_layer_position, is_quick=False)
def every_layer_position(subject: Subject) -> Worst:
    """As first and as last of four layers, the attention passes the main checks of causality, decoding and padding."""
    worst = Worst("error relative to its limit", limit=1.0)
    for layer_position in POSITIONS:
        deep = replace(subject, options={**subject.options, "layer_position": layer_position}, long=())
        for kept in (CHECKS[name] for name in KEPT):
            if kept.applies(deep):
                found = kept.measure(deep)
                part = found.value / found.limit if found.limit else float(found.value > 0.0) * 2.0
                worst.add(
                    part, f"layer {layer_position.index} of {layer_position.num_layers}, {kept.name}, {found.where}"
                )
    return worst
