"""Values of options against the annotations of the constructor that takes them: checked before anything is built."""

from __future__ import annotations

import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cab.errors import UserError, unknown_name

_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}


def annotations_of(constructor: Callable[..., Any]) -> dict[str, Any]:
    """What its keyword arguments are annotated with; Any where the text names what only a type checker knows."""
    function = constructor.__init__ if isinstance(constructor, type) else constructor  # type: ignore[misc]
    scope = {**vars(typing), **getattr(function, "__globals__", {})}
    found = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, str):
            try:
                kind = eval(kind, scope)
            except Exception:  # a name under TYPE_CHECKING
                kind = Any
        found[name] = Any if kind is parameter.empty else kind
    return found


def with_words(options: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with yes, no, on and off, which YAML leaves as text, as the truth values that they stand for."""
    return {name: _spoken(value) if kinds.get(name) is bool else value for name, value in options.items()}


def _spoken(value: Any) -> Any:
    return _WORDS.get(value.lower(), value) if isinstance(value, str) else value


def check_names(options: Iterable[str], known: Iterable[str], group: str) -> None:
    """UserError for an option that does not exist, with the nearest that does."""
    names = [f"{group}.{name}" for name in known]
    for option in options:
        if f"{group}.{option}" not in names:
            raise unknown_name("option", f"{group}.{option}", names)


def check_types(
    options: Mapping[str, Any], kinds: Mapping[str, Any], usual: Mapping[str, Any], group: str = ""
) -> None:
    """UserError for a value that is not what its annotation says, with the nearest form that is.

    Whole numbers count something: none is negative where the usual one is not. A dropout is below 1.

    Args:
        usual: the defaults.
        group: goes before the names in messages, as in ``attention.num_landmarks``.
    """
    for name, value in options.items():
        kind, default = kinds.get(name, Any), usual.get(name)
        need = "" if _fits(value, kind) else described(kind)
        if not need and _is_negative(value, kind) and not _is_negative(default, kind):
            need = f"{described(kind)} from 0"
        if not need and name.endswith("dropout") and not 0 <= (value or 0) < 1:
            need = "a number from 0 to below 1"
        if need:
            option = f"{group}.{name}" if group else name
            near = _nearest(value, kind, default)
            raise UserError(f"{option} must be {need}, got {value!r:.60}" + (f"; as {option}={near}" if near else ""))


def described(kind: Any) -> str:
    """A type in words.

    >>> described(int | None)
    'a whole number or null'
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return f"one of {', '.join(map(_written, parts))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(described(part) for part in parts)
    if _is_sequence(origin):
        if origin is tuple and parts[-1:] != (...,):
            return f"a list of {len(parts)}: {', '.join(map(described, parts))}"
        return f"a list, each {described(parts[0])}" if parts else "a list"
    return _KINDS.get(kind, "a group of options" if _is_mapping(kind) else str(kind))


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if _is_sequence(origin):
        if not isinstance(value, (list, tuple)):
            return False
        if origin is tuple and parts[-1:] != (...,):
            return len(value) == len(parts) and all(map(_fits, value, parts))
        return all(_fits(item, parts[0]) for item in value) if parts else True
    if _is_mapping(kind):
        return isinstance(value, Mapping)
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral)
    if kind is float:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    return isinstance(value, kind) if kind in _KINDS else True


def _is_sequence(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _is_mapping(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_negative(value: Any, kind: Any) -> bool:
    """Whether a whole number, or one in a list of them, is below 0."""
    if isinstance(value, (list, tuple)):
        parts = typing.get_args(kind)
        return any(_is_negative(item, parts[0] if parts else Any) for item in value)
    counts = kind is int or int in typing.get_args(kind)
    return counts and isinstance(value, int) and value < 0


def _nearest(value: Any, kind: Any, default: Any) -> str:
    """A value that fits, as it is typed; empty when there is none to name."""
    if kind is int and isinstance(value, float) and math.isfinite(value):
        return _written(max(0, round(value)))
    return _written(default) if default is not None and _fits(default, kind) else ""


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(map(_written, value))}]" if isinstance(value, (list, tuple)) else str(value)


def argument_texts(docstring: str) -> dict[str, str]:
    """Return the description of each argument in the section ``Args:`` of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", f"{docstring}\n", flags=re.MULTILINE)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        begun = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if begun:
            names = begun[1].split(", ")
            found |= dict.fromkeys(names, begun[2])
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return {name: text.replace("``", "") for name, text in found.items()}
