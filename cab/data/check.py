"""Compare a data set on disk with the published counts, sizes and checksums."""

from __future__ import annotations

import datetime
import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cab.data.sources import Count, DataSet
from cab.errors import UserError, first_line
from cab.files.cache import checksums, progress, sha256_of
from cab.files.disk import replacing, visible_files
from cab.files.text_table import counted


class State(StrEnum):
    """State of a data set on disk."""

    MISSING = "missing"
    PARTIAL = "partial"
    READY = "ready"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Finding:
    """A count on disk, such as of ``training books``, compared with its published value.

    A ``fault`` makes the data set invalid whatever the count.
    """

    field: str
    actual: int
    published: int
    source: str
    fault: str = ""

    @property
    def outcome(self) -> str:
        """The fault, ``complete``, or the difference from the published count."""
        if self.fault or self.is_complete:
            return self.fault or "complete"
        missing = self.published - self.actual
        return f"{missing:,} missing" if missing > 0 else "more than published"

    @property
    def is_complete(self) -> bool:
        """Whether the count is the published one, without a fault."""
        return not self.fault and self.actual == self.published


@dataclass(frozen=True)
class Inventory:
    """The findings for the files in ``folder``, the first of the data set's folders that contains any of its files."""

    folder: Path
    findings: list[Finding]

    @property
    def state(self) -> State:
        """The state that follows from the findings."""
        if any(finding.fault or finding.actual > finding.published for finding in self.findings):
            return State.DAMAGED
        if all(finding.is_complete for finding in self.findings):
            return State.READY
        return State.PARTIAL if any(finding.actual for finding in self.findings) else State.MISSING

    def has(self, field: str) -> bool:
        """Return whether the count called ``field`` is complete."""
        return any(finding.is_complete for finding in self.findings if finding.field == field)


def take_inventory(data_set: DataSet, data_root: Path, *, thorough: bool = False) -> Inventory:
    """Count the files and lines of a data set below ``data_root``.

    With ``thorough``, also verify all published and recorded checksums, and report empty files.
    """
    folder = _folder(data_set, data_root)
    findings = []
    for count in data_set.counts:
        actual, fault = (_count_files if count.files else _count_lines)(count, folder, data_set, thorough=thorough)
        findings.append(Finding(count.field, actual, count.expected, count.source, fault))
    if thorough:
        findings += _checksums(data_set, Inventory(folder, findings))
    return Inventory(folder, findings)


def is_present(data_set: DataSet, data_root: Path) -> bool:
    """Return whether a part of the data set is below ``data_root``, without counting or reading it."""
    return any(map(any, map(_folder(data_set, data_root).glob, data_set.patterns)))


def _folder(data_set: DataSet, data_root: Path) -> Path:
    folders = [data_root / name for name in data_set.folders]
    return next((folder for folder in folders if any(map(any, map(folder.glob, data_set.patterns)))), folders[0])


def _count_files(count: Count, folder: Path, _: DataSet, *, thorough: bool) -> tuple[int, str]:
    """Return the number of files, and the fault of one of them."""
    files = next(filter(None, (visible_files(folder, pattern) for pattern in count.files)), [])
    empty = [path for path in files if thorough and path.stat().st_size == 0]
    return len(files), f"{empty[0]} is empty" if empty else ""


def _count_lines(count: Count, folder: Path, data_set: DataSet, *, thorough: bool) -> tuple[int, str]:
    """Return the number of lines after the header, including an unterminated last line; and the fault of the file."""
    path = next((folder / name for name in count.lines if (folder / name).is_file()), None)
    if path is None:
        return 0, ""
    if not thorough and (path.name, path.stat().st_size) in {(item.name, item.bytes) for item in data_set.items}:
        return count.expected, ""  # the file has the published size: skip counting its lines
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.readline()
            lines = sum(1 for _ in file) + bool(header)
    except (EOFError, OSError, zlib.error) as error:
        return 0, f"{path.name} cannot be read: {first_line(error)}"
    columns = header.count(b",") + 1
    if count.columns is not None and columns != count.columns:
        return 0, f"{path.name} has {counted(columns, 'column')} instead of {count.columns}: a different edition"
    return max(0, lines - count.header), ""


def _checksums(data_set: DataSet, inventory: Inventory) -> list[Finding]:
    """Compare files with the recorded checksums and, for complete items, the published ones; empty if none is known."""
    folder = inventory.folder
    expected = {name: str(entry["sha256"]) for name, entry in read_record(folder, data_set.name).items()}
    complete = [item for item in data_set.items if all(map(inventory.has, item.gives))]
    expected |= {item.name: item.sha256 for item in complete if item.sha256 is not None}
    names = [name for name in sorted(expected) if (folder / name).is_file()]
    if not names:
        return []
    wrong = [name for name in progress(names, "checksums") if sha256_of(folder / name) != expected[name]]
    fault = f"{Path(wrong[0]).name} is not the published file: its SHA-256 differs" if wrong else ""
    return [Finding("checksums", len(names) - len(wrong), len(names), "published, or recorded at download", fault)]


def unpublished_files(data_set: DataSet, data_root: Path) -> list[str]:
    """Return the names of files that tasks read as they were published, but whose checksum is another one."""
    folder = _folder(data_set, data_root)
    items = [item for item in data_set.items if item.sha256 and not (item.list_of or item.unpacks or item.table)]
    published = {folder / item.name: item.sha256 for item in items if (folder / item.name).is_file()}
    actual = checksums(list(published))
    return sorted(path.name for path, sha256 in published.items() if not (sha256 or "").startswith(actual[path.name]))


def read_record(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return ``sha256``, ``bytes``, ``address`` and ``when`` of each downloaded file, by its path in ``folder``."""
    path = folder / f"cab-data-{name}.json"
    if not path.is_file():
        return {}
    try:
        entries = dict(json.loads(path.read_text(encoding="utf-8"))["files"])
        if all(re.fullmatch("[0-9a-f]{64}", entry["sha256"]) for entry in entries.values()):
            return entries
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path} was not written by `cab data download`: delete it")


def add_to_record(folder: Path, name: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add downloaded files to the record of a data set, atomically."""
    if not entries:
        return
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    files = read_record(folder, name) | {file: {**entry, "when": when} for file, entry in entries.items()}
    with replacing(folder / f"cab-data-{name}.json") as temporary:
        temporary.write_text(json.dumps({"data_set": name, "files": dict(sorted(files.items()))}, indent=1) + "\n")
