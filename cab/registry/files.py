"""Attentions of users: classes and functions in files (``FILE.py:Class``)."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from cab.errors import UserError, exits_as_errors, first_line
from cab.executed import KeepingLoader, enter
from cab.registry.names import with_suffix
from cab.registry.program import STANDALONE, module_of


def load_object(target: str) -> Any:
    """Import the function or subclass of ``nn.Module`` ``FILE.py:name``; the file can import modules in its folder."""
    file, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if not os.path.isfile(file):  # noqa: PTH113
        problem = "is a folder" if os.path.isdir(file) else "does not exist"  # noqa: PTH112
        meant = with_suffix(target)
        hint = f"write {meant}" if meant else "name a registered attention or FILE.py:Class"
        raise UserError(f"file '{file}' {problem}; {hint}")
    path = Path(file).resolve()
    if path.suffix != ".py":
        raise UserError(f"file '{file}' is not imported, because its name does not end in .py; rename it")
    module = _imported(path) or _import(path, file)
    chosen = getattr(module, name, None) if name else None
    if inspect.isfunction(chosen) or (isinstance(chosen, type) and issubclass(chosen, nn.Module)):
        return chosen
    classes = {n: c for n, c in vars(module).items() if isinstance(c, type) and c.__module__ == module.__name__}
    names = ", ".join(n for n, c in classes.items() if issubclass(c, nn.Module)) or "none"
    missing = f"no torch.nn.Module class '{name}' in {file}" if name else f"name a class: {file}:Class"
    raise UserError(f"{missing}; it has: {names}")


def _imported(path: Path) -> ModuleType | None:
    """Return the module if the file is already imported."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


def _import(path: Path, shown: str) -> ModuleType:
    """Import a file: as the module that it is in a package of attentions, or else on its own."""
    from cab.files.cache import report_waiting  # imports packages

    name = module_of(path)
    try:
        with exits_as_errors(), report_waiting(f"importing {shown}"):
            return importlib.import_module(name) if name else _import_alone(path)
    except Exception as error:
        raise UserError(f"cannot import {shown}: {type(error).__name__}: {first_line(error)}") from error


def _import_alone(path: Path) -> ModuleType:
    """Import a file under a unique module name, so that a file abc.py does not replace the standard module."""
    name = f"{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}".replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, path, loader=KeepingLoader(name, str(path)))
    assert spec is not None, "a file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    enter(path.parent)
    sys.modules[name] = module  # required by dataclasses and pickle
    STANDALONE[name] = path
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name], STANDALONE[name]
        raise
    return module
