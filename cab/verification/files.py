"""Classes from a file that no package knows: ``path/to/file.py:Class``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from torch import nn

from cab.errors import UserError


def is_file(target: str) -> bool:
    """Whether ``target`` means a file and not a registered name."""
    return ".py" in target or "/" in target


def load_class(target: str) -> type[nn.Module]:
    """The module class named by ``FILE.py:Class``; modules beside the file can be imported by it.

    Raises:
        ValueError: no such file or class, a file that fails to import, or a class that is no ``nn.Module``.
    """
    file, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    path = Path(file)
    if not path.is_file():
        raise UserError(f"no file '{file}'; an attention is a registered name or FILE.py:Class")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None, "a file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module  # dataclasses and pickles of the file look themselves up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"cannot import {file}: {type(error).__name__}: {error}") from error
    own = {n: c for n, c in vars(module).items() if isinstance(c, type) and c.__module__ == module.__name__}
    modules = [n for n, c in own.items() if issubclass(c, nn.Module)]
    chosen = getattr(module, name, None) if name else None
    if not isinstance(chosen, type) or not issubclass(chosen, nn.Module):
        missing = f"no torch.nn.Module class '{name}' in {file}" if name else f"name a class: {file}:Class"
        raise UserError(f"{missing}; it has: {', '.join(modules) or 'none'}")
    return chosen
