"""Entries of registries: a registered class, with what its decorator states."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from cab.errors import UnsupportedError, UserError, exits_as_errors, first_line
from cab.patterns import Pattern
from cab.registry.outlines import Location, outline_of

if TYPE_CHECKING:  # used in string annotations only, since cab.attention imports torch
    from cab.attention import Attention  # noqa: F401
    from cab.backbone import Backbone  # noqa: F401

T = TypeVar("T")

COMMON = {"short_convolution": int, "output_gate": bool}
"""Types of the options that :meth:`cab.Attention.common_options` names."""


@dataclass(frozen=True, kw_only=True)
class RegistryEntry(Generic[T]):
    """A registered class, which is imported on first use; ``imported`` is the class after that."""

    name: str
    paper: str
    location: Location
    imported: type[T] | None = field(default=None, compare=False)
    reserved: ClassVar[frozenset[str]] = frozenset()
    """Constructor arguments that the benchmark sets."""

    @functools.cached_property
    def cls(self) -> type[T]:
        """The class; UnsupportedError if its module cannot be imported."""
        if self.imported is not None:
            return self.imported
        try:
            with exits_as_errors():
                return getattr(importlib.import_module(self.location.module), self.location.qualname)
        except Exception as error:
            raise UnsupportedError(f"'{self.name}' ({self.origin}) cannot be imported: {described(error)}") from error

    @functools.cached_property
    def outline(self) -> Any:
        """The class, or its outline as long as nothing has imported torch: signature, annotations and docstrings."""
        if self.imported is None and "torch" not in sys.modules:
            return outline_of(self.location.module, self.location.qualname) or self.cls
        return self.cls

    def build(self, **arguments: Any) -> T:
        """Create an instance of the class."""
        return cast("Callable[..., T]", self.cls)(**arguments)

    @property
    def origin(self) -> str:
        """File and line of the class."""
        if self.location.file is not None:
            return f"{relative(self.location.file)}:{self.location.line}"
        try:
            return f"{relative(Path(inspect.getsourcefile(self.cls) or ''))}:{inspect.getsourcelines(self.cls)[1]}"
        except (OSError, TypeError):  # defined in an interactive session
            return self.location.module

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the constructor that users can set, with their defaults."""
        parameters = [p for p in inspect.signature(self.outline).parameters.values() if p.kind is p.KEYWORD_ONLY]
        return {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in self.reserved}

    def has_option(self, path: str) -> bool:
        """Return whether users can set an option, such as ``num_landmarks``, or ``local.window_size`` of a stack."""
        return path.partition(".")[0] in self.options

    def check_options(self, options: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Return the options, in the form of :func:`cab.registry.options.checked_options`."""
        for name in options:
            if name not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise UserError(f"{kind} '{self.name}' has no option '{name}' (options: {known})")
        from cab.registry.options import checked_options  # imports annotated_types

        return checked_options(options, self.kinds, kind, defaults=self.options)

    @property
    def kinds(self) -> dict[str, Any]:
        """Annotations of the options."""
        from cab.registry.options import annotations_of  # imports annotated_types

        return annotations_of(self.outline)

    @property
    def texts(self) -> dict[str, str]:
        """Descriptions of the options, those of base classes included."""
        from cab.registry.options import argument_texts  # imports annotated_types

        texts: dict[str, str] = {}
        for cls in reversed(self.outline.__mro__):
            texts |= argument_texts(inspect.cleandoc(cls.__doc__ or ""))
        return texts


@dataclass(frozen=True, kw_only=True)
class AttentionEntry(RegistryEntry["Attention"]):
    """A registered attention; see :func:`register_attention`. ``label`` is its name in tables."""

    patterns: tuple[Pattern, ...]
    unsound: tuple[Pattern, ...] = ()
    complexity: str = ""
    label: str = ""
    reserved = frozenset({"pattern", "embed_dim", "num_heads", "dropout", "layer_position"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.name)

    @property
    def supported(self) -> str:
        """Text of the supported patterns; those of each part of a stack, which supports what all of them do."""
        return " ".join(self.patterns)

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Those of the class, and those of the base class that it accepts."""
        common = self.outline.common_options()
        options = {name: default for name, default in super().options.items() if name not in COMMON or name in common}
        takes_common = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.outline).parameters.values())
        return {**options, **{name: x for name, x in common.items() if takes_common and name not in options}}

    @property
    def kinds(self) -> dict[str, Any]:
        return {**COMMON, **super().kinds}


@dataclass(frozen=True, kw_only=True)
class BackboneEntry(RegistryEntry["Backbone"]):
    """A registered backbone; see :func:`register_backbone`."""

    tasks: Mapping[str, tuple[Pattern, ...]]
    reserved = frozenset({"make_attention"})


def described(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {first_line(error)}"


def relative(path: Path) -> Path:
    """Return the path from the working folder, or the absolute path of a file outside it."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
