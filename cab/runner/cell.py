"""The cell of a run, with its attention, preset and seed, checked before any data is read.

In the documentation, a cell is a combination of task, data set, backbone and pattern. In the code of runs and records,
a cell also has the attention, the preset and the seed, so it is what one run trains.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cab.backbone import AttentionSpec
from cab.config.run_config import RunConfig
from cab.errors import UnsupportedError
from cab.patterns import Pattern
from cab.records.identity import attention_files, cell_hash, identity_of, other_engine
from cab.records.verified import code_of
from cab.registry.build import backbone_patterns, check_pattern, check_slot
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import attention_label, read_rows
from cab.task import Task

GROUPS = ("task", "dataset", "backbone", "pattern", "attention")
"""Groups that are chosen by name, in the order of :func:`runnable_cells`."""
GPU = "GPU"
"""Hardware of the hours in Table 15."""


@dataclass(frozen=True)
class Cell:
    """A checked configuration, its task, and the hashes of the code of its attentions that are classes in files."""

    config: RunConfig
    task: Task
    programs: Mapping[str, str]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Cell:
        """Check a composed configuration and build its task; UnsupportedError for names that cannot be combined."""
        checked = RunConfig.from_dict(config)
        task, backbone = checked.task.name, checked.backbone.name
        check_dataset(task, checked.dataset, checked.pattern)
        check_task_backbone(task, backbone, checked.pattern)
        check_pattern(checked.attention, checked.pattern)
        built = TASKS.get(task).build(dataset=checked.dataset, **checked.task.options)
        built.check()
        built.bind_config(checked.resolved)
        programs = {name: code_of(ATTENTIONS.get(name).cls) for name in attention_files(checked.resolved)}
        return cls(checked, built, programs)

    @functools.cached_property
    def hash(self) -> str:
        """Name of the run, see :func:`cab.records.identity.cell_hash`."""
        identity = identity_of(
            self.config.resolved,
            task_version=self.task.version,
            initial_weights=self.task.initial_weights_id,
            programs=self.programs,
        )
        return cell_hash(identity)

    @property
    def label(self) -> str:
        """Name of the attention in tables, see :func:`cab.registry.tables.attention_label`."""
        return attention_label(self.config.resolved)

    @property
    def key(self) -> dict[str, Any]:
        """Columns that identify the cell in tables."""
        engine = other_engine(self.config.resolved)
        return {
            "task": self.config.task.name,
            "dataset": self.config.dataset,
            "config_variant": " ".join(filter(None, (self.task.config_variant, *engine.values()))),
            "backbone": self.config.backbone.name,
            "pattern": str(self.config.pattern),
            "attention": self.label,
            "preset": self.config.preset,
            "seed": self.config.seed,
        }

    @property
    def title(self) -> str:
        """Description for logs."""
        return " ".join(str(value) for value in self.key.values() if value != "")

    def expected_hours(self) -> tuple[float, str] | None:
        """Return the expected hours and their hardware, such as ``GPU``, from configs/costs.csv; None if unknown.

        In preset `paper` these are the hours of Table 15, which do not apply to generated data. A column
        ``task.OPTION`` restricts a row to one value of the option.
        """
        cell = {key: str(self.key[key]) for key in ("preset", "task", "dataset", "backbone", "pattern")}
        cell |= {f"task.{option}": str(value) for option, value in self.config.task.options.items()}
        if cell["preset"] == "paper" and cell["dataset"] == "synthetic":
            return None
        for row in read_rows("costs.csv"):
            if all(row.get(key, "") in ("", value) for key, value in cell.items()):
                return float(row["hours"]), row["hardware"]
        return None


def check_dataset(task: str, dataset: str, pattern: Pattern | None = None) -> None:
    """Raise UnsupportedError if the task does not have the data set, or not in this pattern."""
    entry = TASKS.get(task)
    if dataset not in entry.datasets:
        raise UnsupportedError(f"task '{task}' has no dataset '{dataset}' (datasets: {', '.join(entry.datasets)})")
    if pattern is not None and not entry.has_pattern(dataset, pattern):
        patterns = " ".join(entry.dataset_patterns[dataset])
        raise UnsupportedError(
            f"dataset '{dataset}' of task '{task}' does not support pattern {pattern} (supported: {patterns})"
        )


def check_task_backbone(task: str, backbone: str, pattern: Pattern | None = None) -> None:
    """Raise UnsupportedError if the task does not support the backbone, or not in this pattern."""
    supported = TASKS.get(task).backbones
    BACKBONES.get(backbone)
    if backbone not in supported:
        raise UnsupportedError(
            f"task '{task}' does not support backbone '{backbone}' (supported: {', '.join(supported)})"
        )
    if pattern is None or pattern in supported[backbone]:
        return
    check_slot(backbone, pattern, set(backbone_patterns(backbone)))
    raise UnsupportedError(
        f"task '{task}' does not support pattern {pattern} with backbone '{backbone}' "
        f"(supported: {' '.join(supported[backbone])})"
    )


def runnable_cells() -> list[tuple[str, str, str, str, str]]:
    """Return every runnable combination of task, data set, backbone, pattern and attention."""
    return [
        (task.name, dataset, backbone, str(pattern), attention.name)
        for task in TASKS
        for dataset in task.datasets
        for backbone, patterns in task.backbones.items()
        if backbone in BACKBONES
        for pattern in patterns
        if task.has_pattern(dataset, pattern)
        for attention in ATTENTIONS
        if pattern in attention.patterns
    ]


def why_not_runnable(named: Mapping[str, str]) -> str:
    """Return the reason why no runnable cell has these names of :data:`GROUPS`."""
    pattern = Pattern.parse(named["pattern"]) if "pattern" in named else None
    try:
        if {"task", "dataset"} <= named.keys():
            check_dataset(named["task"], named["dataset"], pattern)
        if {"task", "backbone"} <= named.keys():
            check_task_backbone(named["task"], named["backbone"], pattern)
        if pattern is not None and "attention" in named:
            check_pattern(AttentionSpec(named["attention"]), pattern)
    except UnsupportedError as error:
        return str(error)
    return f"no cell has {', '.join(f'{group}={name}' for group, name in named.items())}; see `cab list cells`"
