"""What a package registers, read from the text of its modules: nothing is imported to know a name.

A decorator whose arguments are literals says all that there is to know of an entry but the class itself. A module
that mentions a decorator in any other way (arguments that are computed, a loop, an alias, a class inside a function)
cannot be read so, and is imported instead.
"""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a class was written; file and line (of its first decorator) are known when it was read from the text."""

    module: str
    qualname: str
    file: Path | None = field(default=None, compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class DecoratorCall:
    """``@register_attention("abc", patterns="NS")`` on the class at ``place``."""

    place: Place
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def module_specs(name: str) -> Iterator[ModuleSpec]:
    """The module ``name`` and all below it, packages before what they contain; none of them is imported.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    yield from _with_submodules(spec)


def _with_submodules(spec: ModuleSpec) -> Iterator[ModuleSpec]:
    yield spec
    for info in pkgutil.iter_modules(spec.submodule_search_locations or (), f"{spec.name}."):
        below = info.module_finder.find_spec(info.name, None)
        if below is not None:
            yield from _with_submodules(below)


def decorator_calls(spec: ModuleSpec, decorator: str) -> list[DecoratorCall] | None:
    """The uses of ``decorator`` in a module; None when the text does not tell.

    Raises:
        SyntaxError: in a module that mentions the decorator.
    """
    if spec.origin is None or not spec.origin.endswith(".py"):
        return [] if spec.loader is None else None  # a folder without __init__.py; a compiled module
    source = Path(spec.origin).read_bytes()
    mentions = len(re.findall(rb"\b%s\b" % decorator.encode(), source))
    if not mentions:
        return []
    tree = ast.parse(source, spec.origin)
    calls = []
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            line = statement.decorator_list[0].lineno if statement.decorator_list else statement.lineno
            place = Place(spec.name, statement.name, Path(spec.origin), line)
            for node in statement.decorator_list:
                if isinstance(node, ast.Call) and _name(node.func) == decorator:
                    mentions -= 1
                    try:
                        calls.append(DecoratorCall(place, *_literals(node)))
                    except ValueError:
                        return None
        elif isinstance(statement, ast.ImportFrom):
            mentions -= sum(alias.name == decorator and alias.asname is None for alias in statement.names)
    return None if mentions else calls


def _name(function: ast.expr) -> str:
    """``f`` of ``f`` and of ``cab.f``."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _literals(call: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call; ValueError when one is not a literal."""
    args = tuple(ast.literal_eval(node) for node in call.args)
    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError("**kwargs are no literal")
        kwargs[keyword.arg] = ast.literal_eval(keyword.value)
    return args, kwargs
