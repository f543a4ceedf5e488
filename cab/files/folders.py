"""Check output folders before the work starts."""

from __future__ import annotations

import os
from pathlib import Path

from cab.errors import UserError


def check_writable(folder: Path, option: str) -> None:
    """Raise UserError if ``folder`` is not writable or could not be created; nothing is created.

    Args:
        folder: the output folder.
        option: option that sets the folder, such as ``results_dir``, for the message.
    """
    try:
        for place in (folder, *folder.parents):
            if place.is_dir():
                if not os.access(place, os.W_OK | os.X_OK):
                    raise UserError(f"{option}: {place} is not writable; name another folder")
                return
            if place.exists() or place.is_symlink():
                raise UserError(f"{option}: {place} is not a folder; name another folder")
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{option}: {folder} cannot be used: {getattr(error, 'strerror', None) or error}") from None
