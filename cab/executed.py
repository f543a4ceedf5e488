"""The source of every module of this project, of a plug-in or of a user, as this process executed it.

Importing ``cab`` installs a finder, which compiles these modules from their source and keeps the text. So the text is
that of the program that runs, even if its file is edited afterwards or Python has stale bytecode of it. Installed
libraries, such as torch, are left to Python; the versions of a record name them.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import defaultdict
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from zipimport import zipimporter

SOURCES: dict[str, bytes] = {}
"""Source of each executed module, by the path of its file."""
IMPORTED_BY: defaultdict[str, dict[str, str]] = defaultdict(dict)
"""Names and files of the modules that were first imported by the code of a file, by its path."""

_STANDARD_LIBRARY = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_is_project = dict.fromkeys(("cab", "attentions", "backbones", "tasks", "engines", "cab_fairseq"), True)
"""Whether the sources of a package are kept, by its name."""


def include(package: str) -> None:
    """Keep the sources of an installed package as well, which provides plug-ins."""
    _is_project[package.partition(".")[0]] = True


def is_library(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    path = Path(file).resolve()
    return not _INSTALLED.isdisjoint(path.parts) or str(path).startswith(_STANDARD_LIBRARY)


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
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__file__") not in SOURCES:
        frame = frame.f_back
    if frame is not None:
        IMPORTED_BY[frame.f_globals["__file__"]][fullname] = path


class _Finder(MetaPathFinder):
    """Finder of the modules that do not belong to a library; the other finders find their files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package in sys.stdlib_module_names or _is_project.get(package) is False:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is None:
            return None
        if package not in _is_project and fullname == package:
            places = [*filter(None, [spec.origin]), *(spec.submodule_search_locations or ())]
            _is_project[package] = not any(map(is_library, places))
        if _is_project.get(package) and type(spec.loader) is SourceFileLoader:
            spec.loader = KeepingLoader(fullname, spec.loader.path)
        elif _is_project.get(package) and isinstance(spec.loader, zipimporter) and spec.origin:
            _keep(fullname, spec.origin, (spec.loader.get_source(fullname) or "").encode())
        return spec


def install(importer: str) -> None:
    """Install the finder before all others, once per process, from the file ``importer``.

    That file was executed already. Its source is kept as well, because it imports names on first use, and so
    belongs to the program of the module that uses them first.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        SOURCES[importer] = Path(importer).read_bytes()
