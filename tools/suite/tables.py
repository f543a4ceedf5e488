"""Write the tables of the suite that are computed: ``python -m tools.suite.tables``.

configs/suite/states.csv has the decode states, in the networks of the suite, of the attentions with reference results
or costs; those of others are measured in the user's runs. configs/suite/invalid.csv has the cells that do not measure
attention according to the reference results; `cab score --check` prints the reasons.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

import torch

from cab import load_results
from cab.records.files import REFERENCE_DIRS
from cab.registry.registries import ATTENTIONS
from cab.results.costs import STATES_FILE, measured_costs, suite_state
from cab.results.retained import suite_runs
from cab.results.validity import INVALID_FILE, checks_frame, invalid

Rows = Iterator[Sequence[str]]


def states_in_the_suite() -> Rows:
    """Yield name, numbers of the state and growth of each of these attentions with pattern CS."""
    yield "attention", "numbers", "grows"
    names = {*load_results(REFERENCE_DIRS)["attention"], *(name for name, _ in measured_costs())}
    for entry in ATTENTIONS:
        if entry.name in names and (state := suite_state(entry)):
            yield entry.name, f"{state.numbers:g}", "yes" if state.grows else "no"


def invalid_cells() -> Rows:
    yield "task", "backbone", "pattern", "reason"
    found = invalid(checks_frame(suite_runs(load_results(REFERENCE_DIRS))))
    yield from ((*cell.split(), reason) for cell, reason in found.items())


TABLES = {
    STATES_FILE: states_in_the_suite,
    INVALID_FILE: invalid_cells,
}

if __name__ == "__main__":
    torch.set_num_threads(1)  # the states are tiny
    for path, rows in TABLES.items():
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows())
