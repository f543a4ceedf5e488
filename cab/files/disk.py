"""Write files safely (atomic replacement, full disks, output folders), and make text from files safe to print."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import socket
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError, message_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_FULL = re.compile(
    "no space left on device|disk quota exceeded"
    "|PytorchStreamWriter failed writing|enforce fail at inline_container.* unexpected pos|basic_ios::clear"
    r"|\d+ requested and \d+ written",
    re.IGNORECASE,
)
"""Messages of libraries in other languages, of the ZIP writer of torch (in three places) and of numpy."""


def is_full_disk(error: BaseException) -> bool:
    """Return whether a write failed for want of space or a limit on it, as an OSError or as a library reports it."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return not isinstance(error, UserError) and _FULL.search(message_of(error)) is not None


NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems that cannot lock files, such as NFS without lockd."""
NO_ANSWER = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)
"""Errors of a disk or a file server that does not answer, or was restarted."""


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise UserError if the disk of ``folder`` cannot lock, is full or fails; nothing incomplete is kept."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_LOCKS:
            raise UserError(
                f"{folder} is on a file system that cannot lock files ({error.strerror}): name another results_dir, or "
                "another CAB_CACHE"
            ) from error
        if isinstance(error, OSError) and error.errno in NO_ANSWER:
            raise UserError(
                f"the disk of {folder} failed ({error.strerror}); repeat the command when it answers again"
            ) from error
        if is_full_disk(error):
            raise UserError(
                f"no space left on the disk of {folder}, or a file reached the limit on its size (ulimit -f); finished "
                "files are intact. Free some space or raise the limit, and repeat the command"
            ) from error
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` when the block ends, and is deleted if it fails.

    The file has the permissions that the umask leaves, and its process in its name.
    """
    temporary = path.with_name(f".{path.name}-{os.getpid()}@{socket.gethostname()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_figure(figure: Figure, path: Path, *, dpi: int = 110) -> Path:
    """Write a figure in the format of the file's suffix, replace ``path`` only when it is complete, and return it."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=dpi)
    return path


def user_path(text: str) -> Path:
    """Return the path in an option or a variable, with ``~`` for a home directory if there is one."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


def remove_leftovers(folder: Path, name: str = "*", *, is_locked: bool = True) -> None:
    """Delete the temporary files of ``name``, or of all files in a folder, whose processes were killed.

    Those of other machines are deleted only if the caller holds the lock of the files.
    """
    for path in folder.glob(f".{name}-*.tmp"):
        owner = re.search(r"-(\d+)@(.+)-[0-9a-f]{8}\.tmp$", path.name)
        is_here = owner is not None and owner[2] == socket.gethostname()
        if not (_is_running(int(owner[1])) if owner and is_here else not is_locked):
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def exchange(one: Path, other: Path) -> None:
    """Exchange two folders, at once where the system can."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchanges = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2 is None or renameat2(here, os.fsencode(one), here, os.fsencode(other), exchanges):
        away = one.with_name(f"{one.name}-away")
        for source, target in ((other, away), (one, other), (away, one)):
            source.replace(target)


def check_writable(folder: Path, option: str) -> None:
    """Raise UserError if ``folder``, which ``option`` sets, is not writable or could not be created; create nothing."""
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    except (OSError, ValueError) as error:  # too long, or a null character
        raise UserError(f"{option}: {folder} cannot be used: {getattr(error, 'strerror', None) or error}") from None
    if not existing.is_dir():
        raise UserError(f"{option}: {existing} is not a folder; name another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{option}: {existing} is not writable; name another folder")


def visible_files(folder: Path, pattern: str) -> list[Path]:
    """Return what matches ``pattern`` below ``folder``, sorted, without hidden files such as ``._a.png`` of macOS.

    ``**/`` matches any folders, also behind links, each of which is read once. UserError for a link to nothing.
    """
    before, recursive, after = pattern.partition("**/")
    roots = _folders(folder / before, set()) if recursive else [folder]
    paths = sorted(path for root in roots for path in root.glob(after or pattern))
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a link to {path.readlink()}, which does not exist")
    return [path for path in paths if not any(name.startswith(".") for name in path.relative_to(folder).parts)]


def _folders(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield a folder and all folders in it; folders before links to them."""
    if folder.is_dir() and folder.resolve() not in seen:
        seen.add(folder.resolve())
        yield folder
        for inner in sorted(folder.iterdir(), key=lambda path: (path.is_symlink(), path)):
            yield from _folders(inner, seen)


CONTROL = ("Cc", "Cs", "Cf", "Cn", "Zl", "Zp")
"""Unicode categories of characters that are replaced: control and format characters, surrogates, line separators."""


def sanitize_text(value: object) -> str:
    """Return ``value`` as text that is valid in XML, UTF-8 and a terminal; other characters become U+FFFD.

    Names in result files can contain anything that JSON can encode.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(char) in CONTROL else char for char in text)


def sanitize_csv_cell(value: object) -> object:
    """Sanitize text, and put a quote before text that a spreadsheet would execute as a formula.

    >>> sanitize_csv_cell("=HYPERLINK(1)"), sanitize_csv_cell("-0.5"), sanitize_csv_cell("abc")
    ("'=HYPERLINK(1)", '-0.5', 'abc')
    """
    if not isinstance(value, str):
        return value
    text = sanitize_text(value)
    if len(text) < 2 or unicodedata.normalize("NFKC", text[0]) not in ("=", "+", "-", "@"):  # also full-width signs
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def sanitize_table(table: pd.DataFrame) -> pd.DataFrame:
    """Apply :func:`sanitize_csv_cell` to all texts and column names of a table."""
    texts = table.select_dtypes(include=["object", "string"]).columns
    safe = table.assign(**{name: _sanitized(table[name]) for name in texts})
    return safe.rename(columns={name: sanitize_csv_cell(name) for name in table.columns})


def _sanitized(column: pd.Series) -> pd.Series:
    """Return a column with its texts sanitized, each different one once."""
    safe = {text: sanitize_csv_cell(text) for text in column.unique() if isinstance(text, str)}
    changed = {text: other for text, other in safe.items() if text != other}
    return column.map(lambda value: changed.get(value, value)) if changed else column


def listed(names: Iterable[str], *, shown: int = 3) -> str:
    """Return the first ``shown`` names, and the number of the others.

    >>> listed(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    names = list(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
