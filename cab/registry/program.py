"""The program of a run: the modules that can change its score, each with a digest of the source that was executed.

A program has all modules that its classes import from plug-ins and users' files, and of ``cab`` those at its root, the
contract, and those in ``cab.runner``; every other package of ``cab`` names, checks, stores or shows what these compute.

A digest ignores comments, layout and docstrings (unless the module reads docstrings or source text), and does not
depend on the version of Python. A program starts at the classes of a run and follows import statements, and the imports
that were made while a module was running, also from archives or while training. It cannot see data files, environment
variables, ``sys.argv``, text that is passed to ``exec``, files that ``runpy.run_path`` or ``spec_from_file_location``
loads, installed libraries, ``sitecustomize``, or docstrings that another module reads: a class names the files and
variables that it reads in ``reads``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from cab.executed import IMPORTED_BY, SOURCES, is_library
from cab.files.python_source import Source, digest_of, source_of

CAB = Path(__file__).resolve().parents[1]
STANDALONE: dict[str, Path] = {}
"""Imported modules that do not belong to a package, with their files."""
_LIBRARIES = set(sys.stdlib_module_names)
"""Packages that do not belong to a program: those of Python, and installed ones that were executed."""
UNKNOWN = ""
"""Digest of a module without a file, as in an interactive session; it is equal to no other."""


def modules_of(
    roots: Iterable[type | str], *, is_running: bool = False, follows_packages: bool = True
) -> dict[str, str]:
    """Return the digest of each module that classes, or modules by name, consist of, by its name.

    A class in ``parts`` of another one belongs to it. The name of a module outside packages is that of its file.

    Args:
        is_running: follow only modules that this process has executed.
        follows_packages: follow the imports of modules in packages; otherwise, only those of users' files.
    """
    digests: dict[str, str] = {}
    waiting: list[tuple[str, Path | None, Path | None]] = []
    roots = [each for root in roots for each in (root, *getattr(root, "parts", {}).values())]
    for root in roots:
        module = root if isinstance(root, str) else root.__module__
        file = STANDALONE.get(module) or _file_of_executed(module) or _found(module, None)
        waiting.append((module, file, file.parent if file is not None and module in STANDALONE else None))
        if not isinstance(root, str):
            digests |= _declared(root, file)
    seen: set[Path] = set()
    while waiting:
        module, file, folder = waiting.pop()
        if file is None:
            digests[module] = UNKNOWN
        elif file not in seen:
            seen.add(file)
            source = read(file)
            is_packaged = module.partition(".")[0] in packages()
            name = module if is_packaged else file.name
            digests[name] = source.digest if name not in digests else joined([digests[name], source.digest])
            if is_packaged and not follows_packages:
                continue
            for other, path in _imported_modules(file, source, folder):
                if path is not None and (not is_running or str(path) in SOURCES or _file_of_executed(other) == path):
                    waiting.append((other, path, folder))
    return digests


def digest_now(name: str) -> str | None:
    """Return the digest of a module by its name in a program, executed or not; None if its file is not found."""
    is_ours = name.partition(".")[0] in packages()
    files = [_found(name, None)] if is_ours else [path.parent / name for path in STANDALONE.values()]
    file = next((file for file in files if file is not None and file.is_file()), None)
    return None if file is None else read(file).digest


@functools.cache
def can_change_score(module: str) -> bool:
    """Return whether a module belongs to a program: of ``cab``, one at its root or in ``cab.runner``."""
    package, _, name = module.removeprefix("cab.").rpartition(".")
    return not is_of_cab(module) or package == "runner" or (not package and (CAB / f"{name}.py").is_file())


def is_of_cab(module: str) -> bool:
    """Return whether a module belongs to ``cab``: to the project, and not to an attention that is built on it."""
    return module.partition(".")[0] == "cab"


def code_of(cls: type) -> str:
    """Return the digest of the modules of plug-ins and users that a class consists of; empty if one is unknown."""
    return _codes_of(cls, len(SOURCES))[0]


def contract_of(cls: type) -> str:
    """Return the digest of the modules of ``cab`` that a class is built on."""
    return _codes_of(cls, len(SOURCES))[1]


@functools.lru_cache(maxsize=1024)
def _codes_of(cls: type, _: int) -> tuple[str, str]:
    bases = {base.__module__ for base in cls.__mro__ if is_of_cab(base.__module__)}
    modules = modules_of([cls, *sorted(bases)])
    contract = {name: digest for name, digest in modules.items() if is_of_cab(name)}
    code = "" if UNKNOWN in modules.values() else code_of_modules(cls.__qualname__, modules)
    return code, joined(map(repr, sorted(contract.items())))


def code_of_modules(qualname: str, modules: Mapping[str, str]) -> str:
    """Return the digest of a class from those of its modules, without those of ``cab``."""
    own = ((name, digest) for name, digest in modules.items() if not is_of_cab(name))
    return joined([qualname, *map(repr, sorted(own))])


def code_of_location(module: str, qualname: str) -> str:
    """Return :func:`code_of` of a class in an installed package, without importing it."""
    return code_of(type(qualname.rpartition(".")[2], (), {"__module__": module, "__qualname__": qualname}))


def joined(parts: Iterable[str]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of the joined parts."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _declared(cls: type, file: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the digests of what a class declares in ``reads``: files next to its own, and ``$VARIABLES``."""
    for name in getattr(cls, "reads", ()):
        if name.startswith("$"):
            content = os.environ.get(name[1:], "").encode()
        else:
            content = (file.parent if file else Path()).joinpath(name).read_bytes()
        yield f"{cls.__qualname__} reads {name}", digest_of(content)


