"""Fill the cache with the tokens, features and resized images that tasks compute from a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cab.config.compose import check_overrides
from cab.data.sources import DataSet
from cab.registry.registries import TASKS
from cab.runner.cell import Cell
from cab.runner.launch import jobs_of
from cab.runner.report import Report


def prepare(data_set: DataSet, data_root: Path, overrides: Sequence[str] = ()) -> Iterator[str]:
    """Set up each task of a data set as in preset ``paper``, and yield the name of the task afterwards.

    Args:
        data_set: the data set.
        data_root: folder of all data sets.
        overrides: overrides of the future runs, such as ``task.tokenizer=FOLDER`` or ``preset=mini``.

    Raises:
        UserError: an override is invalid, or a task rejects the data.
    """
    for task in (TASKS.get(name) for name in data_set.tasks):
        if data_set.name not in task.datasets:
            continue  # it belongs to a data set with another name
        backbone, patterns = next(iter(task.backbones.items()))
        cell = [f"task={task.name}", f"dataset={data_set.name}", f"backbone={backbone}", f"pattern={patterns[0]}"]
        preset = [] if any(each.startswith("preset=") for each in overrides) else ["preset=paper"]
        chosen = check_overrides([*cell, "attention=vanilla", *preset, *overrides])
        with jobs_of([chosen], Report(raises=True), is_sweep=False) as jobs:
            Cell.from_config(next(jobs).config).task.setup(data_root)
        yield task.name
