"""Check options against the annotations of the constructor or configuration class that takes them, with pydantic.

pydantic is imported when the first option is checked, since its import takes as long as that of the command line.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, MultipleOf

from cab.errors import UserError, unknown_name

Natural = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
NonNegativeFloat = Annotated[float, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
Even = Annotated[int, Ge(2), MultipleOf(2)]


@functools.cache
def annotations_of(constructor: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of its keyword arguments; Any for names that exist for type checkers only."""
    function = constructor.__init__ if isinstance(constructor, type) else constructor  # type: ignore[misc]
    scope = dict(vars(typing))
    for base in reversed(getattr(constructor, "__mro__", ())):  # a dataclass has the fields of its bases
        scope |= vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
    scope |= getattr(function, "__globals__", {})
    annotations = {}
    for name, parameter in inspect.signature(constructor).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, str):
            try:
                kind = eval(kind, scope)
            except Exception:  # a name under TYPE_CHECKING
                kind = Any
        annotations[name] = Any if kind is parameter.empty else kind
    return annotations


def checked_options(
    options: Mapping[str, Any], kinds: Mapping[str, Any], group: str = "", *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the options with one form per value, so that 5 and 5.0, or yes and true, are the same configuration.

    UserError for a value that does not match its annotation, with the name of the option in its ``group``.
    """
    from pydantic import ValidationError

    checked = {}
    for name, value in options.items():
        default = (defaults or {}).get(name)
        try:
            result = _adapter_of(kinds.get(name, Any), name, default).validate_python(value)
        except ValidationError as error:
            option = f"{group}.{name}" if group else name
            problems = " or ".join(dict.fromkeys(problem["msg"] for problem in error.errors()))
            hint = "" if default is None else f"; for example {option}={_written(default)}"
            raise UserError(f"{option}: {problems}, got {value!r:.60}{hint}") from None
        if isinstance(result, Enum):
            example = f"Literal[{', '.join(repr(each.name.lower()) for each in type(result))}]"
            raise UserError(f"{group}.{name}: an option cannot be a member of an Enum; annotate it with {example:.80}")
        checked[name] = type(value)(result) if isinstance(value, (list, tuple)) else result
    return checked


def check_complete(
    options: Mapping[str, Any], kinds: Mapping[str, Any], group: str = "", *, defaults: Iterable[str] = ()
) -> None:
    """Raise UserError for an option that does not exist, and for a missing one that has no default."""
    check_names(options, kinds, group)
    for name in kinds:
        if name not in options and name not in defaults:
            raise UserError(f"{group and f'{group}.'}{name} has no value: options are set, not removed")


def check_names(options: Iterable[str], known: Iterable[str], group: str) -> None:
    """Raise UserError for an option that does not exist, with the nearest that does."""
    prefix = f"{group}." if group else ""
    names = [f"{prefix}{name}" for name in known]
    for option in options:
        if f"{prefix}{option}" not in names:
            raise unknown_name("option", f"{prefix}{option}", names)


def _adapter_of(kind: Any, name: str, default: Any) -> Any:
    """Return the adapter of an option; unless its annotation says otherwise, a dropout is below 1.

    Integers, which count something, are not negative unless the default is.
    """
    values = default if isinstance(default, (list, tuple)) else (default,)
    is_negative = any(value < 0 for value in values if isinstance(value, int))
    try:
        hash(kind)
    except TypeError:  # of metadata, as in Annotated[int, ["a list"]]
        kind = Any
    return _adapter(kind, name.endswith("dropout"), is_negative)


@functools.cache
def _adapter(kind: Any, is_dropout: bool, is_negative: bool) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_strict(kind, is_dropout, is_negative))


def _strict(kind: Any, is_dropout: bool, is_negative: bool) -> Any:
    """Return an annotation that pydantic checks strictly: ``'8'`` and ``true`` are not integers.

    Any value is accepted for an annotation that is not a plain type. One with limits of its own has no others.
    """
    from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Strict

    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    inner = functools.partial(_strict, is_dropout=is_dropout, is_negative=is_negative)
    if kind is int:
        return Annotated[int, BeforeValidator(_plain_number), Strict(), *([] if is_negative else [Ge(0)])]
    if kind is float:
        limits = [Interval(ge=0, lt=1)] if is_dropout else []
        return Annotated[float, BeforeValidator(_plain_number), Strict(), AllowInfNan(False), *limits]
    if kind is str:
        return Annotated[str, Strict()]
    if origin is Annotated:
        return Annotated[_strict(parts[0], is_dropout=False, is_negative=True), *parts[1:]]
    if origin in (typing.Union, types.UnionType) and {int, float} <= set(parts):
        return Annotated[inner(float), AfterValidator(lambda x: int(x) if x.is_integer() else x)]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(inner, parts))]  # noqa: UP007  # of any number of parts
    if _is_class_of(origin, Sequence) and parts:
        return origin[tuple(part if part is ... else inner(part) for part in parts)]
    is_plain = kind in (bool, type(None)) or origin is Literal or _is_class_of(origin or kind, Mapping)
    return kind if is_plain else Any


def _plain_number(value: Any) -> Any:
    """Return the number of Python for one of numpy."""
    return value.item() if type(value).__module__ == "numpy" else value


def _is_class_of(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(map(_written, value))}]" if isinstance(value, (list, tuple)) else str(value)


def argument_texts(docstring: str) -> dict[str, str]:
    """Return the description of each argument in the section ``Args:`` of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", f"{docstring}\n", flags=re.MULTILINE)
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        begun = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if begun:
            names = begun[1].split(", ")
            texts |= dict.fromkeys(names, begun[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return {name: text.replace("``", "") for name, text in texts.items()}
