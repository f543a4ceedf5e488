"""Write the tables of the suite that are computed: ``python -m tools.suite.tables [FOLDER...]``.

configs/suite/states.csv has the decode states, in the networks of the suite, of the attentions with reference results
or costs; those of others are measured in the user's runs. configs/suite/invalid.csv has the cells that do not measure
attention according to the reference results; `cab score --check` prints the reasons.

With folders, configs/suite/anchors.csv first gets their results of ``vanilla`` and ``none`` that have the settings of
`cab run suite=mini`. Commit these results to results/core or results/mini: the settings of every other run are compared
with them.
"""

from __future__ import annotations

import csv
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from cab import load_results
from cab.config.compose import compose
from cab.errors import UserError
from cab.files.disk import replacing
from cab.records.files import REFERENCE_DIRS
from cab.records.identity import configured
from cab.records.names import names_of_programs
from cab.records.record import Record, Status, records_in
from cab.registry.registries import ATTENTIONS
from cab.results.cells import (
    ANCHORS,
    ANCHORS_FILE,
    PRESET,
    SOFTMAX,
    SUITE_VERSION,
    Key,
    SuiteCell,
    cell_of,
    data_hash,
    suite_cells,
)
from cab.results.changed_settings import changes, settings_of
from cab.results.costs import STATES_FILE, measured_costs, suite_state
from cab.results.retained import suite_runs
from cab.results.validity import INVALID_FILE, checks_frame, invalid

COLUMNS = ("version", "task", "backbone", "pattern", "data", "attention", "seed", "test", "validation", "steps", "hash")


def write_anchors(records: Iterable[Record], path: Path = ANCHORS_FILE) -> int:
    """Write the anchors of every cell of the suite with results of both in ``records``, and return their number."""
    cells = {cell.key: cell for cell in suite_cells()}
    runs: dict[Key, dict[tuple[int, int], Record]] = {key: {} for key in cells}
    records = list(records)
    for record, name in zip(records, names_of_programs(records), strict=True):
        cell = cell_of(record) if name in ANCHORS and record.status is Status.FINISHED else None
        if cell is None:
            continue
        settings = configured(record.config, record.changed)
        if not changes(settings, record.changed, composed_settings(cell)):
            runs[cell.key][ANCHORS.index(name), int(record.cell["seed"])] = record
    rows = []
    for key, anchors in runs.items():
        if len({rank for rank, _ in anchors}) < len(ANCHORS):
            continue
        if len({data_hash(record) for record in anchors.values()}) > 1:
            raise UserError(f"the anchors of {cells[key]} are of different data; pass results of one version only")
        for rank, seed in sorted(anchors):
            record = anchors[rank, seed]
            losses = [entry["validation"] for entry in record.history if entry.get("validation") is not None]
            validation = repr(losses[-1]) if losses else ""
            numbers = repr(cells[key].value(record)), validation, record.cost.steps_to_solve
            rows.append((SUITE_VERSION, *key, data_hash(record), ANCHORS[rank], seed, *numbers, record.hash))
    if not rows:
        raise UserError(f"no cell of the suite has results of {' and '.join(ANCHORS)}; run them first")
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return len(rows)


@functools.cache
def composed_settings(cell: SuiteCell) -> dict[str, Any]:
    """Return the settings of a cell in `cab run suite=mini`."""
    names = {"task": cell.task, "dataset": cell.dataset, "backbone": cell.backbone, "pattern": cell.pattern}
    overrides = [f"{name}={value}" for name, value in {**names, "attention": SOFTMAX, "preset": PRESET}.items()]
    return settings_of(compose([*overrides, *cell.options.split()]))


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
    if folders := sys.argv[1:]:
        write_anchors(record for folder in folders for _, record in records_in(Path(folder), []))
    for path, rows in TABLES.items():
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows())
