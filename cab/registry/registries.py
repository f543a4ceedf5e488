"""Registries of attentions, backbones and tasks, filled through decorators and entry points.

A package registers classes with the decorators below, and names their module in an entry point of the group
``cab.attentions``, ``cab.backbones`` or ``cab.tasks``. The decorators are read from the source
(:mod:`cab.registry.index`); a module is imported when its class is used, and skipped with a warning if that fails.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cab.errors import UserError, exits_as_errors, unknown_name
from cab.patterns import Pattern
from cab.registry.entries import AttentionEntry, BackboneEntry, Entry, import_error
from cab.registry.index import Place, decorator_calls, module_specs

if TYPE_CHECKING:  # used in string annotations only, since cab.attention imports torch
    from cab.attention import Attention  # noqa: F401
    from cab.backbone import Backbone  # noqa: F401
    from cab.task import Task  # noqa: F401

log = logging.getLogger(__name__)

C = TypeVar("C", bound=type)
T = TypeVar("T")

STANDALONE: dict[str, Path] = {}
"""Imported modules that do not belong to a package, with their files."""


@dataclass(frozen=True, kw_only=True)
class TaskEntry(Entry["Task"]):
    """A registered task; see :func:`register_task`. ``names`` are the backbones that the task itself names."""

    datasets: tuple[str, ...]
    names: Mapping[str, tuple[Pattern, ...]]
    dataset_patterns: Mapping[str, tuple[Pattern, ...]]
    in_index: bool
    report: str
    options_from_task: str

    def asks(self, dataset: str, pattern: Pattern) -> bool:
        """Return whether the data set is defined for the pattern."""
        return pattern in self.dataset_patterns.get(dataset, tuple(Pattern))

    @property
    def backbones(self) -> Mapping[str, tuple[Pattern, ...]]:
        """Backbones that name the task or are named by it, with the patterns tested in each."""
        return {**self.names, **{b.name: b.tasks[self.name] for b in BACKBONES if self.name in b.tasks}}

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"dataset"})


E = TypeVar("E", bound=Entry[Any])


@dataclass(frozen=True)
class Declaration(Generic[E]):
    """A class decorator that adds an entry for the decorated class."""

    registry: Registry[E]
    entry: Callable[..., E]

    def __call__(self, cls: C) -> C:
        self.registry.add(self.entry(place=Place(cls.__module__, cls.__qualname__), imported=cls))
        return cls


class Registry(Generic[E]):
    """Entries of one kind by name; the source of plug-in packages is read on first use."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.group = f"cab.{kind}s"
        self._entries: dict[str, E] = {}
        self._broken: list[str] = []
        self._is_read = False

    def add(self, entry: E) -> None:
        """Register ``entry``; UserError if its class has the wrong base class or another class has its name."""
        base = self.kind.capitalize()
        if entry.imported is not None and not issubclass(entry.imported, getattr(importlib.import_module("cab"), base)):
            raise UserError(f"{self.kind} '{entry.name}' ({entry.origin}) must be a subclass of cab.{base}")
        other = self._entries.get(entry.name)
        if other is None:
            self._entries[entry.name] = entry
        elif other.place != entry.place:
            raise UserError(
                f"{self.kind} '{entry.name}' is registered twice: {other.origin}, {entry.origin}; rename one"
            )
        elif entry.imported is not None:
            self._entries[entry.name] = dataclasses.replace(entry, place=other.place)

    def get(self, name: str) -> E:
        """Return the entry called ``name``; UserError with all names if there is none."""
        self._read()
        try:
            return self._entries[name]
        except KeyError:
            error = unknown_name(self.kind, name, self._entries)
            if self._broken:
                error = UserError(f"{error} (not loaded: {'; '.join(self._broken)})")
            raise error from None

    def entry_of(self, cls: type) -> E | None:
        """Return the entry of a class that is itself registered; None for other classes, such as its subclasses."""
        return next((entry for entry in self if entry.imported is cls), None)

    def __iter__(self) -> Iterator[E]:
        self._read()
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: object) -> bool:
        self._read()
        return name in self._entries

    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def load(self) -> list[E]:
        """Import and return all entries; an entry that cannot be imported is removed with a warning."""
        for entry in self:
            try:
                _ = entry.cls
            except UserError as error:
                self._leave_out(str(error))
                del self._entries[entry.name]
        return list(self)

    def _read(self) -> None:
        """Read the source of every plug-in of this kind, once."""
        if self._is_read:
            return
        self._is_read = True
        for name in dict.fromkeys(point.module for point in entry_points(group=self.group)):
            before = len(self._entries)
            try:
                specs = list(module_specs(name))
            except Exception as error:
                self._leave_out(f"module '{name}': {import_error(error)}")
                continue
            for spec in specs:
                self._read_module(spec)
            if len(self._entries) == before:  # it registers classes of other packages, or without the decorators
                for spec in specs:
                    self._import(spec.name)

    def _read_module(self, spec: ModuleSpec) -> None:
        """Add the entries of a module; an error in the module is logged, and the module skipped."""
        try:
            calls = decorator_calls(spec, f"register_{self.kind}")
            for call in calls or ():
                self.add(DECORATORS[self.kind](*call.args, **call.kwargs).entry(place=call.place))
        except Exception as error:
            self._leave_out(f"module '{spec.name}': {import_error(error)}")
            return
        if calls is None:
            self._import(spec.name)

    def _import(self, name: str) -> None:
        try:
            with exits_as_errors():
                importlib.import_module(name)
        except Exception as error:
            self._leave_out(f"module '{name}': {import_error(error)}")

    def _leave_out(self, reason: str) -> None:
        if reason not in self._broken:
            log.warning("skipped %s: %s", self.group, reason)
            self._broken.append(reason)


