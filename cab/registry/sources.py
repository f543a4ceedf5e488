"""Read the names that plug-ins register from their source, without importing them."""

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
class Location:
    """Location of a class; with the file, and the line of the first decorator, if it was found in the source."""

    module: str
    qualname: str
    file: Path | None = field(default=None, compare=False)
    line: int = field(default=0, compare=False)


def module_specs(name: str) -> Iterator[ModuleSpec]:
    """Yield the module ``name`` and all its submodules without importing them, packages before their contents."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    waiting = [spec]
    while waiting:
        spec = waiting.pop(0)
        yield spec
        infos = pkgutil.iter_modules(spec.submodule_search_locations or (), f"{spec.name}.")
        waiting += [child for info in infos if (child := info.module_finder.find_spec(info.name, None)) is not None]


def decorator_calls(spec: ModuleSpec, decorator: str) -> list[tuple[Location, list[Any], dict[str, Any]]] | None:
    """Return the classes that ``decorator`` registers in a module, with its arguments; None if a use is not literal."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return [] if spec.loader is None else None  # a folder without __init__.py; a compiled module
    source = Path(spec.origin).read_bytes()
    num_mentions = len(re.findall(rb"\b%s\b" % decorator.encode(), source))
    if not num_mentions:
        return []
    calls = []
    for statement in ast.parse(source, spec.origin).body:
        if isinstance(statement, ast.ImportFrom):
            num_mentions -= sum(alias.name == decorator and alias.asname is None for alias in statement.names)
        if not isinstance(statement, ast.ClassDef):
            continue
        for node in statement.decorator_list:
            if isinstance(node, ast.Call) and decorator in (getattr(node.func, name, "") for name in ("id", "attr")):
                num_mentions -= 1
                location = Location(spec.name, statement.name, Path(spec.origin), statement.decorator_list[0].lineno)
                try:
                    args = [ast.literal_eval(argument) for argument in node.args]
                    calls.append((location, args, {k.arg or "**": ast.literal_eval(k.value) for k in node.keywords}))
                except ValueError:
                    return None
    return None if num_mentions else calls