# --- files of modules ---


def _file_of_executed(module: str) -> Path | None:
    """Return the file of an imported module."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if file else None


def _found(module: str, folder: Path | None) -> Path | None:
    """Return the file of a module in ``folder``, of an executed one, or of one in this project or a plug-in."""
    top, *names = module.split(".")
    if folder is not None and (path := _module_file((folder / top).joinpath(*names))):
        return path
    if top in packages():
        return _file_of_executed(module) or _installed(module)
    file = _file_of_executed(module)
    if file is None or not _in_library(str(file)):
        return file
    _LIBRARIES.update([top] if module == top else [])
    return None


@functools.cache
def _installed(module: str) -> Path | None:
    """Return the file of a module of this project or a plug-in, without importing it."""
    top, *names = module.split(".")
    spec = importlib.util.find_spec(top)
    roots = map(Path, spec.submodule_search_locations or ()) if spec else ()
    return next(filter(None, (_module_file(root.joinpath(*names)) for root in roots)), None)


def _module_file(path: Path) -> Path | None:
    """Return the file of the module or package at ``path``, without suffix."""
    return next((p for p in (path.parent / f"{path.name}.py", path / "__init__.py") if p.is_file()), None)


_in_library = functools.cache(is_library)


@functools.cache
def packages() -> frozenset[str]:
    """Return the packages of this project and those that provide plug-ins."""
    groups = (f"cab.{kind}" for kind in ("attentions", "backbones", "tasks", "engines"))
    return frozenset(
        {"cab", *(point.module.partition(".")[0] for group in groups for point in entry_points(group=group))}
    )


def module_of(file: Path) -> str:
    """Return the name of the module of a file in this project or a plug-in; empty for any other file."""
    for package in sorted(packages()):
        spec = importlib.util.find_spec(package)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            if file.is_relative_to(folder.resolve()):
                names = file.relative_to(folder.resolve()).with_suffix("").parts
                return ".".join([package, *names]).removesuffix(".__init__")
    return ""


# --- sources ---


def read(file: Path) -> Source:
    """Read the source of a module as it was executed, or else as it is now."""
    content = SOURCES.get(str(file))
    return source_of(file, _content_now(file) if content is None else content)


@functools.cache
def _content_now(file: Path) -> bytes:
    return file.read_bytes()


def _imported_modules(file: Path, source: Source, folder: Path | None) -> list[tuple[str, Path | None]]:
    """Return the modules that a file can import, and their files."""
    found: list[tuple[str, Path | None]] = []
    for name in source.imports:
        is_library = folder is None and name.partition(".")[0] in _LIBRARIES
        if not is_library and can_change_score(name):
            found.append((name, _found(name, folder)))
    dynamic = sorted(IMPORTED_BY.get(str(file), {}).items())
    return [*found, *((name, Path(path)) for name, path in dynamic if can_change_score(name))]
