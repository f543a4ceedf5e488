"""Which attentions passed `cab verify` in which patterns: rows of a CSV file, each true of one state of the code.

The rows of this project's own attentions are committed, `results/verified.csv`; what is verified elsewhere is
remembered in the cache.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from cab.files.cache import cache_root
from cab.files.sanitize import sanitize_csv_cell
from cab.patterns import pattern_rank
from cab.records.code_hash import attention_hash, checks_hash
from cab.registry.registries import STANDALONE

COMMITTED = Path(__file__).resolve().parents[2] / "results" / "verified.csv"

QUICK, FULL = "quick", "full"


@dataclass(frozen=True)
class Row:
    """An attention that passed in a pattern.

    Attributes:
        code_hash: hash of the attention's code, :func:`cab.records.code_hash.attention_hash`.
        checks_hash: hash of the checks that it passed.
        torch_version: version, as ``2.13``.
        mode: ``quick`` or ``full``; neither measures time, which depends on the machine.
        max_tokens_checked: tokens of the longest sequence that each group of checks looked at, as ``causality=4133
        growth=8192``.
    """

    attention: str
    pattern: str
    code_hash: str
    checks_hash: str
    torch_version: str
    mode: str
    max_tokens_checked: str

    @classmethod
    def of_today(cls, attention: str, pattern: str, code: str, *, quick: bool, reach: Mapping[str, int]) -> Row:
        """The row of a pair that was held to the checks as they are, under the torch that is here."""
        looked = " ".join(f"{group}={length}" for group, length in reach.items() if length)
        return cls(attention, pattern, code, checks_hash(), torch_version(), QUICK if quick else FULL, looked)

    def holds(self, code: str, *, quick: bool) -> bool:
        """Whether verifying this code today, in this form, would repeat what the row says."""
        same = (self.code_hash, self.checks_hash, self.torch_version) == (code, checks_hash(), torch_version())
        return same and (quick or self.mode == FULL)


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


@functools.cache
def torch_version() -> str:
    """Major and minor, without importing it."""
    return ".".join(version("torch").split(".")[:2])


def code_of(cls: type) -> str:
    """The hash of the class's code; empty where no file has it, as in an interactive session.

    Raises:
        OSError, SyntaxError: a file that is no longer what was imported.
    """
    return "" if "<locals>" in cls.__qualname__ else _code_of(cls.__module__, cls.__qualname__)


@functools.cache
def _code_of(module: str, qualname: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or not file.endswith(".py"):
        return ""
    return attention_hash(qualname, Path(file), None if module in STANDALONE else module)


def is_verified(code: str, pattern: str) -> bool:
    """Whether this code passed the whole suite in ``pattern`` with this torch: a row says so, committed or cached."""
    said = (code, pattern, torch_version(), FULL)
    rows = [row for path in (COMMITTED, remembered()) for row in read_rows(path)]
    return bool(code) and any((row.code_hash, row.pattern, row.torch_version, row.mode) == said for row in rows)


def remembered() -> Path:
    """Where `cab verify` notes what passed, unless it is told where."""
    return cache_root() / "verified.csv"


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none where there is no file, or one of something else."""
    if not has_columns(path):
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [Row(*(row[name] or "" for name in COLUMNS)) for row in csv.DictReader(file)]


def has_columns(path: Path) -> bool:
    """Whether there is a file, and it begins as one of verifications does."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return file.readline().strip() == ",".join(COLUMNS)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def note(path: Path, row: Row, *, passed: bool) -> None:
    """Replace what the file says of a pair, unless that says more; a pair that did not pass has no row."""
    with FileLock(cache_root() / "verified.lock"):
        rows = {(old.attention, old.pattern): old for old in read_rows(path)}
        old = rows.pop((row.attention, row.pattern), row)
        if passed:
            rows[row.attention, row.pattern] = old if old.holds(row.code_hash, quick=row.mode == QUICK) else row
        write_rows(path, rows.values())


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the file whole or not at all, by attention and pattern."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in sorted(rows, key=lambda row: (row.attention, pattern_rank(row.pattern))):
            writer.writerow(map(sanitize_csv_cell, dataclasses.astuple(row)))
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)
