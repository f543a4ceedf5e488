"""Download data sets to where their tasks read them: each item is fetched, verified, unpacked and recorded."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import logging
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from cab.data.check import Inventory, add_to_record, take_inventory
from cab.data.sources import DataSet, Item
from cab.errors import UserError, first_line
from cab.files.cache import cache_root, progress, sha256_of
from cab.files.disk import disk_errors, is_full_disk, listed, user_path, visible_files
from cab.files.locks import locked
from cab.files.text_table import counted

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # Debian 12 has Python 3.11.2, whose tarfile cannot refuse unsafe members
    from backports import tarfile  # type: ignore[import-not-found, no-redef]

log = logging.getLogger("cab")

PARALLEL_DOWNLOADS = 8  # files at a time
DOWNLOAD_TIMEOUT = 60  # seconds without a byte
URL_PREFIXES = ("http://", "https://")
RETRY_DELAYS = (1.0, 4.0, 15.0)
"""Seconds to wait before each retry."""


def download(data_set: DataSet, data_root: Path, *, source: str | None = None) -> tuple[Inventory, list[str]]:
    """Download the missing items of a data set; other processes that need it wait.

    Return the inventory afterwards, and instructions for the items that must be downloaded manually. Instead of the
    official hosts, ``source`` can be the URL of a mirror that has the items under their names, or a local file or
    folder.
    """
    key = hashlib.sha256(f"{data_root.resolve()}/{data_set.name}".encode()).hexdigest()[:16]
    with disk_errors(cache_root()), locked(cache_root() / f"data-{key}.lock", f"which downloads {data_set.name}"):
        inventory = take_inventory(data_set, data_root)
        folder, manual_steps = inventory.folder, []
        with disk_errors(folder):
            for item in data_set.items:
                path = folder / item.name
                is_other = item.sha256 is not None and path.is_file() and sha256_of(path) != item.sha256
                if all(map(inventory.has, item.gives)) and not is_other:
                    continue
                location = _location(item, data_set, source)
                if location is None:
                    manual_steps.append(item.by_hand)
                    continue
                _get_item(item, location, data_set.name, folder, base=source or item.list_of or "")
                log.info("%s: %s is complete", data_set.name, item.name)
        return take_inventory(data_set, data_root), manual_steps


def _location(item: Item, data_set: DataSet, source: str | None) -> str | None:
    """Return the URL or local path of an item; None if it must be downloaded manually."""
    if source is None:
        return item.address
    if source.startswith(URL_PREFIXES):
        return f"{source.rstrip('/')}/{item.name}"
    path = user_path(source)
    if not path.exists():
        raise UserError(f"--source {source} does not exist; name a file, a folder or a URL that starts with https://")
    if (path / item.name).is_file():
        return str(path / item.name)
    if path.name == item.name or (item.address is None and sum(i.address is None for i in data_set.items) == 1):
        if path.is_file() or item.unpacks is not None:
            return str(path)
        raise UserError(f"--source {source}: this folder does not contain {item.name}")
    return item.address


def _get_item(item: Item, location: str, name: str, folder: Path, *, base: str) -> None:
    """Fetch an item, move its content to where the task reads it, and record its checksum."""
    if Path(location).is_dir():  # an archive that was unpacked manually
        _merge(Path(location), item, folder, shutil.copy2)
        return
    scratch = folder / f".cab-data-{name}"
    scratch.mkdir(parents=True, exist_ok=True)
    file = scratch / item.name
    try:
        log.info("%s: fetching %s", name, location)
        entry = fetch(location, file, size=item.bytes, sha256=item.sha256, shows_progress=True)
        with tempfile.TemporaryDirectory(dir=scratch) as unfinished:
            _install(item, file, Path(unfinished), name, folder, base)
        add_to_record(folder, name, {item.name: entry})
        shutil.rmtree(scratch)
    finally:
        if item.sha256 is None:  # a file with a verified checksum need not be fetched again
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            scratch.rmdir()


def _install(item: Item, file: Path, unfinished: Path, name: str, folder: Path, base: str) -> None:
    """Move the content of an item to where the task reads it, through the folder ``unfinished`` on the same disk."""
    if item.list_of is not None:
        _get_listed(_listed_names(file, item.name), base, name, folder)
    elif item.table is not None:
        options = dict(item.table)
        target = folder / options.pop("to")
        with _damage_reported(file):
            dated_table(file, unfinished / "table.csv", **options)
        (unfinished / "table.csv").replace(target)
    elif item.unpacks is not None:
        unpack(file, unfinished)
        _merge(unfinished, item, folder, shutil.move)
    else:
        if (folder / item.name).exists():
            log.warning("replacing %s, which is not the published file", folder / item.name)
        file.replace(folder / item.name)


def fetch(
    location: str, path: Path, *, size: int | None = None, sha256: str | None = None, shows_progress: bool = False
) -> dict[str, Any]:
    """Download a URL, or copy a local file, unless ``path`` has it already, and return its record.

    Nothing is kept of a file with the wrong size or checksum.
    """
    import pooch
    import requests

    http = pooch.HTTPDownloader(
        progressbar=shows_progress and sys.stderr.isatty(),
        chunk_size=1 << 18,
        headers={"User-Agent": "cab-benchmark", "Accept-Encoding": "identity"},
        hooks={"response": _refuse_page},
        timeout=DOWNLOAD_TIMEOUT,
    )

    def transfer(location: str, temporary: str, _: object) -> None:
        Path(temporary).unlink()  # pooch creates a file that only its owner can read
        if location.startswith(URL_PREFIXES):
            http(location, temporary, None)
        else:
            shutil.copyfile(location, temporary)
        actual = Path(temporary).stat().st_size
        if size not in (None, actual):
            raise UserError(f"{location} has {counted(actual, 'byte')} instead of {size:,}: a different edition")

    pooch.get_logger().setLevel(logging.WARNING)
    for delay in (*RETRY_DELAYS, None):
        try:
            pooch.retrieve(location, known_hash=sha256, fname=path.name, path=path.parent, downloader=transfer)
            break
        except requests.RequestException as error:
            status = 503 if error.response is None else error.response.status_code
            if delay is None or (status < 500 and status != 429):
                hint = "; log in or accept the license there" if status in (401, 403) else ""
                raise UserError(f"cannot download {location}: {first_line(error)}{hint}") from None
            log.info("%s: %s; retrying in %.0f s", path.name, first_line(error), delay)
            time.sleep(delay)
        except ValueError as error:  # pooch: another checksum
            raise UserError(f"{location}: {first_line(error)}") from None
    return {"sha256": sha256_of(path), "bytes": path.stat().st_size, "address": location}


def _refuse_page(response: Any, **_: object) -> None:
    if response.status_code == 200 and response.headers.get("Content-Type", "").startswith("text/html"):
        raise UserError(f"{response.url} returns a web page instead of the file: it requires a login, or has moved")


def _listed_names(file: Path, list_name: str) -> list[str]:
    """Return the paths in a list of files; UserError if one of them could be outside the folder."""
    names = file.read_text(encoding="utf-8", errors="replace").split()
    for name in names:
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", name, re.ASCII):
            raise UserError(f"{list_name} contains '{name:.80}', which is not a path below a folder")
    return names


def _get_listed(names: list[str], base: str, data_set: str, folder: Path) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    log.info("%s: fetching %s files from %s", data_set, f"{len(missing):,}", base)
    pool = ThreadPoolExecutor(PARALLEL_DOWNLOADS)
    downloads = {name: pool.submit(fetch, f"{base.rstrip('/')}/{name}", folder / name) for name in missing}
    try:
        for finished in progress(as_completed(downloads.values()), data_set):
            finished.result()
    finally:
        pool.shutdown(cancel_futures=True)
        complete = {name: job for name, job in downloads.items() if not job.cancelled() and job.exception() is None}
        add_to_record(folder, data_set, {name: job.result() for name, job in complete.items()})


@contextlib.contextmanager
def _damage_reported(file: Path) -> Iterator[None]:
    """Raise UserError if a compressed file is damaged; its readers raise errors of many types."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and (is_full_disk(error) or error.filename is not None):
            raise
        raise UserError(f"{file.name} is damaged or unsafe ({first_line(error):.200}): download it again") from None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ZIP or tar archive into ``folder``; UserError if it is damaged or has a path that leads outside.

    Also if it is cut between members, or has bytes that belong to none. Members with one name are named.
    """
    with _damage_reported(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as members:
                for name in members.namelist():
                    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                        raise UserError(f"{archive.name} contains '{name:.80}', a path outside the folder")
                members.extractall(folder)
                names = [each.filename for each in members.infolist() if not each.is_dir()]
                is_whole = min((each.header_offset for each in members.infolist()), default=0) == 0
        else:
            with tarfile.open(archive) as files:
                files.extractall(folder, filter="data")
                names = [each.name for each in files.getmembers() if not each.isdir()]
                is_whole = _has_end(files)
        if not is_whole:
            raise UserError(f"{archive.name} has no end, or bytes before or after its members: it is cut or damaged")
        if repeated := [str(name) for name, count in Counter(map(PurePosixPath, names)).items() if count > 1]:
            log.warning("%s contains %s more than once; the last one is used", archive.name, listed(repeated))


def _has_end(files: tarfile.TarFile) -> bool:
    """Return whether only zeros follow the last member that was read, at least a block of them."""
    file = files.fileobj
    assert file is not None
    file.seek(files.offset)
    end = file.read(tarfile.BLOCKSIZE)
    rest = iter(lambda: file.read(1 << 20), b"")
    return len(end) == tarfile.BLOCKSIZE and not any(part.strip(b"\0") for part in itertools.chain([end], rest))


def _merge(unpacked: Path, item: Item, folder: Path, transfer: Callable[[str, str], object]) -> None:
    """Copy or move an unpacked archive, or its folder that contains a certain file, into the folder of the data set."""
    options = item.unpacks or {}
    if "folder_of" in options:
        matches = sorted(visible_files(unpacked, f"**/{options['folder_of']}"), key=lambda path: len(path.parts))
        if not matches:
            raise UserError(f"the archive does not contain {options['folder_of']}: it is a different archive")
        unpacked = matches[0].parent
    shutil.copytree(unpacked, folder / options["to"], copy_function=transfer, dirs_exist_ok=True)


def dated_table(source: Path, target: Path, *, column: str, columns: int, start: str, hours: int) -> None:
    """Add a header and a column of dates to a gzipped table of numbers; UserError if a row lacks a number.

    ``column`` is the format of the names of the columns, such as ``MT_{:03d}``. The first row has the date ``start``.
    """
    date, step = datetime.fromisoformat(start), timedelta(hours=hours)
    with gzip.open(source, "rt", encoding="utf-8") as rows, target.open("w", encoding="utf-8") as table:
        table.write(",".join(["date", *(column.format(number) for number in range(columns))]) + "\n")
        for number, row in enumerate(rows):
            if (count := row.count(",") + 1) != columns:
                line = f"{source.name}, line {number + 1}"
                raise UserError(f"{line}: {counted(count, 'number')} instead of {columns}: a different edition")
            table.write(f"{date + number * step},{row.rstrip()}\n")
