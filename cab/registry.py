"""One registry for attentions, backbones and tasks; everything in it is found through entry points.

A package makes its classes known by decorating them and naming its module in an entry point of the group
``cab.attentions``, ``cab.backbones`` or ``cab.tasks``. This repository uses the same door for its own.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from cab.errors import UserError, unknown_name
from cab.patterns import Pattern

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A registered class: its name, and where it was written."""

    name: str
    cls: type

    @property
    def origin(self) -> str:
        """File and line of the class, for `cab list`."""
        try:
            file = inspect.getsourcefile(self.cls)
            line = inspect.getsourcelines(self.cls)[1]
        except (OSError, TypeError):  # defined in an interactive session
            return self.cls.__module__
        return f"{_shorten(Path(file or ''))}:{line}"

    @property
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
        """UserError for an option that the class does not have."""
        for name in options:
            if name not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise UserError(f"{kind} '{self.name}' has no option '{name}'. It has: {known}")


@dataclass(frozen=True)
class AttentionEntry(Entry):
    """``patterns`` are claimed and verified; ``unsound`` ones exist only to repeat what a published run did."""

    patterns: tuple[Pattern, ...]
    unsound: tuple[Pattern, ...]
    complexity: str
    paper: str

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"pattern", "embed_dim", "num_heads", "dropout", "depth"})


@dataclass(frozen=True)
class BackboneEntry(Entry):
    paper: str

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"slots"})


@dataclass(frozen=True)
class TaskEntry(Entry):
    paper: str


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """Names to entries of one kind; plug-in packages are imported at the first look-up, not before."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.group = f"cab.{kind}s"
        self._entries: dict[str, E] = {}
        self._broken: list[str] = []
        self._loaded = False

    def add(self, entry: E) -> None:
        """Register ``entry``; UserError when the name is taken by another class."""
        other = self._entries.get(entry.name)
        if other is not None and _identity(other.cls) != _identity(entry.cls):
            raise UserError(
                f"{self.kind} '{entry.name}' is registered twice: {other.origin} and {entry.origin}; rename one"
            )
        self._entries[entry.name] = entry

    def get(self, name: str) -> E:
        """The entry called ``name``; UserError lists what exists when there is none."""
        self.load()
        try:
            return self._entries[name]
        except KeyError:
            error = unknown_name(self.kind, name, self._entries)
            if self._broken:
                error = UserError(f"{error} (not loaded: {'; '.join(self._broken)})")
            raise error from None

    def __iter__(self) -> Iterator[E]:
        self.load()
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def __contains__(self, name: object) -> bool:
        self.load()
        return name in self._entries

    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def load(self) -> None:
        """Import every module of every plug-in of this kind, once."""
        if self._loaded:
            return
        self._loaded = True
        for value in dict.fromkeys(point.value for point in entry_points(group=self.group)):
            self._import_all(value.partition(":")[0])

    def _import_all(self, name: str) -> None:
        """Import a module and those below it; one that fails is reported and left out, and takes no other down."""
        try:
            module = importlib.import_module(name)
        except Exception as error:
            reason = f"module '{name}' of group {self.group}: {type(error).__name__}: {error}"
            log.warning("skipped %s", reason)
            self._broken.append(reason)
            return
        for info in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
            self._import_all(info.name)


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _shorten(file: Path) -> str:
    try:
        return file.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return file.as_posix()


ATTENTIONS: Registry[AttentionEntry] = Registry("attention")
BACKBONES: Registry[BackboneEntry] = Registry("backbone")
TASKS: Registry[TaskEntry] = Registry("task")

C = TypeVar("C", bound=type)


def register_attention(name: str, *, patterns: str, complexity: str, paper: str, unsound: str = "") -> Callable[[C], C]:
    """Class decorator: makes an attention known to every command under ``name``.

    Args:
        patterns: the patterns it serves, as in ``"NS CS NC CC"``; `cab verify` holds it to each of them.
        complexity: growth of time with length, one of ``"1"``, ``"n"``, ``"n log n"``, ``"n sqrt n"``, ``"n^2"``.
        paper: where the method comes from, for the tables.
        unsound: patterns that published runs used although the method is not sound in them; they can fill
            the slots outside the test (``elsewhere``), and are never under test themselves.
    """

    def register(cls: C) -> C:
        entry = AttentionEntry(name, cls, Pattern.parse_many(patterns), Pattern.parse_many(unsound), complexity, paper)
        ATTENTIONS.add(entry)
        return cls

    return register


def register_backbone(name: str, *, paper: str) -> Callable[[C], C]:
    """Class decorator: makes a backbone known under ``name``; its patterns are read from its slots."""

    def register(cls: C) -> C:
        BACKBONES.add(BackboneEntry(name, cls, paper))
        return cls

    return register


def register_task(name: str, *, paper: str) -> Callable[[C], C]:
    """Class decorator: makes a task known under ``name``."""

    def register(cls: C) -> C:
        TASKS.add(TaskEntry(name, cls, paper))
        return cls

    return register
