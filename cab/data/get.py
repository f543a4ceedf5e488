"""Download a data set to where its tasks read it: each item is fetched, verified, unpacked, moved and recorded."""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock
from tqdm import tqdm

from cab.data.check import Inventory, sha256_of, take_stock
from cab.data.download import accept, download
from cab.data.names import RESERVED, inner_path
from cab.data.prepare import dated_table
from cab.data.record import add_to_record, read_record
from cab.data.sources import DataSet, Item
from cab.data.unpack import find_folder_of, move_into, unpack
from cab.errors import UserError
from cab.files.cache import cache_root
from cab.files.disk import is_full_disk
from cab.files.sanitize import sanitize_text

log = logging.getLogger("cab")

AT_ONCE = 8
"""Number of parallel downloads of the files of a list."""


@dataclass(frozen=True)
class Got:
    """Result of a download.

    Attributes:
        stock: files on disk afterwards.
        by_hand: instructions for items that must be downloaded manually.
    """

    stock: Inventory
    by_hand: list[str] = field(default_factory=list)


def get(data_set: DataSet, data_root: Path, *, source: str | None = None) -> Got:
    """Download the missing items of a data set.

    Args:
        data_set: the data set.
        data_root: folder of all data sets.
        source: source to use instead of the official hosts: the URL of a mirror that has the items under their names,
            or a local file or folder.

    Raises:
        UserError: an item is not available or has the wrong size or checksum; existing files are kept.
    """
    with _alone(data_root, data_set.name):
        stock = take_stock(data_set, data_root)
        by_hand: list[str] = []
        scratch = stock.folder / f".cab-data-{data_set.name}"
        try:
            for item in data_set.items:
                if all(map(stock.has, item.gives)) and not _is_other(stock.folder / item.name, item):
                    continue
                place = _place(item, data_set, source)
                if place is None:
                    by_hand.append(item.by_hand)
                    continue
                _fetch(_Fetch(data_set, item, stock.folder, scratch, source), place)
                log.info("%s: %s is complete", data_set.name, item.name)
        except OSError as error:
            if not is_full_disk(error):
                raise
            raise UserError(f"no space left in {stock.folder}; free some and repeat the command to resume") from None
        finally:
            _remove_empty(scratch)
        return Got(take_stock(data_set, data_root), by_hand)


@contextmanager
def _alone(data_root: Path, name: str) -> Iterator[None]:
    """Hold the lock of the data set; other processes that need it wait."""
    key = hashlib.sha256(f"{data_root.resolve()}/{name}".encode()).hexdigest()[:16]
    with FileLock(cache_root() / f"data-{key}.lock"):
        yield


@dataclass(frozen=True)
class _Fetch:
    data_set: DataSet
    item: Item
    folder: Path
    scratch: Path
    source: str | None

    def record(self, entries: dict[str, dict[str, Any]]) -> None:
        add_to_record(self.folder, self.data_set.name, entries)


def _is_other(path: Path, item: Item) -> bool:
    """Return whether the file exists but has another checksum than the published one."""
    return item.sha256 is not None and path.is_file() and sha256_of(path) != item.sha256


def _place(item: Item, data_set: DataSet, source: str | None) -> str | Path | None:
    """Return the source of the item: a URL, a path, or None if it must be downloaded manually."""
    if source is None:
        return item.address
    if _is_address(source):
        return f"{source.rstrip('/')}/{item.name}"
    path = Path(source).expanduser()
    if not path.exists():
        raise UserError(f"--source {source} does not exist; name a file, a folder or a URL that starts with https://")
    if (path / item.name).is_file():
        return path / item.name
    if path.name == item.name or (item.address is None and sum(i.address is None for i in data_set.items) == 1):
        if path.is_file() or item.unpacks is not None:
            return path
        raise UserError(f"--source {source}: this folder does not contain {item.name}")
    return item.address


def _is_address(source: str) -> bool:
    return re.match(r"https?://", source) is not None


def _fetch(fetch: _Fetch, place: str | Path) -> None:
    item, scratch = fetch.item, fetch.scratch
    if isinstance(place, Path) and place.is_dir():
        _put_tree(fetch, place)
        return
    file = scratch / item.name
    digest = _fetch_file(fetch, place, file)
    entry = {"sha256": digest, "bytes": file.stat().st_size, "address": str(place)}
    try:
        _put(fetch, file)
    except UserError:
        if item.sha256 is None:  # a file with a verified checksum need not be downloaded again
            file.unlink(missing_ok=True)
        raise
    file.unlink(missing_ok=True)
    fetch.record({item.name: entry})


