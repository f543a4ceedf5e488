"""Folders that something is written into, checked before the work whose result it is."""

from __future__ import annotations

import os
from pathlib import Path

from cab.errors import UserError


def check_writable(folder: Path, option: str) -> None:
    """UserError when nothing could be written into ``folder``, made if need be; makes nothing itself.

    Args:
        option: that names it, as in ``results_dir``.
    """
    try:
        for place in (folder, *folder.parents):
            if place.is_dir():
                if not os.access(place, os.W_OK | os.X_OK):
                    raise UserError(f"{option}: no leave to write in {place}; name another folder")
                return
            if place.exists() or place.is_symlink():
                raise UserError(f"{option}: {place} is not a folder; name another")
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{option}: {folder} cannot be used: {getattr(error, 'strerror', None) or error}") from None
