"""Train a network once if several cells of different patterns share it.

Vanilla attention in pattern NS, with vanilla in all other layers, is the same network as in pattern CS. One cell is
trained, and the others reuse its result.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator

from cab.backbone import AttentionSpec
from cab.errors import UnsupportedError, UserError
from cab.records.record import Record, Status, record_path, weights_path
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.runner.cell import Cell
from cab.runner.data_check import DataCheck
from cab.runner.engine import Run
from cab.runner.provenance import about_run


def find_reusable_result(run: Run, data: DataCheck) -> Record | None:
    """Write and return a record for this cell from a run of the same network on the same data; None if there is none.

    With ``force``, or with several processes, results are not reused.
    """
    cell = run.cell
    if cell.config.force or run.processes.count > 1:
        return None
    about = about_run(cell, run.command, None)
    for twin in same_network(cell):
        try:
            record = Record.read(record_path(twin.config.results_dir, twin.hash))
        except UserError:
            continue
        is_same = record.status is Status.FINISHED and record.attention_code == about.attention_code
        if not (is_same and not record.weights_reused_from and data.is_current(cell, record)):
            continue
        ours = ("hash", "cell", "config", "command", "verified", "initial_weights")
        shared = dataclasses.replace(
            record, **{name: getattr(about, name) for name in ours}, weights_reused_from=record.hash
        )
        weights = weights_path(twin.config.results_dir, twin.hash)
        if weights.exists():
            shutil.copyfile(weights, weights_path(cell.config.results_dir, cell.hash))
        shared.write(cell.config.results_dir)
        return shared
    return None


def same_network(cell: Cell) -> Iterator[Cell]:
    """Yield the cells of other patterns that build and train the same network as ``cell``."""
    if (
        _with_defaults(cell.config.attention) != _with_defaults(cell.config.other_attention[cell.config.pattern])
        or BACKBONES.get(cell.config.backbone.name).cls.all_layers_use_tested_pattern
    ):
        return
    for pattern in TASKS.get(cell.config.task.name).backbones[cell.config.backbone.name]:
        if pattern is not cell.config.pattern:
            attention = _with_defaults(cell.config.other_attention[pattern])
            try:
                twin = Cell.from_config({**cell.config.resolved, "pattern": str(pattern), "attention": attention})
            except UnsupportedError:  # other_attention can be registered as unsound in this pattern
                continue
            yield twin


def _with_defaults(spec: AttentionSpec) -> dict[str, object]:
    """Return the name and all options, including defaults."""
    return {"name": spec.name, **ATTENTIONS.get(spec.name).options, **spec.options}
