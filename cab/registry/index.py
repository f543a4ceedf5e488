"""Read the names that a package registers from the source of its modules, without importing them.

A decorator with literal arguments defines the whole entry except for the class. A module that uses a decorator in any
other way (computed arguments, a loop, an alias, a class inside a function) is imported instead.
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
    """Location of a class definition.

    Attributes:
        module: dotted name of the module.
        qualname: qualified name of the class.
        file: source file, if the class was found in the source.
        line: line of its first decorator, if the class was found in the source.
    """

    module: str
    qualname: str
    file: Path | None = field(default=None, compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class DecoratorCall:
    """A decorator such as ``@register_attention("abc", patterns="NS")`` on the class at ``place``."""

    place: Place
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def module_specs(name: str) -> Iterator[ModuleSpec]:
    """Yield the module ``name`` and all its submodules without importing them, packages before their contents.

    Raises:
        ModuleNotFoundError: the module does not exist.
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
    """Return the uses of ``decorator`` in a module; None if they cannot be read from the source.

    Raises:
        SyntaxError: a module that contains the decorator's name has invalid syntax.
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
    """Return the name ``f`` for ``f`` and ``cab.f``."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _literals(call: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call; ValueError if one is not a literal."""
    args = tuple(ast.literal_eval(node) for node in call.args)
    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError("**kwargs are not literal")
        kwargs[keyword.arg] = ast.literal_eval(keyword.value)
    return args, kwargs
