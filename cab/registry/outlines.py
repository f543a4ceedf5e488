"""What the source of a plug-in shows without importing it: the names that it registers, and outlines of its classes.

An outline has the signature, annotations and docstrings of a class, and does not import torch. It is made by executing
the statement of the class, and those that bind the names which the statement needs. Names of installed packages, such
as ``nn.Module``, are stand-ins.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import cab
from cab.registry.program import packages

IMPORTED = {*sys.stdlib_module_names, "annotated_types"}
"""Packages that are imported; others are stand-ins, and those of plug-ins outlines."""


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


class UnclearError(Exception):
    """What a class needs can only be known by importing its module."""


class StandIn:
    """Stands for anything in an installed package: a module, a base class, a decorator or a constant."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    __getitem__ = __or__ = __ror__ = __call__  # a union with an unknown type accepts every value

    def __mro_entries__(self, _: Any) -> tuple[type]:
        return (StandIn,)

    def __bool__(self) -> bool:
        raise UnclearError("the truth of a stand-in")

    def __str__(self) -> str:
        raise UnclearError("the text of a stand-in")


def outline_of(module: str, qualname: str) -> type | None:
    """Return the outline of a class; None if its source is not sufficient, so that it must be imported."""
    try:
        outline = getattr(_outline(module), qualname)
        defaults = [parameter.default for parameter in inspect.signature(outline).parameters.values()]
        if any("common_options" in vars(cls) for cls in outline.__mro__):  # the entry of an attention calls it
            dict(outline.common_options())
    except Exception:  # of any kind, in the code of a user
        return None
    is_unknown = outline.__init__ is StandIn.__init__ or isinstance(outline.__init__, StandIn)
    is_unknown = is_unknown or any(map(_is_stand_in, defaults))
    return None if is_unknown or not isinstance(outline, type) else outline


def _is_stand_in(value: Any) -> bool:
    """Return whether a default has a stand-in."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return any(map(_is_stand_in, value))
    if isinstance(value, dict):
        return any(map(_is_stand_in, value.items()))
    return issubclass(value if isinstance(value, type) else type(value), StandIn)


class _Outline(ModuleType):
    """Module whose names are evaluated when they are needed."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(f"outline of {spec.name}")
        sys.modules[self.__name__] = self  # where dataclasses look for the names of annotations
        self._package, self._file = spec.parent, Path(spec.origin or "")
        body = _unquoted(ast.parse(self._file.read_bytes())).body
        bound = [(name, statement) for statement in body for name in _bound_names(statement)]
        self._statements = dict(bound)
        imported = {name for name, statement in bound if isinstance(statement, ast.Import)}  # torch, and torch.nn
        counts = Counter(name for name, _ in bound)
        self._unclear = {name for name, count in counts.items() if count > 1 and name not in imported}
        self._unclear.update(*map(_changed_names, body))

    def __getattr__(self, name: str) -> Any:
        if name in vars(self).get("_unclear", ()):
            raise UnclearError(name)
        statement = vars(self).get("_statements", {}).pop(name, None)
        if statement is None:
            raise AttributeError(name)
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            alias = next(alias for alias in statement.names if name in (alias.asname, alias.name.partition(".")[0]))
            setattr(self, name, self._imported(statement, alias))
            return getattr(self, name)
        for needed in _needed_names(statement):
            try:
                getattr(self, needed)
            except UnclearError:
                raise
            except Exception:  # an annotation may have a name for type checkers
                pass
        if isinstance(statement, ast.ClassDef):  # the module itself registers it
            statement.decorator_list = [d for d in statement.decorator_list if "register_" not in ast.unparse(d)]
        code = compile(ast.Module([statement], []), self._file, "exec")  # annotations stay text, as here
        while name not in vars(self):
            try:
                exec(code, vars(self))
            except NameError as error:  # in a function that the statement calls
                _bind(error)
        return getattr(self, name)

    def _imported(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> Any:
        """Return what a statement imports under a name."""
        if isinstance(statement, ast.Import):
            return _module(alias.name if alias.asname else alias.name.partition(".")[0])
        name = importlib.util.resolve_name("." * statement.level + (statement.module or ""), self._package)
        module = _module(cab._EXPORTS.get(alias.name, name) if name == "cab" else name)
        return getattr(module, alias.name) if hasattr(module, alias.name) else _module(f"{name}.{alias.name}")


def _bind(error: NameError) -> None:
    """Bind the name that a function of an outline needs, or raise the error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = sys.modules.get(frame.f_globals["__name__"])
    if not isinstance(module, _Outline) or error.name is None or error.name in vars(module):
        raise error
    getattr(module, error.name)


def _module(name: str) -> Any:
    """Return a module, its outline, or the stand-in."""
    package = name.partition(".")[0]
    if package in packages() and name not in sys.modules:
        return _outline(name)
    return importlib.import_module(name) if package in packages() | IMPORTED else StandIn()


@functools.cache
def _outline(name: str) -> _Outline:
    return _Outline(next(module_specs(name)))


def _unquoted(module: ast.Module) -> ast.Module:
    """Remove the quotes of annotations, which all become text; with the future import, quotes are part of the text."""
    futures = (each for each in module.body if isinstance(each, ast.ImportFrom) and each.module == "__future__")
    if "annotations" in {alias.name for future in futures for alias in future.names}:
        return module
    for node in ast.walk(module):
        if isinstance(node, (ast.arg, ast.AnnAssign)) and isinstance(node.annotation, ast.Constant):
            node.annotation = ast.parse(str(node.annotation.value), mode="eval").body
    return module


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that an import, a definition or an assignment binds."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        yield from (name.id for name in _targets(node) if isinstance(name.ctx, ast.Store))


def _targets(assignment: ast.Assign | ast.AnnAssign) -> Iterator[ast.Name]:
    """Yield the names in the targets of an assignment, also those of which it changes an item or an attribute."""
    targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
    yield from (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def _changed_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module may bind or change in another way than :func:`_bound_names`."""
    if isinstance(statement, ast.If) and not statement.orelse and "TYPE_CHECKING" in ast.unparse(statement.test):
        return
    nodes = list(ast.walk(statement))
    yield from (name for node in nodes if isinstance(node, ast.Global) for name in node.names)
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        nodes = list(_targets(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}.union(*map(_bound_names, nodes))
    yield from names.difference(_bound_names(statement))


def _needed_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that are read when a statement is executed, and those in the annotations of a constructor."""
    parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
        parts = iter([node.args, *node.decorator_list])
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        parts = iter([*defaults, *getattr(node, "decorator_list", ())])
    for part in parts:
        yield from _needed_names(part)
