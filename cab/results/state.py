"""Size of the decode state in the networks of the suite, so that K can be compared at equal memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cab.files.text_table import read_csv
from cab.registry.tables import tuned_options
from cab.results.cells import FOLDER, PRESET
from cab.results.costs import State

if TYPE_CHECKING:
    from cab.registry.entries import AttentionEntry

STATES_FILE = FOLDER / "states.csv"
WIDTH = 32
"""Width of the network of ``recall``, whose attention has one head."""


@functools.cache
def suite_states() -> dict[str, State]:
    """Return the states of this repository's causal attentions, from configs/suite/states.csv."""
    rows = read_csv(STATES_FILE)
    return {row["attention"]: State(float(row["numbers"]), row["grows"] == "yes") for row in rows}


def suite_state(entry: AttentionEntry) -> State | None:
    """Measure the state of an attention with the options of cell ``recall`` CS; None without this pattern."""
    if "CS" not in entry.patterns:
        return None
    return measure_state(entry, tuned_options("probe", "mixer", "CS", entry.name, preset=PRESET))


def measure_state(entry: AttentionEntry, options: Mapping[str, Any]) -> State:
    """Measure the state of a causal attention in the network of cell ``recall`` CS."""
    from cab.composite import count_layers  # imports torch
    from cab.registry.build import build_attention, decode_state

    attention = build_attention(entry.name, pattern="CS", embed_dim=WIDTH, num_heads=1, **options).eval()
    layers = count_layers(attention)
    before, after = (
        sum(tensor.numel() for tensor in decode_state(attention, count).values() if tensor.is_floating_point()) / layers
        for count in (64, 128)
    )
    return State((after - before) / 64, grows=True) if after > before else State(after, grows=False)
