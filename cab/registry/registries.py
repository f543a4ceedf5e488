"""Registries of attentions, backbones and tasks, filled through decorators and entry points.

A package registers classes with the decorators below, and names their module in an entry point of the group
``cab.attentions``, ``cab.backbones`` or ``cab.tasks``. A decorator with literal arguments is read from the source
without importing the module; a module that uses a decorator in another way (computed arguments, a loop, an alias) is
imported. Modules that cannot be read or imported are skipped with a warning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cab import executed
from cab.errors import UserError, exits_as_errors
from cab.patterns import Pattern
from cab.registry.entries import AttentionEntry, BackboneEntry, RegistryEntry, described
from cab.registry.names import is_file, is_own_name, is_stack, layers_of, name_of_file, unknown_class
from cab.registry.outlines import Location, decorator_calls, module_specs
from cab.registry.stacks import compose_stack

if TYPE_CHECKING:  # used in string annotations only, since cab.task imports torch
    from cab.task import Task  # noqa: F401

log = logging.getLogger(__name__)

C = TypeVar("C", bound=type)


@dataclass(frozen=True, kw_only=True)
class TaskEntry(RegistryEntry["Task"]):
    """A registered task; see :func:`register_task`. ``names`` are the backbones that the task itself names."""

    datasets: tuple[str, ...]
    names: Mapping[str, tuple[Pattern, ...]]
    dataset_patterns: Mapping[str, tuple[Pattern, ...]]
    in_index: bool
    report: str
    options_from_task: str
    reserved = frozenset({"dataset"})

    def has_pattern(self, dataset: str, pattern: Pattern) -> bool:
        """Return whether the data set is defined for the pattern."""
        return pattern in self.dataset_patterns.get(dataset, tuple(Pattern))

    def has_own(self, dataset: str) -> bool:
        """Return whether the task can read data of a user under this name, which no task has."""
        return (
            is_own_name(dataset) and all(dataset not in task.datasets for task in TASKS) and self.has_option("source")
        )

    @property
    def backbones(self) -> Mapping[str, tuple[Pattern, ...]]:
        """Backbones that name the task or are named by it, with the patterns tested in each."""
        return {**self.names, **{b.name: b.tasks[self.name] for b in BACKBONES if self.name in b.tasks}}


E = TypeVar("E", bound=RegistryEntry[Any])


@dataclass(frozen=True)
class Declaration(Generic[E]):
    """A class decorator that adds an entry for the decorated class."""

    registry: Registry[E]
    entry: Callable[..., E]

    def __call__(self, cls: C) -> C:
        self.registry.add(self.entry(location=Location(cls.__module__, cls.__qualname__), imported=cls))
        return cls


class Registry(Generic[E]):
    """Entries of one kind by name; the source of plug-in packages is read on first use.

    Args:
        kind: such as ``attention``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.group = f"cab.{kind}s"
        self._entries: dict[str, E] = {}
        self._skipped: list[str] = []
        self._is_read = False

    @property
    def base(self) -> type[Any]:
        """The base class of the registered classes, such as ``cab.Attention``, whose module imports torch."""
        return getattr(importlib.import_module(f"cab.{self.kind}"), self.kind.capitalize())

    def add(self, entry: E) -> None:
        """Register ``entry``; UserError if its class has the wrong base class or another class has its name."""
        if entry.imported is not None and not issubclass(entry.imported, self.base):
            base = f"cab.{self.base.__name__}"
            raise UserError(f"{self.kind} '{entry.name}' ({entry.origin}) must be a subclass of {base}")
        other = self._entries.get(entry.name)
        if other is None:
            self._entries[entry.name] = entry
        elif other.location != entry.location:
            raise UserError(
                f"{self.kind} '{entry.name}' is registered twice: {other.origin}, {entry.origin}; rename one"
            )
        else:  # an entry that is read has the file, one that is imported the class, in either order
            location = other.location if other.location.file else entry.location
            self._entries[entry.name] = dataclasses.replace(entry if entry.imported else other, location=location)

    def get(self, name: str) -> E:
        """Return the entry called ``name``; UserError with the nearest names if there is none."""
        self._read()
        if name in self._entries:
            return self._entries[name]
        error = unknown_class(self.kind, name, self._entries)
        raise UserError(f"{error} (not loaded: {'; '.join(self._skipped)})") if self._skipped else error

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
        """Read and return all entries; an entry that cannot be imported is removed with a warning."""
        for entry in self:
            try:
                _ = entry.outline
            except UserError as error:
                self._skip(str(error))
                del self._entries[entry.name]
        return list(self)

    def _read(self) -> None:
        """Read the source of every plug-in of this kind, once."""
        if self._is_read:
            return
        self._is_read = True
        for package in dict.fromkeys(point.module for point in entry_points(group=self.group)):
            executed.include(package)
            num_entries = len(self._entries)
            specs: list[ModuleSpec] = []
            with self._skipping(package):
                specs += module_specs(package)
            for spec in specs:
                with self._skipping(spec.name):
                    self._read_module(spec)
            if len(self._entries) == num_entries:  # it registers classes of other packages, or without the decorators
                for spec in specs:
                    with self._skipping(spec.name):
                        importlib.import_module(spec.name)

    def _read_module(self, spec: ModuleSpec) -> None:
        calls = decorator_calls(spec, f"register_{self.kind}")
        if calls is None:
            importlib.import_module(spec.name)
        for location, args, kwargs in calls or ():
            self.add(DECORATORS[self.kind](*args, **kwargs).entry(location=location))

    @contextlib.contextmanager
    def _skipping(self, module: str) -> Iterator[None]:
        """Skip a module with a warning if it raises an exception or ends the program."""
        try:
            with exits_as_errors():
                yield
        except Exception as error:
            self._skip(f"module '{module}': {described(error)}")

    def _skip(self, reason: str) -> None:
        if reason not in self._skipped:
            log.warning("skipped %s: %s", self.group, reason)
            self._skipped.append(reason)


