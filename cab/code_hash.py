"""What an attention's code is, as a hash: of what its module and the modules behind it say, not of how they say it.

Comments, docstrings and layout do not count, so a reworded sentence invalidates nothing. Modules are found from the
import statements of their text, so nothing is imported.
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
from typing import Any

ATTENTION = "cab.attention"
"""What every attention is made of, with what it imports."""
NOT_COMPUTING = ("cab", "cab.errors", "cab.registry")
"""Modules that give names and messages: what they say changes no output."""


def attention_hash(qualname: str, file: Path, module: str | None) -> str:
    """The hash of the class ``qualname`` in ``file``: that file and what it imports, transitively.

    Modules of `cab`, of packages that hold attentions and of the class's own package count; of a file that belongs to
    no package (``module`` None) those beside it.

    Raises:
        OSError, SyntaxError: a file that cannot be read.
    """
    packages = _attention_packages() | ({module.partition(".")[0]} if module else set())
    files = _closure([file, *_files_of(ATTENTION, packages, None)], packages, None if module else file.parent)
    return _joined([qualname, *(_read(path)[0] for path in files)])


@functools.cache
def _attention_packages() -> frozenset[str]:
    return frozenset({"cab", *(point.module.partition(".")[0] for point in entry_points(group="cab.attentions"))})


@functools.cache
def checks_hash() -> str:
    """The hash of the checks, and of what measures for them."""
    files = sorted((Path(__file__).parent / "verification").glob("*.py"))
    return _joined(_read(path)[0] for path in [*files, *_files_of("cab.memory", frozenset({"cab"}), None)])


def _closure(files: Iterable[Path], packages: frozenset[str], folder: Path | None) -> list[Path]:
    """``files`` and all that they import; the first stays the first, the others are in the order of their digests."""
    found: dict[Path, str] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        found[file], imported = _read(file)
        for name in imported:
            if name not in NOT_COMPUTING:
                waiting += _files_of(name, packages, folder)
    first, *others = found
    return [first, *sorted(others, key=found.__getitem__)]


def _files_of(name: str, packages: frozenset[str], folder: Path | None) -> Iterator[Path]:
    """The file of a module that counts: beside ``folder``'s other files, or below one of ``packages``."""
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


def _read(file: Path) -> tuple[str, tuple[str, ...]]:
    """The digest of what a file says, and the names that it imports."""
    return _parsed(file.read_bytes(), _package_of(file))


def _package_of(file: Path) -> str:
    """The dotted name of the package that ``file`` lies in, which relative imports start from."""
    names = []
    folder = file.parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names))


@functools.cache
def _parsed(source: bytes, package: str) -> tuple[str, tuple[str, ...]]:
    collects = gc.isenabled()
    gc.disable()  # a tree is many objects and no garbage: looking for some takes as long as parsing
    try:
        tree = ast.parse(source)
        names = dict.fromkeys(name for node in ast.walk(tree) for name in _imported(node, package))
        return hashlib.sha256(repr(_said(tree)).encode()).hexdigest(), tuple(names)
    finally:
        if collects:
            gc.enable()


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Modules that a statement may import: ``from a import b`` takes ``a``, and ``a.b`` where that is a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        yield origin
        yield from (f"{origin}.{alias.name}" for alias in node.names)


def _said(part: Any) -> Any:
    """A part of a syntax tree as tuples, the same in every version of Python: no positions, no docstrings."""
    if isinstance(part, list):
        return tuple(_said(item) for item in part if not _is_docstring(item))
    if not isinstance(part, ast.AST):
        return part
    if isinstance(part, ast.JoinedStr):  # Python 3.12 alone sees an empty text at the end of a nested format
        part = ast.JoinedStr([value for value in part.values if getattr(value, "value", None) != ""])
    fields = ((name, getattr(part, name, None)) for name in part._fields if name not in ("ctx", "kind", "type_comment"))
    return type(part).__name__, *((name, _said(value)) for name, value in fields if value is not None and value != [])


def _is_docstring(statement: Any) -> bool:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return False
    return isinstance(statement.value.value, str)


def _joined(parts: Iterable[str]) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
