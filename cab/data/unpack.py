"""Unpack untrusted archives: no links, devices or paths outside the folder; completely or not at all."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cab.data.names import inner_path
from cab.data.sources import readable_size
from cab.errors import UserError, first_line
from cab.files.cache import progress
from cab.files.disk import is_full_disk
from cab.files.sanitize import sanitize_text

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
LARGEST_RATIO, ALWAYS_ALLOWED = 100, 1 << 26
"""Largest unpacked size, as a multiple of the archive's size; and the size in bytes that any archive can have."""
BLOCK = 1 << 20


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ZIP or tar archive into the new folder ``folder``.

    Raises:
        UserError: the archive is damaged or encrypted, contains a link, a device or an invalid path, is larger than any
            published archive of its size, or does not fit on the disk; the folder is deleted.
    """
    folder.mkdir(parents=True)
    left = max(LARGEST_RATIO * archive.stat().st_size, ALWAYS_ALLOWED)
    try:
        for name, file in progress(_files(archive), f"unpacking {archive.name}"):
            path = folder / inner_path(name, of=archive.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with file, path.open("xb") as copy:
                while block := file.read(min(BLOCK, left + 1)):
                    left -= len(block)
                    if left < 0:
                        size = readable_size(max(LARGEST_RATIO * archive.stat().st_size, ALWAYS_ALLOWED))
                        raise UserError(f"{archive.name} unpacks to more than {size}: it is not a published archive")
                    copy.write(block)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _explained(error, archive, folder) from None


def _explained(error: BaseException, archive: Path, folder: Path) -> BaseException:
    """Return the error for the user: whatever is raised while an archive is read means that it is damaged."""
    if isinstance(error, UserError) or not isinstance(error, Exception):
        return error
    if isinstance(error, FileExistsError | NotADirectoryError):
        return UserError(f"{archive.name} contains a path twice and was not unpacked")
    if is_full_disk(error):
        return UserError(f"no space left to unpack {archive.name} in {folder.parent}")
    if isinstance(error, OSError) and error.filename is not None:  # not of a decompressor
        return error
    reason = sanitize_text(" ".join(first_line(error).split()))
    return UserError(f"{archive.name} is damaged ({reason:.200}): download it again")


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and content of each file, in the order of the archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            for entry in members.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _refused(archive, entry.filename, "a link or a device")
                if entry.flag_bits & 1:
                    raise _refused(archive, entry.filename, "which is encrypted")
                if entry.compress_type not in METHODS:
                    raise _refused(archive, entry.filename, "which has an unknown compression method")
                if "\0" in entry.orig_filename:
                    raise _refused(archive, entry.orig_filename, "a path with control characters or invalid Unicode")
                if not entry.is_dir():
                    yield entry.filename, members.open(entry)
        return
    with tarfile.open(archive, "r|*") as stream:
        for member in stream:
            if not member.isfile() and not member.isdir():
                raise _refused(archive, member.name, "a link or a device")
            content = stream.extractfile(member)
            if content is not None:
                yield member.name, content


def _refused(archive: Path, name: str, what: str) -> UserError:
    return UserError(f"{archive.name} contains '{sanitize_text(name):.80}', {what}, and was not unpacked")


def find_folder_of(folder: Path, pattern: str | None) -> Path:
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
