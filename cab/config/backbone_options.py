"""Options of backbones that older records lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ADDED = {
    "residual": "plain",
    "gate_bias": 2.0,
    "reversible": False,
    "weight_sharing": "stacked",
    "halting": "fixed",
    "ponder_weight": 0.01,
    "step_embedding": "coordinates",
    "funnel_blocks": None,
    "funnel_decoder_layers": 2,
}
"""What those runs had: a cell that has it too is the same cell."""


def measured(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a backbone that are a part of what is measured."""
    return {name: value for name, value in backbone.items() if not (name in ADDED and value == ADDED[name])}
