"""Hash the code of an attention: what its module and the modules that it imports compute, not how they are written.

Comments, docstrings, layout and the names of modules do not count, so a rewritten sentence or a moved file leaves every
hash as it was. Modules are found by reading import statements; nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

ATTENTION = "cab.attention"
"""The base class of every attention."""
NOT_COMPUTING = ("cab", "cab.errors", "cab.registry.registries")
"""Modules that provide names and messages only; their content never changes an output."""


class Import(NamedTuple):
    """One name that a file imports.

    Attributes:
        module: dotted name of the module, absolute.
        name: what is taken from it; empty for the module itself.
        bound: the name in the importing file.
    """

    module: str
    name: str
    bound: str


class Source(NamedTuple):
    """The content of a file: the digest of everything but its import statements, and its imports."""

    digest: str
    imports: tuple[Import, ...]


def attention_hash(qualname: str, file: Path, module: str | None) -> str:
    """Return the hash of the class ``qualname`` in ``file``: that file and everything it imports, transitively.

    Modules of `cab`, of packages that provide attentions, and of the class's own package count; for a file outside any
    package (``module`` None), so do the files in its folder.

    Raises:
        OSError, SyntaxError: if a file cannot be read.
    """
    packages = _attention_packages() | ({module.partition(".")[0]} if module else set())
    folder = None if module else file.parent
    files = _closure([file, *_files_of(ATTENTION, packages, None)], packages, folder)
    first, *others = (_digest(path, packages, folder) for path in files)
    return _joined([qualname, first, *sorted(others)])


@functools.cache
def _attention_packages() -> frozenset[str]:
    return frozenset({"cab", *(point.module.partition(".")[0] for point in entry_points(group="cab.attentions"))})


@functools.cache
def checks_hash() -> str:
    """Return the hash of the checks."""
    files = (Path(__file__).parents[1] / "verification").glob("*.py")
    return _joined(sorted(_read(path).digest for path in files))


def _closure(files: Iterable[Path], packages: frozenset[str], folder: Path | None) -> list[Path]:
    """``files`` and every file that they import, transitively; the first stays first."""
    found: dict[Path, None] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop(0)
        if file not in found:
            found[file] = None
            waiting += [path for item in _read(file).imports for path in _targets(item, packages, folder)]
    return list(found)


def _digest(file: Path, packages: frozenset[str], folder: Path | None) -> str:
    """The digest of a file with its imports: each names the content that it is taken from, wherever that is stored."""
    source = _read(file)
    imports = []
    for module, name, bound in source.imports:
        if module in NOT_COMPUTING:
            continue
        whole = next(_files_of(f"{module}.{name}", packages, folder), None) if name else None
        origin = whole or next(_files_of(module, packages, folder), None)
        imports.append(("" if whole else name, bound, _read(origin).digest if origin else module))
    return _joined([source.digest, *map(repr, sorted(imports))])


def _targets(item: Import, packages: frozenset[str], folder: Path | None) -> Iterator[Path]:
    """The files behind ``from module import name``: those of ``module``, and of ``module.name`` if it is a module."""
    for name in (item.module, f"{item.module}.{item.name}" if item.name else ""):
        if name and name not in NOT_COMPUTING:
            yield from _files_of(name, packages, folder)


def _files_of(name: str, packages: frozenset[str], folder: Path | None) -> Iterator[Path]:
    """The file of a module that counts: one in ``folder``, or one of ``packages``."""
    top, *below = name.split(".")
    places = [] if folder is None else [folder.joinpath(top, *below)]
    if top in packages:
        origin, locations = _place_of(top)
        if not below and origin:
            yield Path(origin)
            return
        places += [Path(location, *below) for location in locations]
    for place in places:
        for path in (place.parent / f"{place.name}.py", place / "__init__.py"):
            if path.is_file():
                yield path
                return


@functools.cache
def _place_of(top: str) -> tuple[str | None, tuple[str, ...]]:
    """The file and the folders of a package."""
    spec = importlib.util.find_spec(top)
    return (spec.origin, tuple(spec.submodule_search_locations or ())) if spec else (None, ())


def _read(file: Path) -> Source:
    return _parsed(file.read_bytes(), _package_of(file))


def _package_of(file: Path) -> str:
    """The dotted name of the package that contains ``file``, from which relative imports start."""
    names = []
    folder = file.parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names))


@functools.cache
def _parsed(source: bytes, package: str) -> Source:
    collects = gc.isenabled()
    gc.disable()  # the tree is many objects and no garbage: collecting takes as long as parsing
    try:
        tree = ast.parse(source)
        imports = dict.fromkeys(item for node in ast.walk(tree) for item in _imported(node, package))
        return Source(hashlib.sha256(repr(_content(tree)).encode()).hexdigest(), tuple(imports))
    finally:
        if collects:
            gc.enable()


def _imported(node: ast.AST, package: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, "", alias.asname or alias.name)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield Import(origin, alias.name, alias.asname or alias.name)


def _content(part: Any) -> Any:
    """A part of a syntax tree as tuples, equal in every version of Python: no positions, docstrings or imports."""
    if isinstance(part, list):
        return tuple(_content(item) for item in part if not _is_ignored(item))
    if not isinstance(part, ast.AST):
        return part
    if isinstance(part, ast.JoinedStr):  # Python 3.12 alone has an empty text at the end of a nested format
        part = ast.JoinedStr([value for value in part.values if getattr(value, "value", None) != ""])
    fields = ((name, getattr(part, name, None)) for name in part._fields if name not in ("ctx", "kind", "type_comment"))
    return type(part).__name__, *(
        (name, _content(value)) for name, value in fields if value is not None and value != []
    )


def _is_ignored(item: Any) -> bool:
    """Whether a statement is a docstring or an import."""
    if isinstance(item, ast.Import | ast.ImportFrom):
        return True
    is_text = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
    return is_text and isinstance(item.value.value, str)


def _joined(parts: Iterable[str]) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
