"""Names of files in archives, lists and records that somebody else has written."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from cab.errors import UserError
from cab.files.sanitize import sanitize_text

RESERVED = (".cab-data-", "cab-data-")
"""Beginnings of the names of the records of downloads, and of the folder for partial downloads."""
LONGEST_NAME, LONGEST_PATH, DEEPEST = 255, 1024, 50
"""Limits in bytes, bytes and folders. Those of the file system are hit too late, when a part is written."""


def inner_path(name: str, *, of: str) -> PurePosixPath:
    """Return ``name`` as a path that is below any folder, and can be written on any file system.

    Args:
        name: name of a file.
        of: what contains the name, for the message.

    Raises:
        UserError: the path is outside the folder, too long or too deep, has control characters, or is reserved for the
            records of downloads.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        problem = "a path outside the folder"
    elif sanitize_text(name) != name:
        problem = "a path with control characters or invalid Unicode"
    elif max(map(_size, path.parts)) > LONGEST_NAME or _size(name) > LONGEST_PATH:
        problem = "a path that is too long"
    elif len(path.parts) > DEEPEST:
        problem = f"a path of more than {DEEPEST} folders"
    elif any(part.startswith(RESERVED) for part in path.parts):
        problem = "a name that is reserved for downloads"
    else:
        return path
    raise UserError(f"{of} contains '{sanitize_text(name):.80}', {problem}, and was not unpacked")


def _size(name: str) -> int:
    return len(os.fsencode(name))
