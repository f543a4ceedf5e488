"""The program of a run: the modules that can change its score, each with a digest of the source that was executed.

A program has all modules that its classes import from plug-ins and users' files, every other foreign module that the
process has executed, since it could have changed these, and the versions of the libraries that foreign modules import.
Of ``cab``, it has the modules at the root, the contract, and those in ``cab.runner``; every other package of ``cab``
names, checks, stores or shows what these compute.

A digest ignores comments, layout and docstrings (unless the module reads docstrings or source text), and does not
depend on the version of Python. A program starts at the classes of a run and follows import statements, and the imports
that were made while a module was running, also from archives or while training. It cannot see data files, environment
variables, ``sys.argv``, text that is passed to ``exec``, files that ``runpy.run_path`` or ``spec_from_file_location``
loads, ``sitecustomize``, or docstrings that another module reads: a class names the files and variables that it reads
in ``reads``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from pathlib import Path

from cab.errors import UserError
from cab.executed import FOREIGN, IMPORTED_BY, LIBRARIES, SOURCES, folder_of, is_foreign as is_foreign, is_library
from cab.files.python_source import Source, digest_of, source_of

CAB = Path(__file__).resolve().parents[1]
STANDALONE: dict[str, Path] = {}
"""Imported modules that do not belong to a package, with their files."""
_LIBRARIES = set(sys.stdlib_module_names)
"""Packages that do not belong to a program: those of Python, and installed ones that were executed."""
LIBRARY = "library "
"""Prefix of the name of an installed distribution in a program, whose digest is its version."""
UNKNOWN = ""
"""Digest of a module without a file, as in an interactive session; it is equal to no other."""


def modules_of(
    roots: Iterable[type | str | Path], *, is_running: bool = False, follows_packages: bool = True
) -> dict[str, str]:
    """Return the digest of each module that classes, or modules by name or file, consist of, by its name.

    A class in ``parts`` of another one belongs to it. The name of a module outside packages is that of its file, from
    the folder in which it is found.

    Args:
        is_running: follow only modules that this process has executed.
        follows_packages: follow the imports of modules in packages; otherwise, only those of users' files.

    Raises:
        UserError: a file imports a module of its folder, but Python has another one with this name.
    """
    digests: dict[str, str] = {}
    waiting: list[tuple[str, Path | None]] = []
    for root in roots:
        if isinstance(root, Path):
            waiting.append((FOREIGN[str(root)], root))
        elif isinstance(root, str):
            waiting.append((root, _file_of_executed(root) or _found(root, None)))
        else:
            for cls in (root, *getattr(root, "parts", {}).values()):
                waiting.append((cls.__module__, _file_of_class(cls)))
                digests |= _declared(cls)
    seen: set[Path] = set()
    while waiting:
        module, file = waiting.pop()
        if file is None:
            digests[module] = UNKNOWN
        elif file not in seen:
            seen.add(file)
            source = read(file)
            is_packaged = module.partition(".")[0] in packages()
            folder = None if is_packaged else folder_of(module, file)
            name = module if folder is None else str(file.relative_to(folder))
            digests[name] = source.digest if name not in digests else joined([digests[name], source.digest])
            if is_packaged and not follows_packages:
                continue
            for other, path in _imported_modules(file, source, folder):
                if path is not None and (not is_running or str(path) in SOURCES or _file_of_executed(other) == path):
                    waiting.append((other, path))
    return digests


def foreign_files() -> list[Path]:
    """Return the files of the foreign modules that this process has executed."""
    return list(map(Path, FOREIGN))


def libraries() -> dict[str, str]:
    """Return the version of each distribution that foreign modules have imported, by its name in a program.

    Of a package without a distribution, it is the digest of its file.
    """
    return {f"{LIBRARY}{name}": found for package in sorted(LIBRARIES) for name, found in _versions_of(package)}


@functools.cache
def _versions_of(package: str) -> list[tuple[str, str]]:
    """Return the distributions that an imported package belongs to, with their versions."""
    if (found := _version_of(package)) is not None:
        return [(package, found)]
    if names := packages_distributions().get(package):  # reads the lists of files of all distributions
        return [(name, version(name)) for name in sorted({*names})]
    return [(package, digest)] if (digest := _digest_of_library(package)) else []


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _digest_of_library(package: str) -> str | None:
    """Return the digest of the file of an installed package, which does not import it."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    return digest_of(Path(spec.origin).read_bytes()) if spec and spec.has_location and spec.origin else None


