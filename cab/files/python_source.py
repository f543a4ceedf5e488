"""Digests of Python sources, which ignore comments, layout and docstrings, and the modules that a source can import.

A digest does not depend on the version of Python. Docstrings count in a source that reads docstrings or source text.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_IGNORED_FIELDS = ("ctx", "kind", "type_comment")
_READS_TEXT = (b"__doc__", b"getdoc", b"getsource")


class Source(NamedTuple):
    """The digest of a source text, and the names of the modules that it can import."""

    digest: str
    imports: tuple[str, ...]


def digest_of(content: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()[:16]


@functools.cache
def source_of(file: Path, content: bytes) -> Source:
    """Return the source of a file with a content, from the cache if the content was parsed before, by any process."""
    if file.suffix != ".py":
        return Source(digest_of(content), ())
    package = package_of(file)
    key = digest_of(content + package.encode())
    known = _cached()
    if key not in known:
        known[key] = _parsed(content, package)
        with contextlib.suppress(OSError):  # a cache that cannot be written
            path = _cache_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([key, *known[key]]) + "\n")
    return known[key]


@functools.cache
def _cached() -> dict[str, Source]:
    """Return the sources in the cache by the digest of their content; a damaged line is left out."""
    known = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in _cache_file().read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                key, digest, imports = json.loads(line)
                known[key] = Source(digest, tuple(imports))
    return known


def _cache_file() -> Path:
    """Return the file of the cache, which has another name after a change of this module."""
    from cab.files.cache import cache_root  # imports packages

    return cache_root() / f"sources-{digest_of(Path(__file__).read_bytes())}.jsonl"


def package_of(file: Path) -> str:
    """Return the dotted name of the package that contains ``file``, for relative imports."""
    names = []
    for folder in file.parents:
        if not (folder / "__init__.py").is_file():
            break
        names.append(folder.name)
    return ".".join(reversed(names))


def _parsed(content: bytes, package: str) -> Source:
    tree = ast.parse(content)
    tokens = _tokens(tree, keeps_docstrings=any(word in content for word in _READS_TEXT))
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    imports = dict.fromkeys(name for node in nodes for name in _imported(node, package))
    return Source(hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16], tuple(imports))


def _tokens(tree: ast.Module, *, keeps_docstrings: bool) -> list[str]:
    """Return a syntax tree as text, without what a digest ignores."""
    tokens: list[str] = []
    waiting: list[Any] = [tree]
    while waiting:  # not recursive: generated code nests deeper than Python's limit
        item = waiting.pop()
        if isinstance(item, list):
            waiting += [_Mark("]"), *reversed(item), _Mark("[")]
        elif not isinstance(item, ast.AST):
            tokens.append(str(item) if type(item) is _Mark else repr(item))
        elif keeps_docstrings or not _is_docstring(item):
            if isinstance(item, ast.JoinedStr):  # only Python 3.12 has an empty string at the end of a nested format
                item.values = [value for value in item.values if getattr(value, "value", None) != ""]
            tokens.append(f"({type(item).__name__}")
            waiting.append(_Mark(")"))
            for name in item._fields:
                value = getattr(item, name, None)
                if value is not None and value != [] and name not in _IGNORED_FIELDS:  # others have empty type_params
                    waiting += [value, _Mark(name)]
    return tokens


class _Mark(str):
    """Part of a syntax tree's text that is not a value."""

    __slots__ = ()


def _is_docstring(item: ast.AST) -> bool:
    return isinstance(item, ast.Expr) and isinstance(getattr(item.value, "value", None), str)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield the modules that a statement can import, with the packages that contain them."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        origin = ".".join([*parents, *([node.module] if node.module else [])])
        names = [f"{origin}.{name}" for name in names]
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))
