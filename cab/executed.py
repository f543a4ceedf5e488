"""The source of every module of this project, of a plug-in or of a user, as this process executed it.

Importing ``cab`` installs a finder, which compiles these modules from their source and keeps the text. So the text is
that of the program that runs, even if its file is edited afterwards or Python has stale bytecode of it. Installed
libraries, such as torch, are left to Python; a program has the versions of those that foreign modules import.

A foreign module is one of a plug-in or of a user. Its import statements find the modules of its own folder, also if a
file of another folder has imported a module with the same name.
"""

from __future__ import annotations

import builtins
import functools
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any
from zipimport import zipimporter

SOURCES: dict[str, bytes] = {}
"""Source of each executed module, by the path of its file."""
FOREIGN: dict[str, str] = {}
"""Names of the executed foreign modules, by the paths of their files."""
LIBRARIES: set[str] = set()
"""Installed packages that foreign modules import, or that these import in turn."""
IMPORTED_BY: defaultdict[str, dict[str, str]] = defaultdict(dict)
"""Names and files of the modules that were first imported by the code of a file, by its path."""

PROJECT = ("cab", "attentions", "backbones", "tasks", "engines", "cab_fairseq", "hydra_plugins")
"""Packages of this project; other modules whose sources are kept are foreign."""
_STANDARD_LIBRARY = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_is_kept = dict.fromkeys(PROJECT, True)
"""Whether the sources of a package are kept, by its name."""
_owners: dict[str, Path] = {}
"""Folder from which each package of foreign modules in ``sys.modules`` was imported, by its name."""
_python_import = builtins.__import__
_replaced: defaultdict[Path, dict[str, ModuleType]] = defaultdict(dict)
"""Modules of each folder that those of another folder with the same names have replaced in ``sys.modules``."""


def include(package: str) -> None:
    """Keep the sources of an installed package as well, which provides plug-ins."""
    _is_kept[package.partition(".")[0]] = True


def is_library(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    path = Path(file).resolve()
    return not _INSTALLED.isdisjoint(path.parts) or str(path).startswith(_STANDARD_LIBRARY)


def is_foreign(module: str) -> bool:
    """Return whether a module, by its name in a program, belongs to a plug-in or a user."""
    return module.endswith(".py") or module.partition(".")[0] not in PROJECT


def folder_of(module: str, file: Path) -> Path:
    """Return the folder from which a module is imported by its name."""
    return file.parents[module.count(".") + (file.stem == "__init__")]


class KeepingLoader(SourceFileLoader):
    """Loader that compiles a module from its source, never from bytecode, and keeps the source."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        code: CodeType = self.source_to_code(source, path)
        _keep(fullname, path, source)
        return code


def _keep(fullname: str, path: str, source: bytes) -> None:
    """Keep the source of a module, and which module imports it: perhaps by a function of a library."""
    SOURCES[path] = source
    if is_foreign(fullname):
        FOREIGN[path] = fullname
    importer = next((file for file in _files_of_stack() if file in SOURCES), None)
    if importer is not None:
        IMPORTED_BY[importer][fullname] = path


def _files_of_stack() -> Iterator[str]:
    """Yield the files of the modules whose code runs, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_globals.get("__file__") or ""
        frame = frame.f_back


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Execute an import statement; one in a foreign module finds the modules of its own folder before others.

    The only builtin that changes: a module with builtins of its own would not see those that a test replaces.
    """
    file = (globals or {}).get("__file__")
    if file not in FOREIGN:
        return _python_import(name, globals, locals, fromlist, level)
    package = ((globals or {}).get("__package__") or "" if level else name).partition(".")[0]
    folder = _own_folder(FOREIGN[file], file)
    if folder is not None and is_foreign(package):
        _activate(package, folder)
    module = _python_import(name, globals, locals, fromlist, level)
    if is_foreign(package) and package not in sys.stdlib_module_names and not _is_kept.get(package):
        LIBRARIES.add(package)
    return module


@functools.cache
def _own_folder(module: str, file: str) -> Path | None:
    return None if is_library(file) else folder_of(module, Path(file))


def enter(folder: Path) -> None:
    """Let the modules in ``folder`` be found first, instead of those with the same names from other folders."""
    sys.path[:] = [str(folder), *(path for path in sys.path if path != str(folder))]
    for package in [*_owners]:
        _activate(package, folder)


def _activate(package: str, folder: Path) -> None:
    """Let ``package`` be that of ``folder``, if there is one, instead of that of another folder; libraries stay."""
    owner = _owners.get(package)
    if owner == folder or not ((folder / package).is_dir() or (folder / f"{package}.py").is_file()):
        return
    sys.path[:] = [str(folder), *(path for path in sys.path if path != str(folder))]
    if owner is None:
        return
    _replaced[owner] |= {name: sys.modules.pop(name) for name in _modules_in(package, sys.modules)}
    own = {name: _replaced[folder].pop(name) for name in _modules_in(package, _replaced[folder])}
    sys.modules.update(own)
    del _owners[package]  # that of a module that is not loaded yet is known when it is
    _owners.update({package: folder} if own else {})


def _modules_in(package: str, modules: Mapping[str, ModuleType]) -> list[str]:
    return [name for name in modules if name.partition(".")[0] == package]


class _Finder(MetaPathFinder):
    """Finder of the modules that do not belong to a library; the other finders find their files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if _is_kept.get(package) is False:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is None:
            return None
        file = spec.origin if spec.has_location else None
        places = [*filter(None, [file]), *(spec.submodule_search_locations or ())]
        if package not in _is_kept and fullname == package:
            _is_kept[package] = bool(places) and not any(map(is_library, places))
            if not _is_kept[package] and package not in sys.stdlib_module_names and FOREIGN:
                LIBRARIES.update({package} if any(file in FOREIGN for file in _files_of_stack()) else ())
        if not _is_kept.get(package):
            return spec
        if fullname == package and is_foreign(package):
            _owners[package] = folder_of(package, Path(file) if file else Path(places[0], "__init__.py"))
        if type(spec.loader) is SourceFileLoader:
            spec.loader = KeepingLoader(fullname, spec.loader.path)
        elif isinstance(spec.loader, zipimporter) and file:
            _keep(fullname, file, (spec.loader.get_source(fullname) or "").encode())
        elif file:
            _keep(fullname, file, Path(file).read_bytes())
        return spec


def install(importer: str) -> None:
    """Install the finder before all others, once per process, from the file ``importer``.

    That file was executed already. Its source is kept as well, because it imports names on first use, and so
    belongs to the program of the module that uses them first.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        builtins.__import__ = _import
        SOURCES[importer] = Path(importer).read_bytes()
