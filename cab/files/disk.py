"""Detect and report full disks."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from cab.errors import UserError


def is_full_disk(error: Exception) -> bool:
    """Return whether a write failed because the disk is full, as an OSError or as torch.save reports it."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, RuntimeError) and "PytorchStreamWriter failed writing" in str(error)


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
