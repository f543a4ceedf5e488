"""Whether what lies on disk is a whole data set: counts, sizes and checksums, against what was published."""

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
from cab.files.cache import progress

BLOCK = 1 << 20


class State(StrEnum):
    MISSING = "missing"
    PARTIAL = "partial"
    READY = "ready"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Finding:
    """A count or a file beside what it should be; ``fault`` says what is wrong with it, however many there are."""

    field: str
    found: int
    expected: int
    source: str
    fault: str = ""

    @property
    def verdict(self) -> str:
        if self.fault:
            return self.fault
        if self.found == self.expected:
            return "complete"
        return f"{self.expected - self.found:,} missing" if self.found < self.expected else "more than published"

    @property
    def is_full(self) -> bool:
        return not self.fault and self.found == self.expected


@dataclass(frozen=True)
class Inventory:
    """What lies in ``folder``, the first of the data set's folders that has anything of it."""

    folder: Path
    findings: list[Finding]

    @property
    def state(self) -> State:
        if any(finding.fault or finding.found > finding.expected for finding in self.findings):
            return State.DAMAGED
        if all(finding.is_full for finding in self.findings):
            return State.READY
        return State.PARTIAL if any(finding.found for finding in self.findings) else State.MISSING

    def has(self, field: str) -> bool:
        """Whether a count is full."""
        return any(finding.is_full for finding in self.findings if finding.field == field)


def take_stock(data_set: DataSet, data_root: Path, *, thorough: bool = False) -> Inventory:
    """Count what lies below ``data_root``.

    Args:
        thorough: read every file too whose checksum is known or was recorded when it came, and tell empty ones.
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
            found = count.expected  # the published size: its lines need not be read to list it
        else:
            found, fault = _lines(path, count)
    return Finding(count.field, found, count.expected, count.source, fault)


def _lines(path: Path, count: Count) -> tuple[int, str]:
    """Lines after the header, an unfinished last one too; and what is wrong with the file."""
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
        return 0, f"{path.name} has {columns} columns, not {count.columns}: another edition"
    return max(0, lines + (last != b"\n") - count.header), ""


def _blocks(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def _checksums(data_set: DataSet, counted: Inventory) -> list[Finding]:
    """Whether files have the checksums that were recorded or, of what is whole, published; nothing where none is."""
    folder = counted.folder
    known = {name: str(entry["sha256"]) for name, entry in read_record(folder, data_set.name).items()}
    whole = [item for item in data_set.items if all(map(counted.has, item.gives))]
    known |= {item.name: item.sha256 for item in whole if item.sha256 is not None}
    paths = [folder / name for name in sorted(known) if (folder / name).is_file()]
    wrong = [path for path in progress(paths, "checksums") if sha256_of(path) != known[str(path.relative_to(folder))]]
    if not paths:
        return []
    fault = f"{wrong[0].name} is not the published file: other SHA-256" if wrong else ""
    return [Finding("checksums", len(paths) - len(wrong), len(paths), "published, or recorded when it came", fault)]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
