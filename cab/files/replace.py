"""Replace files atomically; new files have the permissions that the umask leaves."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` when the block ends, and is deleted if it fails."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Delete the temporary files that killed processes left in ``folder``.

    The caller must hold the lock of their files.

    Args:
        folder: the folder.
        name: beginning of the names of the replaced files; by default all are meant.
    """
    for path in folder.glob(f".{name}*.tmp"):
        path.unlink(missing_ok=True)
