"""Compare a data set on disk with the published counts, sizes and checksums."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cab.data.record import read_record
from cab.data.sources import Count, DataSet
from cab.files.cache import checksums, progress

BLOCK = 1 << 20


class State(StrEnum):
    """State of a data set on disk."""

    MISSING = "missing"
    PARTIAL = "partial"
    READY = "ready"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Finding:
    """A count compared with its published value.

    Attributes:
        field: what is counted, such as ``training books``.
        found: count on disk.
        expected: published count.
        source: source of the published count.
        fault: problem that makes the data set invalid whatever the count; empty if none.
    """

    field: str
    found: int
    expected: int
    source: str
    fault: str = ""

    @property
    def verdict(self) -> str:
        """The fault, ``complete``, or the difference from the published count."""
        if self.fault:
            return self.fault
        if self.found == self.expected:
            return "complete"
        return f"{self.expected - self.found:,} missing" if self.found < self.expected else "more than published"

    @property
    def is_full(self) -> bool:
        """Whether the count is the published one, without a fault."""
        return not self.fault and self.found == self.expected


@dataclass(frozen=True)
class Inventory:
    """The findings for the files in ``folder``, the first of the data set's folders that contains any of its files."""

    folder: Path
    findings: list[Finding]

    @property
    def state(self) -> State:
        """The state that follows from the findings."""
        if any(finding.fault or finding.found > finding.expected for finding in self.findings):
            return State.DAMAGED
        if all(finding.is_full for finding in self.findings):
            return State.READY
        return State.PARTIAL if any(finding.found for finding in self.findings) else State.MISSING

    def has(self, field: str) -> bool:
        """Return whether the count called ``field`` is complete."""
        return any(finding.is_full for finding in self.findings if finding.field == field)


def take_stock(data_set: DataSet, data_root: Path, *, thorough: bool = False) -> Inventory:
    """Count the files and lines of a data set below ``data_root``.

    Args:
        data_set: the data set.
        data_root: folder of all data sets.
        thorough: also verify all published and recorded checksums, and report empty files.
    """
    folder = _folder(data_set, data_root)
    findings = [_count(count, folder, data_set, thorough=thorough) for count in data_set.counts]
    if thorough:
        findings += _checksums(data_set, Inventory(folder, findings))
    return Inventory(folder, findings)


def _folder(data_set: DataSet, data_root: Path) -> Path:
    folders = [data_root / name for name in data_set.folders]
    patterns = [pattern for count in data_set.counts for pattern in (*count.files, *count.lines)]
    return next((folder for folder in folders if any(any(folder.glob(p)) for p in patterns)), folders[0])


def _count(count: Count, folder: Path, data_set: DataSet, *, thorough: bool) -> Finding:
    found, fault = 0, ""
    for pattern in count.files:
        files = list(folder.glob(pattern))
        if files:
            empty = [path for path in files if thorough and path.stat().st_size == 0]
            found, fault = len(files), f"{empty[0]} is empty" if empty else ""
            break
    path = next((folder / name for name in count.lines if (folder / name).is_file()), None)
    if path is not None:
        sizes = {item.name: item.bytes for item in data_set.items}
        if not thorough and sizes.get(path.name) == path.stat().st_size:
            found = count.expected  # the file has the published size: skip counting its lines
        else:
            found, fault = _lines(path, count)
    return Finding(count.field, found, count.expected, count.source, fault)


def _lines(path: Path, count: Count) -> tuple[int, str]:
    """Return the number of lines after the header, including an unterminated last line; and the fault of the file."""
    lines, first, last = 0, b"", b"\n"
    try:
        for block in _blocks(path):
            if b"\n" not in first:
                first += block
            lines, last = lines + block.count(b"\n"), block[-1:]
    except (EOFError, OSError, zlib.error) as error:
        return 0, f"{path.name} cannot be read: {' '.join(str(error).split())}"
    columns = first.split(b"\n", 1)[0].count(b",") + 1
    if count.columns is not None and columns != count.columns:
        return 0, f"{path.name} has {columns} columns instead of {count.columns}: a different edition"
    return max(0, lines + (last != b"\n") - count.header), ""


def _blocks(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def _checksums(data_set: DataSet, counted: Inventory) -> list[Finding]:
    """Compare files with the recorded checksums and, for complete items, the published ones; empty if none is known."""
    folder = counted.folder
    known = {name: str(entry["sha256"]) for name, entry in read_record(folder, data_set.name).items()}
    whole = [item for item in data_set.items if all(map(counted.has, item.gives))]
    known |= {item.name: item.sha256 for item in whole if item.sha256 is not None}
    names = [name for name in sorted(known) if (folder / name).is_file()]
    wrong = [name for name in progress(names, "checksums") if sha256_of(folder / name) != known[name]]
    if not names:
        return []
    fault = f"{Path(wrong[0]).name} is not the published file: its SHA-256 differs" if wrong else ""
    return [Finding("checksums", len(names) - len(wrong), len(names), "published, or recorded at download", fault)]


def unpublished_files(data_set: DataSet, data_root: Path) -> list[str]:
    """Return the names of files that tasks read as they were published, but whose checksum is another one."""
    folder = _folder(data_set, data_root)
    items = [item for item in data_set.items if item.sha256 and not (item.list_of or item.unpacks or item.table)]
    published = {folder / item.name: item.sha256 for item in items if (folder / item.name).is_file()}
    found = checksums(list(published))
    return sorted(path.name for path, sha256 in published.items() if not (sha256 or "").startswith(found[path.name]))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
