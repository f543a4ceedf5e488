"""Entries of the registries: a registered class, and what its decorator says about it."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from cab.errors import UnsupportedError, UserError, exits_as_errors, first_line
from cab.patterns import Pattern
from cab.registry.index import Place
from cab.registry.options import annotations_of, check_types, converted

if TYPE_CHECKING:  # used in string annotations only, since cab.attention imports torch
    from cab.attention import Attention  # noqa: F401
    from cab.backbone import Backbone  # noqa: F401
    from cab.task import Task  # noqa: F401

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[T]):
    """A registered class, which is imported on first use; ``imported`` is the class after that."""

    name: str
    paper: str
    place: Place
    imported: type[T] | None = field(default=None, compare=False)

    @functools.cached_property
    def cls(self) -> type[T]:
        """The class; UnsupportedError if its module cannot be imported."""
        if self.imported is not None:
            return self.imported
        try:
            with exits_as_errors():
                return getattr(importlib.import_module(self.place.module), self.place.qualname)
        except Exception as error:
            raise UnsupportedError(
                f"'{self.name}' ({self.origin}) cannot be imported: {import_error(error)}"
            ) from error

    def build(self, **arguments: Any) -> T:
        """Create an instance of the class."""
        return cast("Callable[..., T]", self.cls)(**arguments)

    @property
    def origin(self) -> str:
        """File and line of the class."""
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
        """Keyword arguments of the constructor that users can set, with their defaults."""
        parameters = inspect.signature(self.cls).parameters.values()
        return {
            p.name: p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.default is not p.empty and p.name not in self.reserved
        }

    @property
    def reserved(self) -> frozenset[str]:
        """Constructor arguments that the benchmark sets."""
        return frozenset()

    def check_options(self, options: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Return the options, in the form of :func:`cab.registry.options.converted`.

        Raises:
            UserError: if an option is unknown or a value does not match its annotation.
        """
        for name in options:
            if name not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise UserError(f"{kind} '{self.name}' has no option '{name}' (options: {known})")
        kinds = annotations_of(self.cls)
        options = converted(options, kinds)
        check_types(options, kinds, self.options, kind)
        return options


@dataclass(frozen=True, kw_only=True)
class AttentionEntry(Entry["Attention"]):
    """A registered attention; see :func:`register_attention`."""

    patterns: tuple[Pattern, ...]
    unsound: tuple[Pattern, ...]
    complexity: str
    label: str = ""
    """Name in tables: the class of ``FILE.py:Class``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"pattern", "embed_dim", "num_heads", "dropout", "layer_position"})


@dataclass(frozen=True, kw_only=True)
class BackboneEntry(Entry["Backbone"]):
    """A registered backbone; see :func:`register_backbone`."""

    tasks: Mapping[str, tuple[Pattern, ...]]

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({"make_attention"})


def import_error(error: Exception) -> str:
    """Describe why a module could not be imported, in one line."""
    return f"{type(error).__name__}: {first_line(error)}"
