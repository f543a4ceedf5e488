"""CSV file of the attention-pattern pairs that passed `cab verify`; a row holds for one state of the code.

Rows of this project's attentions are in `results/verified.csv`, all others in the cache.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from cab.files.cache import cache_root
from cab.files.disk import disk_errors, remove_leftovers, replacing, sanitize_csv_cell
from cab.files.locks import locked
from cab.patterns import pattern_rank
from cab.records.record import Record
from cab.registry.program import CAB, code_of, contract_of, joined, read

COMMITTED = CAB.with_name("results") / "verified.csv"

QUICK, FULL = "quick", "full"
VERIFIED_STATES = ("no", "unknown", "yes")
"""Whether the code of runs is verified, from worst to best."""

UNVERIFIED_MARK = "†"
"""Precedes the name of an unverified attention."""
UNVERIFIED_LEGEND = f"{UNVERIFIED_MARK} not verified: the code has not passed `cab verify` in this pattern"


@dataclass(frozen=True)
class VerifiedRow:
    """An attention that passed the checks in a pattern; docs/reference/result-schema.md describes each column."""

    attention: str
    pattern: str
    code_hash: str
    contract: str
    checks_hash: str
    torch_version: str
    mode: str
    max_tokens_checked: str
    package: str = ""

    @classmethod
    def of_today(
        cls, attention: str, pattern: str, subject: type, *, quick: bool, reach: Mapping[str, int]
    ) -> VerifiedRow:
        """Create the row of a class that passed the current checks with the installed version of torch."""
        return cls(
            attention=attention,
            pattern=pattern,
            code_hash=code_of(subject),
            contract=contract_of(subject),
            checks_hash=checks_hash(),
            torch_version=torch_version(),
            mode=QUICK if quick else FULL,
            max_tokens_checked=" ".join(f"{group}={length}" for group, length in reach.items() if length),
            package=package_of(subject),
        )

    def holds(self, subject: type, *, quick: bool) -> bool:
        """Return whether the row is current for a class and mode, so that checks need not be repeated."""
        return self.is_like(VerifiedRow.of_today(self.attention, self.pattern, subject, quick=quick, reach={}))

    def is_like(self, now: VerifiedRow) -> bool:
        """Return whether the row has the code, contract, checks, torch and package of a row of today, and its mode."""
        names = ("code_hash", "contract", "checks_hash", "torch_version", "package")
        return all(getattr(self, name) == getattr(now, name) for name in names) and self.mode in (FULL, now.mode)


VERIFIED_COLUMNS = tuple(field.name for field in dataclasses.fields(VerifiedRow))


@functools.cache
def torch_version() -> str:
    """Return the major and minor version of torch, without importing it."""
    return ".".join(version("torch").split(".")[:2])


def package_of(cls: type) -> str:
    """Return name and version of the package that a foreign module comes from, such as ``transformers 5.23.0``."""
    name = getattr(cls, "package", "")
    return f"{name} {version(name)}" if name else ""


@functools.cache
def checks_hash() -> str:
    """Return the digest of the checks, and of the claims that they read, without groups on demand."""
    folders = (CAB / name for name in ("verification", "claims"))
    return joined(sorted(read(path).digest for folder in folders for path in folder.glob("*.py")))


def is_verified(code: str, pattern: str) -> bool:
    """Return whether a row shows that this code passed the full checks in ``pattern`` with the installed torch."""
    return bool(code) and (code, pattern, torch_version()) in _passed()


def verified_codes() -> frozenset[tuple[str, str]]:
    """Return hash and pattern of every code that passed the full checks, with any version of torch."""
    return frozenset((code, pattern) for code, pattern, _ in _passed())


def _passed() -> frozenset[tuple[str, str, str]]:
    """Return hash, pattern and version of torch of every code that passed the full checks."""
    return _passed_in(*((path, _stamp(path)) for path in (COMMITTED, remembered())))


@functools.lru_cache(maxsize=1)
def _passed_in(*files: tuple[Path, tuple[int, ...]]) -> frozenset[tuple[str, str, str]]:
    """Read the files of :func:`_passed`; again if one was replaced, by this process or another."""
    rows = (row for path, _ in files for row in read_rows(path))
    return frozenset((row.code_hash, row.pattern, row.torch_version) for row in rows if row.mode == FULL)


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced; empty if it does not exist."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def verified_state(record: Record, verified: Container[tuple[str, str]]) -> str:
    """Return whether the code of a run is verified: ``no``, ``unknown`` (without a hash of the code) or ``yes``.

    Code that had passed when it was trained stays verified; code that passed later is found by its hash in
    ``verified``, the result of :func:`verified_codes`.
    """
    if record.verified:
        return "yes"
    if not record.attention_code:
        return "no" if record.verified is False else "unknown"
    return "yes" if (record.attention_code, record.cell["pattern"]) in verified else "no"


def mark_unverified(name: str, state: str) -> str:
    """Return the name, after a dagger if its code is not verified."""
    return f"{UNVERIFIED_MARK} {name}" if state == "no" else name


def remembered() -> Path:
    """Return the file in the cache to which `cab verify` writes rows by default."""
    return cache_root() / "verified.csv"


def read_rows(path: Path) -> list[VerifiedRow]:
    """Return the rows of a file; empty if it does not exist or has other columns."""
    if not has_columns(path):
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [VerifiedRow(*(row[name] or "" for name in VERIFIED_COLUMNS)) for row in csv.DictReader(file)]


def has_columns(path: Path) -> bool:
    """Return whether the file exists and has the columns of this table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return file.readline().strip() == ",".join(VERIFIED_COLUMNS)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def note(path: Path, row: VerifiedRow, *, passed: bool) -> None:
    """Replace the row of a pair unless the old row is current; remove it if the pair did not pass."""
    with disk_errors(cache_root()), locked(cache_root() / "verified.lock", "which notes what passed"):
        remove_leftovers(path.parent, path.name)
        rows = {(old.attention, old.pattern): old for old in read_rows(path)}
        old = rows.pop((row.attention, row.pattern), row)
        if passed:
            rows[row.attention, row.pattern] = old if old.is_like(row) else row
        write_rows(path, rows.values())


def write_rows(path: Path, rows: Iterable[VerifiedRow]) -> None:
    """Write the file atomically, sorted by attention and pattern."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(VERIFIED_COLUMNS)
        for row in sorted(rows, key=lambda row: (row.attention, pattern_rank(row.pattern))):
            writer.writerow(map(sanitize_csv_cell, dataclasses.astuple(row)))
    _passed_in.cache_clear()  # a file that is replaced twice at once can have the old stamp
