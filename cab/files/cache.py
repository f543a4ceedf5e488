"""Cache of prepared data: each entry is built once, atomically, by one of any number of processes.

Also the progress of slow work.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from tqdm import tqdm

from cab.errors import UserError
from cab.files.disk import disk_errors

log = logging.getLogger(__name__)

T = TypeVar("T")

SLOW = 10.0
"""Seconds until :func:`report_waiting` reports."""


def cache_root() -> Path:
    """Return ``$CAB_CACHE`` (UserError if not writable), or else ``~/.cache/cab``, or else a temporary folder."""
    named = os.environ.get("CAB_CACHE")
    try:
        folder = Path(named) if named else Path.home() / ".cache" / "cab"
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("not writable")
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        if named:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"CAB_CACHE={named} cannot be used: {reason}; set it to a writable folder") from error
        folder = Path(tempfile.gettempdir()) / f"cab-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def prepared(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the cached folder for ``key``, and build it first if necessary.

    Args:
        kind: first part of the folder's name, such as ``tts-features``.
        key: everything that the content depends on, as plain values: options, versions, :func:`checksums` of files.
        build: writes the content into an empty folder, while other processes that need it wait.
    """
    folder = cache_root() / f"{kind}-{digest_of(key)}"
    if folder.is_dir():
        return folder
    with disk_errors(folder.parent), FileLock(f"{folder}.lock"):
        if folder.is_dir():
            return folder
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            build(unfinished)
            (unfinished / "key.json").write_text(json.dumps(key, sort_keys=True))
            unfinished.replace(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return folder


def digest_of(key: Mapping[str, Any]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a key of plain values."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(paths: Sequence[Path]) -> dict[str, str]:
    """Return 16 digits of the SHA-256 of each file, by its path from the innermost folder that contains all of them.

    A file is only read again if its path, its size, or the time of its last change differs.
    """
    stats = [[os.path.abspath(path), stat.st_size, stat.st_ctime_ns] for path in paths if (stat := path.stat())]  # noqa: PTH100

    def build(folder: Path) -> None:
        sums = [sha256_of(path)[:16] for path in progress(paths, "reading")]
        (folder / "checksums.json").write_text(json.dumps(sums))

    sums = json.loads((prepared("checksums", {"files": stats}, build) / "checksums.json").read_text())
    root = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return {os.path.relpath(path, root): value for path, value in zip(paths, sums, strict=True)}


def progress(items: Iterable[T], title: str) -> Iterable[T]:
    """Return the items, with a progress bar if stderr is a terminal."""
    return tqdm(items, desc=title, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False)


@contextlib.contextmanager
def report_waiting(title: str) -> Iterator[None]:
    """Log the title if the block is slow."""
    timer = threading.Timer(SLOW, log.info, (f"{title} takes long",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
