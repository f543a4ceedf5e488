"""One file from its host: whole and right, or not at all. What was cut goes on where it ended."""

from __future__ import annotations

import errno
import http.client
import logging
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from cab.data.check import sha256_of
from cab.data.sources import readable_size
from cab.errors import UserError

log = logging.getLogger("cab")

CHUNK = 1 << 18
TIMEOUT = 60  # seconds without a byte
PAUSES = (1.0, 4.0, 15.0)
"""Seconds before a host that did not answer, or hung up, is asked again."""
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses of a host that may answer later."""


class Cut(Exception):
    """The host did not answer, or hung up: worth another try."""


def download(
    address: str, target: Path, *, size: int | None = None, sha256: str | None = None, shown: bool = True
) -> str:
    """Bring ``address`` to ``target``, and return its SHA-256.

    Until it is whole it lies beside ``target`` as ``.part``; what an earlier call left there is gone on with where the
    host still has the same file.

    Args:
        size, sha256: what is known of the file.
        shown: with a progress bar.

    Raises:
        ValueError: it cannot be had, is not what is known, or does not fit on the disk. Nothing of it is left but,
            where the host hung up, the part.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    tries = [*PAUSES, None]
    for pause in tries:
        try:
            _go_on(address, part, size, sha256, shown=shown)
            break
        except Cut as cut:
            if pause is None:
                kept = part.stat().st_size if part.exists() else 0
                after = f" after {kept:,} bytes; the same command goes on from there" if kept else ""
                raise UserError(f"{address}: {cut}{after}") from None
            log.info("%s: %s; again in %.0f s", part.stem, cut, pause)
            time.sleep(pause)
    return accept(part, target, source=address, size=size, sha256=sha256)


def accept(part: Path, target: Path, *, source: str, size: int | None, sha256: str | None) -> str:
    """Rename ``part`` to ``target`` where it is what is known of it, and return its SHA-256; else delete it."""
    found, found_size = sha256_of(part), part.stat().st_size
    _tag_of(part).unlink(missing_ok=True)
    if size not in (None, found_size):
        part.unlink()
        raise UserError(
            f"{source} has {found_size:,} bytes, not the {size:,} that are known: another edition; not kept"
        )
    if sha256 not in (None, found):
        part.unlink()
        raise UserError(f"{source} has SHA-256 {found:.12}..., not the known {sha256:.12}...: it was changed; not kept")
    part.replace(target)
    return found


def _go_on(address: str, part: Path, size: int | None, sha256: str | None, *, shown: bool) -> None:
    """Ask for what ``part`` lacks, or for all of it, and write it there."""
    tag = _tag_of(part)
    start = part.stat().st_size if part.exists() else 0
    if start and start == size:
        return
    headers = {"User-Agent": "cab-benchmark", "Accept-Encoding": "identity"}
    validator = tag.read_text() if tag.exists() else ""
    if start and (validator or sha256):  # without either nobody could tell that it is still the same file
        headers["Range"] = f"bytes={start}-"
        headers |= {"If-Range": validator} if validator else {}
    with _ask(address, part, headers) as response:
        if response.headers.get_content_type() == "text/html" and not address.endswith(".html"):
            raise UserError(f"{address} answers with a web page, not with the file: it wants a login, or has moved")
        if response.status != 206:
            start = 0
        coming = response.headers.get("Content-Length")
        whole = start + int(coming) if coming else None
        if size is not None and whole not in (None, size):
            raise UserError(f"{address} has {whole:,} bytes, not the {size:,} that are known: another edition")
        _check_space(part.parent, (whole or 0) - start)
        tag.write_text(response.headers.get("ETag") or response.headers.get("Last-Modified") or "")
        with _no_space_left(part), part.open("ab" if start else "wb") as file:
            bar = tqdm(
                desc=part.stem,
                total=whole,
                initial=start,
                unit="B",
                unit_scale=True,
                leave=False,
                file=sys.stderr,
                disable=not shown or not sys.stderr.isatty(),
            )
            with bar:
                for block in _blocks(response):
                    file.write(block)
                    bar.update(len(block))
    if whole is not None and part.stat().st_size < whole:
        raise Cut("the connection was cut")


def _ask(address: str, part: Path, headers: dict[str, str]) -> http.client.HTTPResponse:
    """The answer of the host; Cut or UserError where it gives none."""
    try:
        request = urllib.request.Request(address, headers=headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is longer than the file
            part.unlink()
            raise Cut("the file became shorter at its host") from None
        if error.code in PASSING:
            raise Cut(f"the host answers {error.code} {error.reason}") from None
        wants = "; it wants a login or its license accepted" if error.code in (401, 403) else ""
        raise UserError(f"{address}: the host answers {error.code} {error.reason}{wants}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Cut(f"no connection ({getattr(reason, 'strerror', None) or reason})") from None
    return response


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = response.read(CHUNK)
        except (http.client.HTTPException, OSError):
            raise Cut("the connection was cut") from None
        if not block:
            return
        yield block


def _tag_of(part: Path) -> Path:
    """Where the version is kept that the host gave the file of ``part``."""
    return part.with_name(f"{part.name}.tag")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder} has {readable_size(free)} free, and {readable_size(needed)} are needed; name another folder"
        )


@contextmanager
def _no_space_left(part: Path) -> Iterator[None]:
    """A full disk deletes the part: it would only keep the disk full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        part.unlink(missing_ok=True)
        _tag_of(part).unlink(missing_ok=True)
        raise UserError(f"no space left for {part.stem} in {part.parent}; nothing of it was kept") from None
