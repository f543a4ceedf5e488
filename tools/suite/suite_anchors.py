"""Write the anchors of the suite's cells: ``python -m tools.suite.suite_anchors FOLDER...``.

configs/suite/anchors.csv gets the results of ``vanilla`` and ``none`` in the folders that have the settings of
`cab run suite=mini`. Commit these results to results/core or results/mini: the settings of every other run are compared
with them.
"""

from __future__ import annotations

import csv
import functools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cab.config.compose import compose
from cab.errors import UserError
from cab.files.disk import replacing
from cab.records.identity import configured
from cab.records.names import names_of_programs
from cab.records.record import Record, Status, records_in
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


if __name__ == "__main__":
    write_anchors(record for folder in sys.argv[1:] for _, record in records_in(Path(folder), []))
