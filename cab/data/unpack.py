"""Unpack untrusted archives: no links, devices or paths outside the folder; completely or not at all."""

from __future__ import annotations

import errno
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from cab.errors import UserError
from cab.files.cache import progress

BROKEN = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ZIP or tar archive into the new folder ``folder``.

    Raises:
        UserError: the archive is damaged, contains a link, a device or a path outside the folder, or does not fit on
            the disk; the folder is deleted.
    """
    folder.mkdir(parents=True)
    try:
        for name, file in progress(_files(archive), f"unpacking {archive.name}"):
            path = folder / _inside(archive, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with file, path.open("xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, BROKEN):
            raise UserError(f"{archive.name} is damaged ({' '.join(str(error).split())}): download it again") from None
        if isinstance(error, FileExistsError):
            raise UserError(f"{archive.name} contains a path twice and was not unpacked") from None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"no space left to unpack {archive.name} in {folder.parent}") from None
        if isinstance(error, OSError) and error.errno is None:  # of a decompressor
            raise UserError(f"{archive.name} is damaged ({error}): download it again") from None
        raise


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and content of each file, in the order of the archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            for entry in members.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _not_plain(archive, entry.filename)
                if not entry.is_dir():
                    yield entry.filename, members.open(entry)
        return
    with tarfile.open(archive, "r|*") as stream:
        for member in stream:
            if not member.isfile() and not member.isdir():
                raise _not_plain(archive, member.name)
            content = stream.extractfile(member)
            if content is not None:
                yield member.name, content


def _not_plain(archive: Path, name: str) -> UserError:
    return UserError(f"{archive.name} contains '{name}', a link or a device, and was not unpacked")


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        raise UserError(f"{archive.name} contains '{name}', a path outside the folder, and was not unpacked")
    return path


def find_beside(folder: Path, pattern: str | None) -> Path:
    """Return the topmost folder that contains a file or folder matching ``pattern``; ``folder`` itself without one.

    Raises:
        UserError: nothing matches.
    """
    if pattern is None:
        return folder
    found = sorted(folder.rglob(pattern), key=lambda path: (len(path.parts), path))
    if not found:
        raise UserError(f"the archive does not contain {pattern}: it is a different archive")
    return found[0].parent


def move_into(source: Path, folder: Path) -> None:
    """Move everything in ``source`` to the same path in ``folder``, replacing existing files."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        target = folder / path.name
        if path.is_dir() and target.is_dir():
            move_into(path, target)
        else:
            path.replace(target)
