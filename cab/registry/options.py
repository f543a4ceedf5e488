"""Check options against the annotations of the constructor or configuration class that takes them."""

from __future__ import annotations

import inspect
import math
import numbers
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cab.errors import UserError, unknown_name

_WORDS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
}


class Limit(NamedTuple):
    """A condition on a number, to annotate its type with, and the condition as text."""

    text: str
    holds: Callable[[Any], bool]


Natural = Annotated[int, Limit("from 0", lambda value: value >= 0)]
Positive = Annotated[int, Limit("from 1", lambda value: value >= 1)]
NonNegativeFloat = Annotated[float, Limit("from 0", lambda value: value >= 0)]
PositiveFloat = Annotated[float, Limit("above 0", lambda value: value > 0)]


def annotations_of(constructor: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of its keyword arguments; Any for names that exist for type checkers only."""
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


def checked_options(
    options: Mapping[str, Any], kinds: Mapping[str, Any], group: str = "", *, usual: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all options of a group, in the form of :func:`converted`.

    Args:
        options: the values by name.
        kinds: the annotation of each option.
        group: prefix of the names in messages; see :func:`check_types`.
        usual: the defaults.

    Raises:
        UserError: an option is unknown, missing, or not of its annotation.
    """
    prefix = f"{group}." if group else ""
    check_names(options, kinds, group)
    for name in kinds:
        if name not in options:
            raise UserError(f"{prefix}{name} has no value: options are set, not removed")
    options = converted(options, kinds)
    check_types(options, kinds, usual or {}, group)
    return options


def converted(options: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with one form per value, so that 5 and 5.0, or yes and true, are the same configuration.

    Words such as yes, which YAML leaves as text, become booleans. An integer becomes a float if the annotation is
    float; if it is ``int | float``, a float without fraction becomes an integer.
    """
    return {name: _converted(value, kinds.get(name, Any)) for name, value in options.items()}


def _converted(value: Any, kind: Any) -> Any:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _converted(value, parts[0])
    if origin in (typing.Union, types.UnionType):
        if {int, float} <= set(parts):
            return int(value) if isinstance(value, float) and value.is_integer() else value
        return next((_converted(value, part) for part in parts if _fits(value, part)), value)
    if _is_sequence(origin) and parts and isinstance(value, (list, tuple)):
        is_fixed = origin is tuple and parts[-1:] != (...,)
        return type(value)(map(_converted, value, parts if is_fixed else [parts[0]] * len(value)))
    if kind is bool and isinstance(value, str):
        return _WORDS.get(value.lower(), value)
    return float(value) if kind is float and type(value) is int and _fits(value, float) else value


def check_names(options: Iterable[str], known: Iterable[str], group: str) -> None:
    """Raise UserError for an option that does not exist, with the nearest that does."""
    prefix = f"{group}." if group else ""
    names = [f"{prefix}{name}" for name in known]
    for option in options:
        if f"{prefix}{option}" not in names:
            raise unknown_name("option", f"{prefix}{option}", names)


def check_types(
    options: Mapping[str, Any], kinds: Mapping[str, Any], usual: Mapping[str, Any], group: str = ""
) -> None:
    """UserError for a value that is not what its annotation says, with the nearest form that is.

    Integers count something: none is negative where the usual one is not. A dropout is below 1.

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
    """Describe a type in words.

    >>> described(int | None)
    'an integer or null'
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return f"{described(parts[0])} {parts[1].text}"
    if origin is typing.Literal:
        return f"one of {', '.join(map(_written, parts))}" if len(parts) > 1 else _written(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(described(part) for part in parts if part is not int or float not in parts)
    if _is_sequence(origin):
        if origin is tuple and parts[-1:] != (...,):
            return f"a list of {len(parts)}: {', '.join(map(described, parts))}"
        return f"a list, each {described(parts[0])}" if parts else "a list"
    return _KINDS.get(kind, "a group of options" if _is_mapping(kind) else str(kind))


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _fits(value, parts[0]) and bool(parts[1].holds(value))
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
        return abs(value) <= sys.float_info.max if isinstance(value, int) else _is_finite(value)
    return isinstance(value, kind) if kind in _KINDS else True


def _is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _is_sequence(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _is_mapping(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_negative(value: Any, kind: Any) -> bool:
    """Whether an integer, or one in a list of them, is below 0."""
    if isinstance(value, (list, tuple)):
        parts = typing.get_args(kind)
        return any(_is_negative(item, parts[0] if parts else Any) for item in value)
    counts = kind is int or int in typing.get_args(kind)
    return counts and isinstance(value, int) and value < 0


def _nearest(value: Any, kind: Any, default: Any) -> str:
    """Return the nearest valid value as text; empty if there is none."""
    base = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if base is int and isinstance(value, float) and math.isfinite(value) and _fits(max(0, round(value)), kind):
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
