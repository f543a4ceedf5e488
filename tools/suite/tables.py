"""Write the tables of the suite that are computed: ``python -m tools.suite.tables``.

configs/decode_states.csv and configs/suite/states.csv have the decode state of every attention of this repository, in a
large layer and in the networks of the suite. configs/suite/invalid.csv has the cells that do not measure attention
according to the reference results; `cab score --check` prints the reasons.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import torch

from cab import load_results
from cab.records.files import REFERENCE_DIRS
from cab.registry.build import measure_decode_state
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import CONFIGS
from cab.results.costs import STATES_FILE, suite_state
from cab.results.retained import suite_runs
from cab.results.validity import INVALID_FILE, checks_frame, invalid

OWN = [entry for entry in ATTENTIONS if entry.location.module.startswith("attentions.")]
Rows = Iterator[Sequence[str]]


def states_of_layers() -> Rows:
    yield "attention", "state"
    yield from ((entry.name, measure_decode_state(entry)) for entry in OWN)


def states_in_the_suite() -> Rows:
    """Yield name, numbers of the state and growth of each attention with pattern CS."""
    yield "attention", "numbers", "grows"
    for entry in OWN:
        if state := suite_state(entry):
            yield entry.name, f"{state.numbers:g}", "yes" if state.grows else "no"


def invalid_cells() -> Rows:
    yield "task", "backbone", "pattern", "reason"
    found = invalid(checks_frame(suite_runs(load_results(REFERENCE_DIRS))))
    yield from ((*cell.split(), reason) for cell, reason in found.items())


TABLES = {
    CONFIGS / "decode_states.csv": states_of_layers,
    STATES_FILE: states_in_the_suite,
    INVALID_FILE: invalid_cells,
}

if __name__ == "__main__":
    torch.set_num_threads(1)  # the states are tiny
    for path, rows in TABLES.items():
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows())