class AttentionRegistry(Registry[AttentionEntry]):
    """Registry of attentions, which also resolves ``FILE.py:Class`` and composes stacks such as ``gla*3,vanilla``."""

    def __init__(self) -> None:
        super().__init__("attention")
        self._of_files: dict[tuple[str, str], AttentionEntry] = {}

    def get(self, name: str) -> AttentionEntry:
        if is_stack(name):
            return compose_stack(name, self.get)
        if not is_file(name):
            return super().get(name)
        name = name_of_file(name)
        key = (name, os.path.abspath(name))  # noqa: PTH100  # the name is another file in another working folder
        if key not in self._of_files:
            self._of_files[key] = self.entry_of_file(name)
        return self._of_files[key]

    def entry_of_file(self, target: str) -> AttentionEntry:
        """Return the entry of ``FILE.py:Class``; a class without decorator supports all patterns."""
        from cab.registry.files import load_object  # imports torch

        cls = load_object(target)
        if not isinstance(cls, type) or not issubclass(cls, self.base):
            raise UserError(f"{target} cannot be used in a network: derive it from cab.Attention")
        registered = self.entry_of(cls)
        name = target.rpartition(":")[2]  # a class that a function made has another name of its own
        label = target if name in self and self.get(name) is not registered else name
        if registered is not None:
            return dataclasses.replace(registered, name=target, label=label)
        where = Location(cls.__module__, cls.__qualname__)
        return AttentionEntry(
            name=target, label=label, paper="-", location=where, imported=cls, patterns=tuple(Pattern)
        )

    def __iter__(self) -> Iterator[AttentionEntry]:
        yield from super().__iter__()
        yield from (entry for (name, path), entry in self._of_files.items() if os.path.abspath(name) == path)  # noqa: PTH100

    def __contains__(self, name: object) -> bool:
        if not (isinstance(name, str) and is_stack(name)):
            return super().__contains__(name)
        with contextlib.suppress(UserError):
            return {part for layer in layers_of(name) for part in layer} <= set(self.names())  # with files
        return False


ATTENTIONS = AttentionRegistry()
BACKBONES: Registry[BackboneEntry] = Registry("backbone")
TASKS: Registry[TaskEntry] = Registry("task")


# --- decorators ---


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
    entry = functools.partial(
        AttentionEntry,
        name=name,
        paper=paper,
        patterns=Pattern.parse_many(patterns),
        unsound=Pattern.parse_many(unsound),
        complexity=complexity,
    )
    return Declaration(ATTENTIONS, entry)


def register_backbone(name: str, *, paper: str, tasks: Mapping[str, str] | None = None) -> Declaration[BackboneEntry]:
    """Register a backbone; a class decorator. Its patterns are those of its attention layers.

    Args:
        tasks: tasks of other packages that it supports, with the patterns tested in each: ``{"lm": "CS"}``.
    """
    return Declaration(BACKBONES, functools.partial(BackboneEntry, name=name, paper=paper, tasks=_parsed(tasks)))


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
        report: its section of the leaderboard, a :class:`cab.results.sections.TaskSection` as ``module:NAME``.
        options_from_task: task whose tuned attention options (Table 5, the suite) it uses; default: its own.
    """
    entry = functools.partial(
        TaskEntry,
        name=name,
        paper=paper,
        datasets=tuple(datasets.split()),
        names=_parsed(backbones),
        dataset_patterns=_parsed(dataset_patterns),
        in_index=in_index,
        report=report,
        options_from_task=options_from_task or name,
    )
    return Declaration(TASKS, entry)


def _parsed(patterns: Mapping[str, str] | None) -> dict[str, tuple[Pattern, ...]]:
    return {name: Pattern.parse_many(text) for name, text in (patterns or {}).items()}


DECORATORS: Mapping[str, Callable[..., Declaration[Any]]] = {
    "attention": register_attention,
    "backbone": register_backbone,
    "task": register_task,
}
