"""A disk that is full at one write: the fault-injecting file layer of the tests."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

FULL = "/dev/full"


class FullDisk:
    """Counts what is created and written below ``folder``; number ``at`` meets a full disk, as a real one reports it.

    Files are opened on /dev/full instead, so that the error comes from the system at the first flush. torch.save, which
    writes from C++, gets this path too. Files that are also read are not opened at all: /dev/full has no end.
    """

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at, self.count = str(folder), at, 0

    @property
    def was_met(self) -> bool:
        return self.count >= self.at

    def _is_hit(self, path: object) -> bool:
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        if not isinstance(path, (str, os.PathLike)) or not os.path.realpath(path).startswith(self.folder):
            return False
        self.count += 1
        return self.count == self.at

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        opened, saved = self._open(open), self._save(torch.save)
        changed = {(builtins, "open"): opened, (io, "open"): opened, (torch, "save"): saved}
        changed |= {(os, "open"): self._system(os.open), (os, "mkdir"): self._system(os.mkdir)}
        before = {(module, name): getattr(module, name) for module, name in changed}
        for (module, name), function in changed.items():
            setattr(module, name, function)
        try:
            yield
        finally:
            for (module, name), function in before.items():
                setattr(module, name, function)

    def _open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wax+") and self._is_hit(file):
                if "+" in mode:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
                return function(FULL, mode.replace("x", "w"), *arguments, **options)
            return function(file, mode, *arguments, **options)

        return opened

    def _system(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *arguments: Any, **options: Any) -> Any:
            creates = function.__name__ == "mkdir" or (arguments and arguments[0] & os.O_CREAT)
            if creates and not Path(path).exists() and self._is_hit(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return function(path, *arguments, **options)

        return called

    def _save(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def saved(state: Any, path: Any, *arguments: Any, **options: Any) -> None:
            function(state, FULL if self._is_hit(path) else path, *arguments, **options)

        return saved
