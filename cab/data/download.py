"""Download one file; interrupted downloads resume, and the size and checksum are verified."""

from __future__ import annotations

import errno
import http.client
import logging
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cab.data.check import sha256_of
from cab.data.sources import readable_size
from cab.errors import UserError
from cab.files.sanitize import sanitize_text

log = logging.getLogger("cab")

CHUNK = 1 << 18
TIMEOUT = 60  # seconds without a byte
RETRY_DELAYS = (1.0, 4.0, 15.0)
"""Seconds to wait before each retry."""
TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP status codes after which the download is retried."""


class TransientError(Exception):
    """The host did not answer, or closed the connection; the download can be retried."""


def download(
    address: str, target: Path, *, size: int | None = None, sha256: str | None = None, shown: bool = True
) -> str:
    """Download ``address`` to ``target``, and return its SHA-256.

    The partial file has the suffix ``.part``. A partial file of an earlier call is continued if the host still has the
    same file.

    Args:
        address: URL.
        target: path of the complete file.
        size: expected size in bytes, if known.
        sha256: expected checksum, if known.
        shown: show a progress bar.

    Raises:
        UserError: the file is not available, has the wrong size or checksum, or does not fit on the disk. The partial
            file is deleted, unless the connection was lost.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    tries = [*RETRY_DELAYS, None]
    for pause in tries:
        try:
            _continue(address, part, size, sha256, shown=shown)
            break
        except TransientError as error:
            if pause is None:
                kept = part.stat().st_size if part.exists() else 0
                if not kept:
                    part.unlink(missing_ok=True)
                    _tag_of(part).unlink(missing_ok=True)
                after = f" after {kept:,} bytes; repeat the command to resume" if kept else ""
                raise UserError(f"{address}: {error}{after}") from None
            log.info("%s: %s; retrying in %.0f s", part.stem, error, pause)
            time.sleep(pause)
    return accept(part, target, source=address, size=size, sha256=sha256)


def accept(part: Path, target: Path, *, source: str, size: int | None, sha256: str | None) -> str:
    """Rename ``part`` to ``target`` if it has the expected size and checksum, else delete it; return its SHA-256."""
    found, found_size = sha256_of(part), part.stat().st_size
    _tag_of(part).unlink(missing_ok=True)
    if size not in (None, found_size):
        part.unlink()
        raise UserError(
            f"{source} has {found_size:,} bytes instead of {size:,}: a different edition; the file was deleted"
        )
    if sha256 not in (None, found):
        part.unlink()
        raise UserError(
            f"{source} has SHA-256 {found:.12}... instead of {sha256:.12}...: it was changed; the file was deleted"
        )
    part.replace(target)
    return found


def _continue(address: str, part: Path, size: int | None, sha256: str | None, *, shown: bool) -> None:
    """Download the rest of ``part``, or the whole file, and write it there."""
    tag = _tag_of(part)
    start = part.stat().st_size if part.exists() else 0
    if start and start == size:
        return
    headers = {"User-Agent": "cab-benchmark", "Accept-Encoding": "identity"}
    validator = _validator(tag.read_text(encoding="utf-8", errors="replace")) if tag.exists() else ""
    if start and (validator or sha256):  # without either, a changed file would not be detected
        headers["Range"] = f"bytes={start}-"
        headers |= {"If-Range": validator} if validator else {}
    with _open(address, part, headers) as response:
        if response.headers.get_content_type() == "text/html" and not address.endswith(".html"):
            raise UserError(f"{address} returns a web page instead of the file: it requires a login, or has moved")
        if response.status == 206 and not _begins_at(response, start):
            part.unlink(missing_ok=True)
            raise TransientError("the host sends another part of the file")
        if response.status != 206:
            start = 0
        remaining = response.headers.get("Content-Length", "")
        whole = start + int(remaining) if re.fullmatch("[0-9]{1,18}", remaining) else None
        if size is not None and whole not in (None, size):
            raise UserError(f"{address} has {whole:,} bytes instead of {size:,}: a different edition")
        _check_space(part.parent, (whole or 0) - start)
        tag.write_text(_validator(response.headers.get("ETag") or response.headers.get("Last-Modified") or ""))
        with _disk_full(part), part.open("ab" if start else "wb") as file:
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
                    if size is not None and file.tell() > size:  # a host that declares no length could send forever
                        break
    if whole is not None and part.stat().st_size < whole:
        raise TransientError("the connection was lost")


def _open(address: str, part: Path, headers: dict[str, str]) -> http.client.HTTPResponse:
    """Return the response of the host.

    Raises:
        TransientError: the host may answer later.
        UserError: the host refuses the request.
    """
    try:
        request = urllib.request.Request(address, headers=headers)
        response: http.client.HTTPResponse = _OPENER.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is longer than the file
            part.unlink()
            raise TransientError("the file at the host is now shorter") from None
        words = f"the host returns {error.code} {_one_line(error.reason)}"
        if error.code in TRANSIENT_STATUSES:
            raise TransientError(words) from None
        hint = "; log in or accept the license there" if error.code in (401, 403) else ""
        raise UserError(f"{address}: {words}{hint}") from None
    except (OSError, http.client.HTTPException) as error:
        cause: Any = getattr(error, "reason", error)
        raise TransientError(f"no connection ({_one_line(getattr(cause, 'strerror', None) or cause)})") from None
    except (ValueError, OverflowError) as error:
        raise UserError(f"{address}: the host redirects to an invalid address ({_one_line(error)})") from None
    if response.status not in (200, 206):
        raise UserError(f"{address}: the host returns {response.status} instead of the file")
    return response


def _one_line(words: object) -> str:
    """Return the first line of what a host said."""
    return sanitize_text(" ".join((str(words).splitlines() or [""])[0].split()))[:200]


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to other web addresses only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith(("http://", "https://")):
            raise ValueError(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)


def _begins_at(response: http.client.HTTPResponse, start: int) -> bool:
    """Return whether a partial answer begins at the requested byte; without a request, it is never right."""
    found = re.match(r"bytes (\d+)-\d+/", response.headers.get("Content-Range", ""), re.ASCII)
    return start > 0 and found is not None and int(found[1]) == start


def _validator(text: str) -> str:
    """Return the version of a file as a header that can be sent back; empty if it cannot."""
    return text if re.fullmatch(r"[\x20-\x7e]{1,200}", text) else ""


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = response.read(CHUNK)
        except (http.client.HTTPException, OSError):
            raise TransientError("the connection was lost") from None
        if not block:
            return
        yield block


def _tag_of(part: Path) -> Path:
    """Return the file that stores the version (ETag or date) of the partial file."""
    return part.with_name(f"{part.name}.tag")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder} has {readable_size(free)} of free space but needs {readable_size(needed)}; name another folder"
        )


@contextmanager
def _disk_full(part: Path) -> Iterator[None]:
    """Delete the partial file and raise UserError if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        part.unlink(missing_ok=True)
        _tag_of(part).unlink(missing_ok=True)
        raise UserError(f"no space left for {part.stem} in {part.parent}; the partial file was deleted") from None
