"""One registry for attentions, backbones and tasks; everything in it is found through entry points.

A package makes its classes known by decorating them and naming its module in an entry point of the group
``cab.attentions``, ``cab.backbones`` or ``cab.tasks``, as this repository does. Names and what decorators say of them
are read from the text (:mod:`cab.registry.index`); a module is imported when its class is used.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from cab.errors import UnsupportedError, UserError, first_line, unknown_name
from cab.patterns import Pattern
from cab.registry.index import Place, decorator_calls, module_specs
from cab.registry.options import annotations_of, check_types

if TYPE_CHECKING:  # named in strings alone, since cab.attention imports torch
    from cab.attention import Attention  # noqa: F401
    from cab.backbone import Backbone  # noqa: F401
    from cab.task import Task  # noqa: F401

log = logging.getLogger(__name__)

C = TypeVar("C", bound=type)
T = TypeVar("T")

STANDALONE: dict[str, Path] = {}
"""Modules that were imported from a file alone, and belong to no package."""


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[T]):
    """What is known of a registered class without importing it; ``imported`` once its module has run."""

    name: str
    paper: str
    place: Place
    imported: type[T] | None = field(default=None, compare=False)

    @functools.cached_property
    def cls(self) -> type[T]:
        """The class; Unsupported when its module cannot be imported."""
        if self.imported is not None:
            return self.imported
        try:
            return getattr(importlib.import_module(self.place.module), self.place.qualname)
        except Exception as error:
            raise UnsupportedError(f"'{self.name}' ({self.origin}) cannot be imported: {_reason(error)}") from error

    def build(self, **arguments: Any) -> T:
        """An object of the class."""
        return cast("Callable[..., T]", self.cls)(**arguments)

    @property
    def origin(self) -> str:
        """File and line of the class, for `cab list`."""
        file, line = self.place.file, self.place.line
        if file is None:
            try:
                file = Path(inspect.getsourcefile(self.cls) or "")
                line = inspect.getsourcelines(self.cls)[1]
            except (OSError, TypeError):  # defined in an interactive session
                return self.place.module
        file = file.resolve()
        return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{line}"

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the constructor that are the user's to set, with their defaults."""
        parameters = inspect.signature(self.cls).parameters.values()
        return {
            p.name: p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.default is not p.empty and p.name not in self.reserved
        }

    @property
    def reserved(self) -> frozenset[str]:
        """Constructor arguments that the harness fills, never the user."""
        return frozenset()

    def check_options(self, options: Mapping[str, Any], kind: str) -> None:
        """UserError for an option that the class does not have, or a value that is not of its annotation."""
        for name in options:
            if name not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise UserError(f"{kind} '{self.name}' has no option '{name}'. It has: {known}")
        check_types(options, annotations_of(self.cls), self.options, kind)


@dataclass(frozen=True, kw_only=True)
class AttentionEntry(Entry["Attention"]):
    """``patterns`` are claimed and verified; ``unsound`` ones exist only to repeat what a published run did."""

    patterns: tuple[Pattern, ...]
    unsound: tuple[Pattern, ...]
    complexity: str

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"pattern", "embed_dim", "num_heads", "dropout", "layer_position"})


@dataclass(frozen=True, kw_only=True)
class BackboneEntry(Entry["Backbone"]):
    """``tasks`` that do not name it themselves, and the patterns that are tested in it there."""

    tasks: Mapping[str, tuple[Pattern, ...]]

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"make_attention"})


@dataclass(frozen=True, kw_only=True)
class TaskEntry(Entry["Task"]):
    """``datasets`` it accepts (see :func:`register_task`), and the backbones that it ``names``.

    ``only``: data sets that are not asked for in all patterns; ``indexed``: part of the compositional index, and of
    sweeps that name no task; ``options_from_task``: the task whose rows of the tables of options its attentions have.
    """

    datasets: tuple[str, ...]
    names: Mapping[str, tuple[Pattern, ...]]
    dataset_patterns: Mapping[str, tuple[Pattern, ...]]
    in_index: bool
    options_from_task: str

    def asks(self, dataset: str, pattern: Pattern) -> bool:
        """Whether the data set is defined for the pattern."""
        return pattern in self.dataset_patterns.get(dataset, tuple(Pattern))

    @property
    def backbones(self) -> Mapping[str, tuple[Pattern, ...]]:
        """Backbones it is defined for, with the patterns that are tested in each: it names them, or they name it."""
        return {**self.names, **{b.name: b.tasks[self.name] for b in BACKBONES if self.name in b.tasks}}

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"dataset"})


E = TypeVar("E", bound=Entry[Any])


@dataclass(frozen=True)
class Declaration(Generic[E]):
    """A class decorator: what it says makes the entry of the class that it is put on."""

    registry: Registry[E]
    entry: Callable[..., E]

    def __call__(self, cls: C) -> C:
        self.registry.add(self.entry(place=Place(cls.__module__, cls.__qualname__), imported=cls))
        return cls


