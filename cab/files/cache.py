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
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from cab.errors import UserError, first_line
from cab.files.disk import disk_errors, exchange, user_path
from cab.files.locks import locked

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY_FILE = "key.json"
"""File of an entry with its key, and the size and SHA-256 of its other files."""
RECENT = 2_000_000_000
"""Nanoseconds after a change of a file in which another one can have the same time."""
_CHECKED: set[Path] = set()
"""Entries whose contents this process has checked."""
_SUMS: dict[str, str] = {}
"""The last checksum of each file, by its absolute path."""
SLOW = 10.0
"""Seconds until :func:`report_waiting` reports."""


def cache_root() -> Path:
    """Return ``$CAB_CACHE`` (UserError if not writable), or else ``~/.cache/cab``, or else a temporary folder."""
    named = os.environ.get("CAB_CACHE")
    try:
        folder = user_path(named) if named else Path.home() / ".cache" / "cab"
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("not writable")
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        if named:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"CAB_CACHE={named} cannot be used: {reason}; set it to a writable folder") from error
        folder = Path(tempfile.gettempdir()) / f"cab-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            other, folder = folder, Path(tempfile.mkdtemp(prefix="cab-"))
            log.warning("others can write to %s: using %s as the cache; set CAB_CACHE to keep it", other, folder)
            os.environ["CAB_CACHE"] = str(folder)
    return folder


def prepared(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the cached folder for ``key``, and build it first if necessary, or again if it is damaged.

    The sizes of its files are checked in each call, their contents in the first one of a process.

    Args:
        kind: first part of the folder's name, such as ``tts-features``.
        key: everything that the content depends on, as plain values: options, versions, :func:`checksums` of files.
        build: writes the content into an empty folder, while other processes that need it wait.
    """
    folder = cache_root() / f"{kind}-{digest_of(key)}"
    unfinished = folder.with_name(f".{folder.name}-unfinished")
    if not _damage(folder) and not unfinished.exists():
        return folder
    with disk_errors(folder.parent), locked(Path(f"{folder}.lock"), f"which prepares {folder}"):
        for leftover in folder.parent.glob(f".{folder.name}-*"):  # of killed builds, whose lock this process has
            shutil.rmtree(leftover, ignore_errors=True)
        damage = _damage(folder)
        if not damage:
            return folder
        unfinished.mkdir()
        try:
            if folder.is_dir():
                log.warning("rebuilding %s: %s", folder, damage)
            build(unfinished)
            files = {name: [path.stat().st_size, sha256_of(path)] for name, path in _files(unfinished).items()}
            (unfinished / KEY_FILE).write_text(json.dumps({"key": key, "files": files}, sort_keys=True))
            (exchange if folder.exists() else Path.replace)(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)  # a damaged entry, after the exchange
        _CHECKED.add(folder)
    return folder


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of an entry by their relative paths, without :data:`KEY_FILE`."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in files.items() if name != KEY_FILE}


def _damage(folder: Path) -> str:
    """Return what is wrong with an entry of the cache; empty if it is complete, which is noted in ``_CHECKED``."""
    try:
        content = json.loads((folder / KEY_FILE).read_text())
        if content.keys() != {"key", "files"}:
            return "it was written by an earlier version"
        expected = content["files"]
        found = _files(folder)
        for name, (size, digest) in expected.items():
            if name not in found:
                return f"{name} is missing"
            if found[name].stat().st_size != size:
                return f"{name} has {found[name].stat().st_size} bytes instead of {size}"
            if folder not in _CHECKED and sha256_of(found[name]) != digest:
                return f"the content of {name} has changed"
    except FileNotFoundError:
        return f"{KEY_FILE} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{KEY_FILE} cannot be read ({first_line(error)})"
    _CHECKED.add(folder)
    return ""


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

    A file is only read again if its path, its size, or the time of its last change differs, or if it changed within the
    last seconds. :func:`read_bytes` checks that a content which is read later is the same.
    """
    abouts = [_about(path) for path in paths]
    names = [os.path.abspath(path) for path in paths]  # noqa: PTH100
    stats = [[name, about.st_size, about.st_ctime_ns] for name, about in zip(names, abouts, strict=True)]

    def build(folder: Path) -> None:
        (folder / "checksums.json").write_text(json.dumps(computed()))

    def computed() -> list[str]:
        with _read_errors():
            return [sha256_of(path)[:16] for path in progress(paths, "reading")]

    if any(about.st_ctime_ns > time.time_ns() - RECENT for about in abouts):
        sums = computed()
    else:
        sums = json.loads((prepared("checksums", {"files": stats}, build) / "checksums.json").read_text())
    _SUMS.update(zip(names, sums, strict=True))
    root = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return {os.path.relpath(path, root): value for path, value in zip(paths, sums, strict=True)}


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; UserError if it differs from that of the last :func:`checksums`."""
    _about(path)
    with _read_errors():
        content = path.read_bytes()
    check_unchanged(path, hashlib.sha256(content))
    return content


def _about(path: Path) -> os.stat_result:
    """Return size and times of a regular file; UserError for others, such as a pipe, from which reading blocks."""
    with _read_errors():
        about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path} is not a file")
    return about


@contextlib.contextmanager
def _read_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None


def check_unchanged(path: Path, sha256: Any) -> None:
    """Raise UserError if ``sha256``, of :mod:`hashlib`, differs from that of the last :func:`checksums` of the file."""
    expected = _SUMS.get(os.path.abspath(path))  # noqa: PTH100
    if expected is not None and sha256.hexdigest()[:16] != expected:
        raise UserError(f"{path} changed while it was read; wait until it is complete and repeat the command")


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