def is_file(name: str) -> bool:
    """Return whether ``name`` means a class in a file (``FILE.py:Class``), not a registered name."""
    return ".py" in name or "/" in name


def name_of_file(target: str) -> str:
    """Return ``FILE.py:Class`` with the path from the working folder, or the absolute path of a file outside it.

    All paths of a file thus give one name, and the runs of its class one hash.
    """
    file, colon, name = target.rpartition(":")
    if not os.path.isfile(file):  # noqa: PTH113  # also False for a path that is too long or has a null character
        return target
    path = Path(file).resolve()
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}{colon}{name}"


class AttentionRegistry(Registry[AttentionEntry]):
    """Registry of attentions, which also resolves names of the form ``FILE.py:Class``."""

    def get(self, name: str) -> AttentionEntry:
        name = name_of_file(name) if is_file(name) else name
        if is_file(name) and name not in self:
            from cab.registry.files import entry_of_file  # imports torch

            self._entries[name] = entry_of_file(name)
        return super().get(name)


ATTENTIONS = AttentionRegistry("attention")
BACKBONES: Registry[BackboneEntry] = Registry("backbone")
TASKS: Registry[TaskEntry] = Registry("task")


def register_attention(
    name: str, *, patterns: str, complexity: str, paper: str, unsound: str = ""
) -> Declaration[AttentionEntry]:
    """Register an attention; a class decorator. Keyword arguments of the constructor become its options.

    Args:
        patterns: supported patterns, such as ``"NS CS NC CC"``; `cab verify` checks each of them.
        complexity: growth of time with the length, one of ``"1"``, ``"n"``, ``"n log n"``, ``"n sqrt n"``, ``"n^2"``.
        paper: source of the method, such as ``"Peng et al. 2022"``.
        unsound: patterns of published runs that the method violates; allowed for ``other_attention`` only.
    """
    served, published = Pattern.parse_many(patterns), Pattern.parse_many(unsound)
    entry = functools.partial(
        AttentionEntry, name=name, paper=paper, patterns=served, unsound=published, complexity=complexity
    )
    return Declaration(ATTENTIONS, entry)


def register_backbone(name: str, *, paper: str, tasks: Mapping[str, str] | None = None) -> Declaration[BackboneEntry]:
    """Register a backbone; a class decorator. Its patterns are those of its attention layers.

    Args:
        tasks: tasks of other packages that it supports, with the patterns tested in each: ``{"lm": "CS"}``.
    """
    tested = {task: Pattern.parse_many(patterns) for task, patterns in (tasks or {}).items()}
    return Declaration(BACKBONES, functools.partial(BackboneEntry, name=name, paper=paper, tasks=tested))


def register_task(
    name: str,
    *,
    paper: str,
    datasets: str,
    backbones: Mapping[str, str],
    dataset_patterns: Mapping[str, str] | None = None,
    in_index: bool = True,
    report: str = "",
    options_from_task: str | None = None,
) -> Declaration[TaskEntry]:
    """Register a task; a class decorator.

    Args:
        datasets: data sets, such as ``"pg19 synthetic"``. ``synthetic`` is generated data, or ``NAME_synthetic`` for
            one of several data sets. Sweeps run generated data only by name.
        backbones: backbones with the patterns tested in each, such as ``{"gpt2": "CS"}``.
        dataset_patterns: data sets that are defined for some of these patterns only, such as ``{"mqar": "CS"}``.
        in_index: whether its scores contribute to the compositional index, and sweeps that do not name a task run it.
        report: its section of the leaderboard, a :class:`cab.reports.task_sections.TaskSection` as ``module:NAME``.
        options_from_task: task whose tuned attention options (Table 5, the suite) it uses; default: its own.
    """
    tested = {backbone: Pattern.parse_many(patterns) for backbone, patterns in backbones.items()}
    some = {dataset: Pattern.parse_many(patterns) for dataset, patterns in (dataset_patterns or {}).items()}
    entry = functools.partial(
        TaskEntry,
        name=name,
        paper=paper,
        datasets=tuple(datasets.split()),
        names=tested,
        dataset_patterns=some,
        in_index=in_index,
        report=report,
        options_from_task=options_from_task or name,
    )
    return Declaration(TASKS, entry)


DECORATORS: Mapping[str, Callable[..., Declaration[Any]]] = {
    "attention": register_attention,
    "backbone": register_backbone,
    "task": register_task,
}