class Registry(Generic[E]):
    """Names to entries of one kind; plug-in packages are read at the first look-up, not before."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.group = f"cab.{kind}s"
        self._entries: dict[str, E] = {}
        self._broken: list[str] = []
        self._is_read = False

    def add(self, entry: E) -> None:
        """Register ``entry``; UserError when its class is of another kind, or the name is taken by another class."""
        base = self.kind.capitalize()
        if entry.imported is not None and not issubclass(entry.imported, getattr(importlib.import_module("cab"), base)):
            raise UserError(f"{self.kind} '{entry.name}' is no subclass of cab.{base}: {entry.origin}")
        other = self._entries.get(entry.name)
        if other is None:
            self._entries[entry.name] = entry
        elif other.place != entry.place:
            raise UserError(
                f"{self.kind} '{entry.name}' is registered twice: {other.origin} and {entry.origin}; rename one"
            )
        elif entry.imported is not None:
            self._entries[entry.name] = dataclasses.replace(entry, place=other.place)

    def get(self, name: str) -> E:
        """The entry called ``name``; UserError lists what exists when there is none."""
        self._read()
        try:
            return self._entries[name]
        except KeyError:
            error = unknown_name(self.kind, name, self._entries)
            if self._broken:
                error = UserError(f"{error} (not loaded: {'; '.join(self._broken)})")
            raise error from None

    def entry_of(self, cls: type) -> E | None:
        """The entry of a class, if it is registered itself (a subclass of a registered one is not)."""
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
        """Every entry, imported; one whose module cannot be imported is reported and left out from now on."""
        for entry in self:
            try:
                _ = entry.cls
            except UserError as error:
                self._leave_out(str(error))
                del self._entries[entry.name]
        return list(self)

    def _read(self) -> None:
        """Read the text of every plug-in of this kind, once."""
        if self._is_read:
            return
        self._is_read = True
        for name in dict.fromkeys(point.module for point in entry_points(group=self.group)):
            before = len(self._entries)
            try:
                specs = list(module_specs(name))
            except Exception as error:
                self._leave_out(f"module '{name}': {_reason(error)}")
                continue
            for spec in specs:
                self._read_module(spec)
            if len(self._entries) == before:  # it registers what other packages hold, or in a way of its own
                for spec in specs:
                    self._import(spec.name)

    def _read_module(self, spec: ModuleSpec) -> None:
        """Add what a module registers; a mistake in it is reported, and takes nothing else down."""
        try:
            calls = decorator_calls(spec, f"register_{self.kind}")
            for call in calls or ():
                self.add(DECORATORS[self.kind](*call.args, **call.kwargs).entry(place=call.place))
        except Exception as error:
            self._leave_out(f"module '{spec.name}': {_reason(error)}")
            return
        if calls is None:
            self._import(spec.name)

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(name)
        except Exception as error:
            self._leave_out(f"module '{name}': {_reason(error)}")

    def _leave_out(self, reason: str) -> None:
        if reason not in self._broken:
            log.warning("skipped %s", f"{self.group}: {reason}")
            self._broken.append(reason)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def is_file(name: str) -> bool:
    """Whether ``name`` means a class in a file, ``FILE.py:Class``, and not a registered name."""
    return ".py" in name or "/" in name


class AttentionRegistry(Registry[AttentionEntry]):
    """Attentions have names of another kind too: ``FILE.py:Class``, known from the first look-up on."""

    def get(self, name: str) -> AttentionEntry:
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
    """Class decorator: makes an attention known to every command under ``name``.

    Args:
        patterns: the patterns it serves, as in ``"NS CS NC CC"``; `cab verify` holds it to each of them.
        complexity: growth of time with length, one of ``"1"``, ``"n"``, ``"n log n"``, ``"n sqrt n"``, ``"n^2"``.
        paper: where the method comes from, for the tables.
        unsound: patterns of published runs in which it is not sound: for slots ``other_attention``, never under test.
    """
    served, published = Pattern.parse_many(patterns), Pattern.parse_many(unsound)
    entry = functools.partial(
        AttentionEntry, name=name, paper=paper, patterns=served, unsound=published, complexity=complexity
    )
    return Declaration(ATTENTIONS, entry)


def register_backbone(name: str, *, paper: str, tasks: Mapping[str, str] | None = None) -> Declaration[BackboneEntry]:
    """Class decorator: makes a backbone known under ``name``; its patterns are read from its slots.

    Args:
        tasks: of other packages, which do not name it, with the patterns tested in it there: ``{"lm": "CS"}``.
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
    options_from_task: str | None = None,
) -> Declaration[TaskEntry]:
    """Class decorator: makes a task known under ``name``.

    Args:
        datasets: as in ``"pg19 synthetic"``; ``synthetic`` is its generator, ``NAME_synthetic`` that of one of several.
        backbones: those it is defined for, with the patterns that are tested in each, as in ``{"gpt2": "CS"}``.
        only: data sets that are defined for some of these patterns only, as in ``{"mqar": "CS"}``.
        indexed: whether its scores enter the compositional index, and a sweep that names no task runs it.
        options_from_task: the task whose attentions' options (Table 5, the suite's) it shares; its own where none is
            named.
    """
    tested = {backbone: Pattern.parse_many(patterns) for backbone, patterns in backbones.items()}
    some = {dataset: Pattern.parse_many(patterns) for dataset, patterns in (dataset_patterns or {}).items()}
    entry = functools.partial(TaskEntry, name=name, paper=paper, names=tested, dataset_patterns=some, in_index=in_index)
    return Declaration(
        TASKS, functools.partial(entry, datasets=tuple(datasets.split()), options_from_task=options_from_task or name)
    )


DECORATORS: Mapping[str, Callable[..., Declaration[Any]]] = {
    "attention": register_attention,
    "backbone": register_backbone,
    "task": register_task,
}
