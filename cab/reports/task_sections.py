"""Sections of the page that tasks define themselves, such as tasks outside the index.

A task names its section in ``register_task(..., report="package.module:NAME")``; it is imported if there are results.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_table, sanitize_text
from cab.records.record import Status
from cab.registry.registries import TASKS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from cab.reports.sections import Block


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """Section of the page with the results of one task.

    Attributes:
        name: HTML identifier, and name of the CSV file.
        title: heading.
        summary: text below the heading.
        table: returns the rows of the section from the task's finished runs (:func:`cab.load_results`).
        blocks: yields the blocks of the section from the rows.
        figures: yields the files of ``cab leaderboard --figures``, name and figure, from the rows.
        hidden: columns that are not written to the CSV file.
    """

    name: str
    title: str
    summary: str
    table: Callable[[pd.DataFrame], pd.DataFrame]
    blocks: Callable[[pd.DataFrame], Iterable[Block]]
    figures: Callable[[pd.DataFrame], Iterable[tuple[str, Figure]]] = lambda _: ()
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class FilledSection:
    """A section and its rows."""

    section: TaskSection
    rows: pd.DataFrame

    def write(self, out: Path) -> Path:
        """Write the rows to ``NAME.csv`` in ``out``."""
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{self.section.name}.csv"
        sanitize_table(self.rows.drop(columns=list(self.section.hidden))).to_csv(path, index=False)
        return path


def task_sections(results: pd.DataFrame) -> list[FilledSection]:
    """Return the sections with rows of the tasks in ``results``, in alphabetical order of the tasks."""
    found = []
    for name in sorted(results["task"].unique()):
        if name in TASKS and TASKS.get(name).report:
            module, _, attribute = TASKS.get(name).report.partition(":")
            section: TaskSection = getattr(importlib.import_module(module), attribute)
            found.append(FilledSection(section, section.table(finished_runs(results, name))))
    return [each for each in found if not each.rows.empty]


def finished_runs(results: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the rows of the finished runs of a task, with sanitized names of attentions and variants."""
    runs = results[(results["task"] == task) & (results["status"] == Status.FINISHED)]
    return runs.assign(**{name: runs[name].map(sanitize_text) for name in ("attention", "config_variant")})
