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

SOURCES: dict[str, bytes] = {}
"""Source of each executed module, by the path of its file."""
IMPORTED_BY: defaultdict[str, set[str]] = defaultdict(set)
"""Names of the modules that were first imported by the code of a file, by its path."""

_STANDARD_LIBRARY = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_IMPORTING = {"importlib", "_frozen_importlib", "_frozen_importlib_external"}
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
        SOURCES[path] = source
        importer = _importing_file()
        if importer:
            IMPORTED_BY[importer].add(fullname)
        return code


def _importing_file() -> str:
    """Return the file of the module whose code is importing another one; empty if it has none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _IMPORTING:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__file__", ""))


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
        return spec


def install() -> None:
    """Install the finder before all others, once per process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
