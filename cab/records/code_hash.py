"""Hash the code of an attention: its module and the modules that it imports.

Comments, docstrings, layout and module names are ignored, so rewording a docstring or moving a file does not change a
hash. Modules are found by reading import statements; nothing is imported.
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
"""Module of the base class of attentions."""
NOT_COMPUTING = ("cab", "cab.errors", "cab.registry.registries")
"""Modules that are excluded: they only provide names and messages."""


class Import(NamedTuple):
    """One name that a file imports.

    Attributes:
        module: absolute dotted name of the module.
        name: imported name; empty for the module itself.
        bound: name in the importing file.
    """

    module: str
    name: str
    bound: str


class Source(NamedTuple):
    """Content of a file.

    Attributes:
        digest: digest of everything except import statements.
        imports: imported names.
    """

    digest: str
    imports: tuple[Import, ...]


def attention_hash(qualname: str, file: Path, module: str | None) -> str:
    """Return the hash of a class: of its file and, transitively, of the files that it imports.

    Imports from `cab`, from packages that provide attentions and from the class's own package are included.

    Args:
        qualname: qualified name of the class.
        file: file that defines it.
        module: name of its module; None for a file outside a package, which can import from its folder.

    Raises:
        OSError: a file cannot be read.
        SyntaxError: a file is not valid Python.
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
    """Return ``files`` and all files that they import, transitively, in order of discovery."""
    found: dict[Path, None] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop(0)
        if file not in found:
            found[file] = None
            waiting += [path for item in _read(file).imports for path in _targets(item, packages, folder)]
    return list(found)


def _digest(file: Path, packages: frozenset[str], folder: Path | None) -> str:
    """Return the digest of a file and its imports, which are identified by the content of the imported file."""
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
    """Yield the files of ``from module import name``: of ``module``, and of ``module.name`` if it is a module."""
    for name in (item.module, f"{item.module}.{item.name}" if item.name else ""):
        if name and name not in NOT_COMPUTING:
            yield from _files_of(name, packages, folder)


def _files_of(name: str, packages: frozenset[str], folder: Path | None) -> Iterator[Path]:
    """Yield the file of a module, if it is in ``folder`` or in one of ``packages``."""
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
    """Return the file and the folders of a package."""
    spec = importlib.util.find_spec(top)
    return (spec.origin, tuple(spec.submodule_search_locations or ())) if spec else (None, ())


def _read(file: Path) -> Source:
    return _parsed(file.read_bytes(), _package_of(file))


def _package_of(file: Path) -> str:
    """Return the dotted name of the package that contains ``file``, for relative imports."""
    names = []
    folder = file.parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names))


@functools.cache
def _parsed(source: bytes, package: str) -> Source:
    collects = gc.isenabled()
    gc.disable()  # collection takes as long as parsing, and the tree has no garbage
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
    """Return a syntax tree as tuples that do not depend on the Python version, positions, docstrings and imports."""
    if isinstance(part, list):
        return tuple(_content(item) for item in part if not _is_ignored(item))
    if not isinstance(part, ast.AST):
        return part
    if isinstance(part, ast.JoinedStr):  # only Python 3.12 has an empty string at the end of a nested format
        part = ast.JoinedStr([value for value in part.values if getattr(value, "value", None) != ""])
    fields = ((name, getattr(part, name, None)) for name in part._fields if name not in ("ctx", "kind", "type_comment"))
    return type(part).__name__, *(
        (name, _content(value)) for name, value in fields if value is not None and value != []
    )


def _is_ignored(item: Any) -> bool:
    """Return whether a statement is a docstring or an import."""
    if isinstance(item, ast.Import | ast.ImportFrom):
        return True
    is_text = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
    return is_text and isinstance(item.value.value, str)


def _joined(parts: Iterable[str]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the joined parts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
