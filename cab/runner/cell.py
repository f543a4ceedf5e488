"""The cell of a run, with its attention, preset and seed, checked before any data is read.

In the documentation, a cell is a combination of task, data set, backbone and pattern. In the code of runs and records,
a cell also has the attention, the preset and the seed, so it is what one run trains.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cab.config.run_config import REGISTRIES, RunConfig
from cab.errors import UnsupportedError, UserError
from cab.patterns import Pattern
from cab.records.files import paths_of_hash, record_path
from cab.records.identity import changed, configured, flat, hash_of, other_engine, settings
from cab.records.record import Record
from cab.registry.entries import RegistryEntry
from cab.registry.names import is_file
from cab.registry.program import code_of, engine_module, is_foreign
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.specs import check_pattern, check_slot
from cab.registry.stacks import parts_of
from cab.registry.tables import attention_label, read_rows, run_defaults, trainer_defaults
from cab.spec import Spec

if TYPE_CHECKING:
    from cab.task import Task

CELL_GROUPS = ("task", "dataset", "backbone", "pattern", "attention")
"""Groups that are chosen by name, in the order of :func:`runnable_cells`."""
GPU = "GPU"
"""Hardware of the hours in Table 15."""


@dataclass(frozen=True)
class Cell:
    """A checked configuration, and its task."""

    config: RunConfig

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Cell:
        """Check a composed configuration; UnsupportedError for names that cannot be combined."""
        checked = RunConfig.from_dict(config)
        task, backbone = checked.task.name, checked.backbone.name
        check_dataset(task, checked.dataset, checked.pattern, has_source=bool(checked.task.options.get("source")))
        check_task_backbone(task, backbone, checked.pattern)
        check_pattern(checked.attention, checked.pattern)
        if checked.trainer.kernels is not None:
            check_kernels(checked)
        return cls(checked)

    @functools.cached_property
    def task(self) -> Task:
        """The task, which imports torch; UserError if its options contradict each other."""
        task: Task = TASKS.get(self.config.task.name).build(dataset=self.config.dataset, **self.config.task.options)
        task.check()
        task.bind_config(self.config.resolved)
        return task

    @functools.cached_property
    def hash(self) -> str:
        """Hash of the configuration, see :func:`cab.records.identity.hash_of`."""
        return hash_of(self.changed)

    @functools.cached_property
    def name(self) -> str:
        """Name of the record and the folder: the hash, followed by the code if the hash names other code already."""
        path = record_path(self.config.results_dir, self.hash)
        if path not in paths_of_hash(path.parent, self.hash):
            return self.hash
        try:
            is_other = Record.read(path).attention_code != self.attention_code
        except UserError:  # it is replaced
            return self.hash
        return f"{self.hash}-{self.attention_code[:8] or 'unknown'}" if is_other else self.hash

    @functools.cached_property
    def changed(self) -> dict[str, Any]:
        """What differs from the defaults, with the versions and the initial weights: what the hash is of."""
        config = self.config.resolved
        versions = {f"{group} version": getattr(cls, "version", 1) for group, cls in self.classes.items()}
        values = {**settings(config), **flat({"initial_weights": self.task.initial_weights_id})}
        defaults = {**self.config.defaults, **dict.fromkeys(versions, 1), "initial_weights": {}}
        differing = changed({**values, **versions}, defaults)
        return {self.renamed.get(name, name): value for name, value in differing.items()}

    @property
    def renamed(self) -> dict[str, str]:
        """The earlier names of options, which identify them in records, by their names."""
        return {
            f"{group}.{name}": f"{group}.{earlier}"
            for group, cls in self.classes.items()
            for name, earlier in getattr(cls, "renamed", {}).items()
        }

    @functools.cached_property
    def classes(self) -> dict[str, type]:
        """The classes of task, backbone and attention."""
        config = self.config
        return {
            "task": type(self.task),
            "backbone": BACKBONES.get(config.backbone.name).cls,
            "attention": ATTENTIONS.get(config.attention.name).cls,
        }

    @property
    def other_classes(self) -> list[type]:
        """The classes of the attentions in layers of other patterns."""
        return [ATTENTIONS.get(spec.name).cls for spec in self.config.other_attention.values()]

    @functools.cached_property
    def foreign(self) -> frozenset[str]:
        """Files of users and packages of plug-ins that a run imports; they could change the next run of a process."""
        config = self.config
        specs = [config.attention, *config.other_attention.values()]
        entries: list[RegistryEntry[Any]] = [TASKS.get(config.task.name), BACKBONES.get(config.backbone.name)]
        entries += [part for spec in specs for part in parts_of(ATTENTIONS.get(spec.name)).values()]
        files = {entry.name.rpartition(":")[0] for entry in entries if is_file(entry.name)}
        modules = [engine_module(config.engine), *(entry.location.module for entry in entries)]
        return frozenset(files | {name.partition(".")[0] for name in modules if is_foreign(name)})

    @functools.cached_property
    def attention_code(self) -> str:
        """Digest of the code of the attention under test; empty if a part of it is unknown."""
        return code_of(self.classes["attention"])

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


def check_kernels(config: RunConfig) -> None:
    """Raise UserError for unknown names in ``trainer.kernels``; imports torch and the modules of the network."""
    from cab import kernels

    for entry in (BACKBONES.get(config.backbone.name), ATTENTIONS.get(config.attention.name)):
        entry.cls  # noqa: B018 (its module defines operations)
    kernels.check(config.trainer.kernels)


def current_config(record: Record) -> dict[str, Any]:
    """Return the configuration of a recorded run with the options of today.

    Options that were added have their defaults, removed ones that had theirs are left out, and renamed ones have their
    new names.
    """
    config: dict[str, Any] = {**run_defaults(), **configured(record.config, record.changed)}
    trainer = trainer_defaults()
    known = {
        name: value
        for name, value in config["trainer"].items()
        if name in trainer or f"trainer.{name}" in record.changed
    }
    config["trainer"] = {**trainer, **known}
    for group, registry in REGISTRIES.items():
        config[group] = _current_options(registry.get(config[group]["name"]), config[group], group, record.changed)
    return config


def _current_options(
    entry: RegistryEntry, options: Mapping[str, Any], path: str, changed: Iterable[str]
) -> dict[str, Any]:
    """Return recorded options with the names of today, those of the parts of a stack included."""
    options = dict(options)
    for name, earlier in getattr(entry.cls, "renamed", {}).items():
        if earlier in options:
            options[name] = options.pop(earlier)
    for name, part in getattr(entry, "parts", {}).items():
        if name in options:
            options[name] = _current_options(part, options[name], f"{path}.{name}", changed)
    return {
        name: value
        for name, value in options.items()
        if name in ("name", *entry.options) or f"{path}.{name}" in changed
    }


def check_dataset(task: str, dataset: str, pattern: Pattern | None = None, *, has_source: bool = False) -> None:
    """Raise UnsupportedError if the task does not have the data set, or not in this pattern.

    A task with an option ``source`` has a data set of any other name if the option is set.
    """
    entry = TASKS.get(task)
    if dataset not in entry.datasets and not (has_source and entry.has_own(dataset)):
        own = "" if has_source or not entry.has_own(dataset) else "; for data of your own, set task.source"
        known = ", ".join(entry.datasets)
        raise UnsupportedError(f"task '{task}' has no dataset '{dataset}' (datasets: {known}{own})")
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
    from cab.registry.build import backbone_patterns  # imports torch

    check_slot(backbone, pattern, set(backbone_patterns(backbone)))
    raise UnsupportedError(
        f"task '{task}' does not support pattern {pattern} with backbone '{backbone}' "
        f"(supported: {' '.join(supported[backbone])})"
    )


def runnable_cells(stacks: Iterable[str] = (), own: Sequence[str] = ()) -> list[tuple[str, str, str, str, str]]:
    """Return every runnable combination of task, data set, backbone, pattern and attention.

    Those of ``stacks`` of attentions and of data sets of your ``own`` are added.
    """
    attentions = [*ATTENTIONS, *map(ATTENTIONS.get, stacks)]
    return [
        (task.name, dataset, backbone, str(pattern), attention.name)
        for task in TASKS
        for dataset in (*task.datasets, *filter(task.has_own, own))
        for backbone, patterns in task.backbones.items()
        if backbone in BACKBONES
        for pattern in patterns
        if task.has_pattern(dataset, pattern)
        for attention in attentions
        if pattern in attention.patterns
    ]


def why_not_runnable(named: Mapping[str, str], *, has_source: bool = False) -> str:
    """Return the reason why no runnable cell has these names of :data:`CELL_GROUPS`."""
    pattern = Pattern.parse(named["pattern"]) if "pattern" in named else None
    try:
        if {"task", "dataset"} <= named.keys():
            check_dataset(named["task"], named["dataset"], pattern, has_source=has_source)
        if {"task", "backbone"} <= named.keys():
            check_task_backbone(named["task"], named["backbone"], pattern)
        if "attention" in named and (pattern is not None or not ATTENTIONS.get(named["attention"]).patterns):
            check_pattern(Spec(named["attention"]), pattern or Pattern.NS)
    except UnsupportedError as error:
        return str(error)
    return f"no cell has {', '.join(f'{group}={name}' for group, name in named.items())}; see `cab list cells`"
