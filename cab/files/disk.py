"""Detect and report full disks."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from cab.errors import UserError

_FULL = re.compile(
    "no space left on device|disk quota exceeded"
    "|PytorchStreamWriter failed writing|enforce fail at inline_container.* unexpected pos|basic_ios::clear"
    r"|\d+ requested and \d+ written",
    re.IGNORECASE,
)
"""Messages of libraries in other languages, of the ZIP writer of torch (in three places) and of numpy."""


def is_full_disk(error: BaseException) -> bool:
    """Return whether a write failed because the disk is full, as an OSError or as a library reports it."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return not isinstance(error, UserError) and _FULL.search(str(error)) is not None


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise UserError if the disk of ``folder`` is full; no record is written then, so the run can resume."""
    try:
        yield
    except Exception as error:
        if is_full_disk(error):
            raise UserError(
                f"no space left on the disk of {folder}; earlier results and checkpoints are intact. "
                "Free some space and repeat the command"
            ) from error
        raise