def digest_now(name: str) -> str | None:
    """Return the digest of a module by its name in a program, executed or not; None if its file is not found."""
    if name.startswith(LIBRARY):
        return _version_of(name.removeprefix(LIBRARY)) or _digest_of_library(name.removeprefix(LIBRARY))
    is_ours = name.partition(".")[0] in packages()
    folders = [*(str(path.parent) for path in STANDALONE.values()), *sys.path]
    files = [_found(name, None)] if is_ours else [Path(folder, name) for folder in folders]
    file = next((file for file in files if file is not None and file.is_file()), None)
    return None if file is None else read(file).digest


@functools.cache
def can_change_score(module: str) -> bool:
    """Return whether a module belongs to a program: of ``cab``, one at its root or in ``cab.runner``."""
    package, _, name = module.removeprefix("cab.").rpartition(".")
    return not is_of_cab(module) or package == "runner" or (not package and (CAB / f"{name}.py").is_file())


def is_of_cab(module: str) -> bool:
    """Return whether a module belongs to ``cab``: to the project, and not to an attention that is built on it."""
    return module.partition(".")[0] == "cab" and not module.endswith(".py")


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


def _declared(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the digests of what a class and its bases declare in ``reads``: files in their folders, ``$VARIABLES``."""
    for base in cls.__mro__:
        for name in vars(base).get("reads", ()):
            if name.startswith("$"):
                content = os.environ.get(name[1:], "").encode()
            else:
                file = _file_of_class(base)
                content = (file.parent if file else Path()).joinpath(name).read_bytes()
            yield f"{base.__qualname__} reads {name}", digest_of(content)


# --- files of modules ---


def _file_of_executed(module: str) -> Path | None:
    """Return the file of an imported module."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if file else None


def _file_of_class(cls: type) -> Path | None:
    """Return the file of the module of a class; several executed modules can have its name."""
    module = cls.__module__
    files = [path for path, name in FOREIGN.items() if name == module]
    if len(files) > 1:
        codes = (getattr(member, "__code__", None) for member in vars(cls).values())
        defined = {code.co_filename for code in codes if code is not None}
        files = [path for path in files if path in defined][:1]
        if files:
            return Path(files[0])
    return _file_of_executed(module) or _found(module, None)


def _found(module: str, folder: Path | None) -> Path | None:
    """Return the file of a module in ``folder``, of an executed one, or of one in this project or a plug-in.

    As in Python, a module that is loaded already comes first if its name is that of a standard one.
    """
    top, *names = module.split(".")
    if top in packages():
        return _file_of_executed(module) or _installed(module)
    file = _file_of_executed(module)
    path = None if folder is None else _module_file((folder / top).joinpath(*names))
    is_other = module in sys.modules and (file is None or _in_library(str(file)))
    if path is not None and (not is_other or str(path) in SOURCES):
        return path
    if path is not None and top not in sys.stdlib_module_names:
        raise UserError(f"{path} is not used, because Python has loaded {file} as {module}: rename it")
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


@functools.cache
def engine_module(name: str) -> str:
    """Return the module of an engine."""
    return next((point.module for point in entry_points(group="cab.engines") if point.name == name), "")


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
        in_library = folder is None and name.partition(".")[0] in _LIBRARIES
        if not in_library and can_change_score(name):
            found.append((name, _found(name, folder)))
    dynamic = sorted(IMPORTED_BY.get(str(file), {}).items())
    return [*found, *((name, Path(path)) for name, path in dynamic if can_change_score(name))]
