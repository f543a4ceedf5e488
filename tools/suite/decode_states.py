"""Measure the decode states of every attention of this repository, in a large layer and in the networks of the suite.

Writes configs/decode_states.csv and configs/suite/states.csv.
"""

from __future__ import annotations

import csv

import torch

from cab.registry.build import measure_decode_state
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import CONFIGS
from cab.results.costs import STATES_FILE, suite_state

FILE = CONFIGS / "decode_states.csv"
OWN = [entry for entry in ATTENTIONS if entry.location.module.startswith("attentions.")]


def measured() -> list[list[str]]:
    """Return the header, and the name and size of each attention in a large layer."""
    torch.set_num_threads(1)  # the sizes are tiny
    return [["attention", "state"], *([entry.name, measure_decode_state(entry)] for entry in OWN)]


def suite_measured() -> list[list[str]]:
    """Return the header, and name, numbers of the state and growth of each attention with pattern CS."""
    torch.set_num_threads(1)
    states = ((entry.name, suite_state(entry)) for entry in OWN)
    rows = [[name, f"{state.numbers:g}", "yes" if state.grows else "no"] for name, state in states if state]
    return [["attention", "numbers", "grows"], *rows]


if __name__ == "__main__":
    for path, rows in ((FILE, measured()), (STATES_FILE, suite_measured())):
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