def _fetch_file(fetch: _Fetch, place: str | Path, file: Path) -> str:
    """Download or copy the item to ``file``, and return its SHA-256."""
    item = fetch.item
    if item.sha256 is not None and file.is_file() and sha256_of(file) == item.sha256:
        return item.sha256
    if isinstance(place, Path):
        digest = _copy(place, file, item)
    else:
        log.info("%s: fetching %s", fetch.data_set.name, place)
        digest = download(place, file, size=item.bytes, sha256=item.sha256)
    known = read_record(fetch.folder, fetch.data_set.name).get(item.name, {}).get("sha256", digest)
    if known != digest:
        log.warning("%s differs from the file that was recorded before", item.name)
    return digest


def _put(fetch: _Fetch, file: Path) -> None:
    """Move the content of the item to where the task reads it."""
    item, folder = fetch.item, fetch.folder
    if item.list_of is not None:
        _get_listed(fetch, _listed_names(fetch, file))
    elif item.table is not None:
        options = dict(item.table)
        dated_table(file, folder / options.pop("to"), **options)
    elif item.unpacks is not None:
        unpacked = fetch.scratch / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpack(file, unpacked)
        try:
            move_into(find_folder_of(unpacked, item.unpacks.get("folder_of")), folder / item.unpacks["to"])
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    else:
        if (folder / item.name).exists():
            log.warning("replacing %s, which is not the published file", folder / item.name)
        file.replace(folder / item.name)


def _listed_names(fetch: _Fetch, file: Path) -> list[str]:
    """Return the paths in a list of files.

    Raises:
        UserError: the list is not text, or contains a path that is outside the data set or that it contains twice.
    """
    item, base = fetch.item, fetch.source or str(fetch.item.list_of)
    try:
        names = file.read_text(encoding="utf-8").split()
    except UnicodeDecodeError:
        raise UserError(f"{item.name} is not a list of files: it is not UTF-8 text") from None
    for name in names:
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", name, re.ASCII):
            raise UserError(f"{item.name} contains '{sanitize_text(name):.80}', which is not a path below {base}")
        inner_path(name, of=item.name)
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    for name, count in Counter(names).items():
        if count > 1 or name in folders:
            raise UserError(f"{item.name} contains '{name}' twice: it is a different list")
    return names


def _copy(source: Path, target: Path, item: Item) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    try:
        shutil.copyfile(source, part)
        return accept(part, target, source=str(source), size=item.bytes, sha256=item.sha256)
    finally:
        part.unlink(missing_ok=True)


def _put_tree(fetch: _Fetch, source: Path) -> None:
    """Copy a folder that was unpacked manually."""
    options = fetch.item.unpacks or {}
    found = find_folder_of(source, options.get("folder_of"))
    ignored = shutil.ignore_patterns(*(f"{start}*" for start in RESERVED))
    shutil.copytree(found, fetch.folder / options["to"], dirs_exist_ok=True, ignore=ignored)


def _get_listed(fetch: _Fetch, names: list[str]) -> None:
    """Download the missing files of a list in parallel."""
    base = fetch.source or str(fetch.item.list_of)
    wanted = [name for name in names if not (fetch.folder / name).is_file()]
    log.info("%s: fetching %s files listed in %s", fetch.data_set.name, f"{len(wanted):,}", fetch.item.name)
    entries: dict[str, dict[str, Any]] = {}

    def fetch_one(name: str) -> None:
        address = f"{base.rstrip('/')}/{name}"
        file, target = fetch.scratch / name, fetch.folder / name
        if _is_address(address):
            digest = download(address, file, shown=False)
        else:
            digest = _copy(Path(address).expanduser(), file, Item(name=name, gives=()))
        target.parent.mkdir(parents=True, exist_ok=True)
        entries[name] = {"sha256": digest, "bytes": file.stat().st_size, "address": address}
        file.replace(target)

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        tasks = [pool.submit(fetch_one, name) for name in wanted]
        bar = tqdm(
            total=len(tasks), desc=fetch.item.name, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False
        )
        with bar:
            for task in as_completed(tasks):
                task.result()
                bar.update()
    finally:
        pool.shutdown(cancel_futures=True)
        fetch.record(entries)


def _remove_empty(folder: Path) -> None:
    """Remove the folder and its subfolders as far as they are empty."""
    if folder.is_dir():
        for path in folder.iterdir():
            _remove_empty(path)
        if not any(folder.iterdir()):
            folder.rmdir()
