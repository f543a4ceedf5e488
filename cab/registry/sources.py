"""Read the source of plug-ins without importing them: the names that they register, and the hash of their code.

The hash of an attention covers its file and, transitively, the files that it imports.

Comments, docstrings, layout, import statements and module names are ignored, so rewording a docstring or moving a file
does not change a hash; neither does the Python version. Imports are read from the source; nothing is imported. A
process reads a file once, so a hash is that of the code which the process executes even if the file changes later.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import pkgutil
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

BASE_CLASS = "cab.attention"
"""Module of the base class of attentions."""
NOT_COMPUTING = ("cab", "cab.errors", "cab.registry.registries")
"""Modules that are excluded: they only provide names and messages."""
_IGNORED_FIELDS = ("ctx", "kind", "type_comment")
STANDALONE: dict[str, Path] = {}
"""Imported modules that do not belong to a package, with their files."""


class Import(NamedTuple):
    """One name that a file imports: the absolute module, the name in it (empty for the module), the bound name."""

    module: str
    name: str
    bound: str


class Source(NamedTuple):
    """Content of a file: the digest of everything except import statements, and the imported names."""

    digest: str
    imports: tuple[Import, ...]


def attention_hash(qualname: str, file: Path, module: str | None) -> str:
    """Return the hash of a class: of its file and, transitively, of the files that it imports.

    Imports from `cab`, from packages that provide attentions and from the class's own package are included. ``module``
    is None for a file outside a package, which can import from its folder.
    """
    packages, folder = _scope(file, module)
    digest, *others = (_digest(path, packages, folder) for path in source_files(file, module))
    return _joined([qualname, digest, *sorted(others)])


def source_files(file: Path, module: str | None) -> list[Path]:
    """Return the files whose code is hashed, see :func:`attention_hash`; each is read now, if it was not before."""
    packages, folder = _scope(file, module)
    files = [file, *filter(None, [_file_of(BASE_CLASS, packages, None)])]
    for path in files:  # grows
        files += [p for item in read(path).imports for p in _targets(item, packages, folder) if p not in files]
    return list(dict.fromkeys(files))


def _scope(file: Path, module: str | None) -> tuple[frozenset[str], Path | None]:
    """Return the packages, and the folder, whose modules are included."""
    packages = _attention_packages()
    return (packages | {module.partition(".")[0]}, None) if module else (packages, file.parent)


@functools.cache
def checks_hash() -> str:
    """Return the hash of the checks."""
    return _joined(sorted(read(path).digest for path in (Path(__file__).parents[1] / "verification").glob("*.py")))


@functools.cache
def _attention_packages() -> frozenset[str]:
    return frozenset({"cab", *(point.module.partition(".")[0] for point in entry_points(group="cab.attentions"))})


def _digest(file: Path, packages: frozenset[str], folder: Path | None) -> str:
    """Return the digest of a file and its imports, which are identified by the content of the imported file."""
    source = read(file)
    imports = []
    for module, name, bound in source.imports:
        if module not in NOT_COMPUTING:
            submodule = _file_of(f"{module}.{name}", packages, folder) if name else None
            origin = submodule or _file_of(module, packages, folder)
            imports.append(("" if submodule else name, bound, read(origin).digest if origin else module))
    return _joined([source.digest, *map(repr, sorted(imports))])


def _targets(item: Import, packages: frozenset[str], folder: Path | None) -> Iterator[Path]:
    """Yield the files of ``from module import name``: of ``module``, and of ``module.name`` if it is a module."""
    for name in (item.module, f"{item.module}.{item.name}" if item.name else ""):
        if name and name not in NOT_COMPUTING and (path := _file_of(name, packages, folder)):
            yield path


@functools.cache
def _file_of(name: str, packages: frozenset[str], folder: Path | None) -> Path | None:
    """Return the file of a module, if it is in ``folder`` or in one of ``packages``."""
    top, *names = name.split(".")
    roots = [] if folder is None else [folder / top]
    if top in packages and (spec := importlib.util.find_spec(top)):
        roots += map(Path, spec.submodule_search_locations or ())
    paths = [root.joinpath(*names) for root in roots]
    candidates = [path for p in paths for path in (p.parent / f"{p.name}.py", p / "__init__.py")]
    return next((path for path in candidates if path.is_file()), None)


def module_of(file: Path) -> str:
    """Return the name of the module of a file in one of the packages of attentions; empty for any other file."""
    for package in sorted(_attention_packages()):
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            if file.is_relative_to(folder.resolve()):
                names = file.relative_to(folder.resolve()).with_suffix("").parts
                return ".".join([package, *names]).removesuffix(".__init__")
    return ""


@functools.cache
def read(file: Path) -> Source:
    """Read a file, once per process."""
    return _parsed(file.read_bytes(), _package_of(file))


def _package_of(file: Path) -> str:
    """Return the dotted name of the package that contains ``file``, for relative imports."""
    names: deque[str] = deque()
    for folder in file.parents:
        if not (folder / "__init__.py").is_file():
            break
        names.appendleft(folder.name)
    return ".".join(names)


def _parsed(source: bytes, package: str) -> Source:
    tokens, imports = _flat(ast.parse(source))
    digest = hashlib.sha256("\n".join(tokens).encode()).hexdigest()
    return Source(digest, tuple(dict.fromkeys(item for node in imports for item in _imported(node, package))))


def _flat(tree: ast.Module) -> tuple[list[str], list[ast.Import | ast.ImportFrom]]:
    """Return a syntax tree as text, without what a hash ignores, and its import statements."""
    tokens: list[str] = []
    imports: list[ast.Import | ast.ImportFrom] = []

    def visit(item: Any) -> None:
        if isinstance(item, list):
            tokens.append("[")
            for inner in item:
                visit(inner)
            tokens.append("]")
        elif not isinstance(item, ast.AST):
            tokens.append(repr(item))
        elif isinstance(item, ast.Import | ast.ImportFrom):
            imports.append(item)
        elif not (isinstance(item, ast.Expr) and isinstance(getattr(item.value, "value", None), str)):  # a docstring
            if isinstance(item, ast.JoinedStr):  # only Python 3.12 has an empty string at the end of a nested format
                item.values = [value for value in item.values if getattr(value, "value", None) != ""]
            tokens.append(f"({type(item).__name__}")
            for name in reversed(item._fields):
                value = getattr(item, name, None)
                if value is not None and value != [] and name not in _IGNORED_FIELDS:  # others have empty type_params
                    tokens.append(name)
                    visit(value)
            tokens.append(")")

    visit(tree)
    return tokens, imports


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, "", alias.asname or alias.name)
        return
    parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    origin = ".".join([*parents, *([node.module] if node.module else [])])
    for alias in node.names:
        yield Import(origin, alias.name, alias.asname or alias.name)


def _joined(parts: Iterable[str]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the joined parts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


# --- registered names ---


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
