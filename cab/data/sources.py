"""Read and check the descriptions of data sets in `configs/data/*.yaml`."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cab.errors import UserError, unknown_name
from cab.files.disk import user_path
from cab.registry.tables import config_folders


@dataclass(frozen=True, kw_only=True)
class Item:
    """One file to download.

    Attributes:
        name: file name, at its host and on a mirror.
        address: URL; None if it must be downloaded manually.
        by_hand: instructions for a manual download.
        bytes: published size, if known.
        sha256: published checksum, if known.
        source: source of the size and checksum.
        gives: counts that are complete with this item.
        list_of: base URL, for a list of files with one path per line.
        unpacks: for an archive: target folder ``to``; with ``folder_of``, only the folder that contains a file or
            folder of this name is extracted.
        table: for a gzipped table without a header: arguments of :func:`cab.data.download.dated_table`.
    """

    name: str
    address: str | None = None
    by_hand: str = ""
    bytes: int | None = None
    sha256: str | None = None
    source: str = ""
    gives: Sequence[str]
    list_of: str | None = None
    unpacks: Mapping[str, str] | None = None
    table: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Count:
    """A published number of files, or of lines of a file.

    Attributes:
        field: what is counted.
        files: glob patterns of the counted files; the first that matches is used.
        lines: paths of the file with the counted lines; the first that exists is used.
        header: number of header lines.
        columns: number of columns of the first line, if checked.
        expected: the published number.
        source: source of this number.
    """

    field: str
    files: Sequence[str] = ()
    lines: Sequence[str] = ()
    header: int = 0
    columns: int | None = None
    expected: int
    source: str


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A published data set.

    Attributes:
        disk_bytes: size on disk, if known.
        folders: folders below the data root where tasks look for it; downloads go to the first.
    """

    name: str
    title: str
    tasks: Sequence[str]
    homepage: str
    license: str
    license_notes: str
    disk_bytes: int | None = None
    folders: Sequence[str]
    items: Sequence[Item]
    counts: Sequence[Count]

    @property
    def patterns(self) -> list[str]:
        """Glob patterns of all counted files, those with counted lines included."""
        return [pattern for count in self.counts for pattern in (*count.files, *count.lines)]

    @property
    def has_manual_item(self) -> bool:
        """Whether an item must be downloaded manually."""
        return any(item.address is None for item in self.items)


@functools.cache
def data_sets() -> dict[str, DataSet]:
    """Return all data sets by name, sorted; this repository has precedence over other packages."""
    sets: dict[str, DataSet] = {}
    for folder in config_folders():
        for path in (folder / "data").glob("*.yaml"):
            sets.setdefault(path.stem, _read(path))
    return dict(sorted(sets.items()))


def data_set(name: str) -> DataSet:
    """Return the data set called ``name``; UserError if there is none."""
    if name not in data_sets():
        raise unknown_name("data set", name, data_sets())
    return data_sets()[name]


def _read(path: Path) -> DataSet:
    try:
        fields = yaml.safe_load(path.read_text())
        items = [Item(**item) for item in fields.pop("items")]
        counts = [Count(**count) for count in fields.pop("counts")]
        return DataSet(name=path.stem, items=items, counts=counts, **fields)
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a valid description of a data set: {' '.join(str(error).split())}") from None


def chosen_root(named: str | None) -> Path | None:
    """Return the named data root, or that of ``CAB_DATA``."""
    root = named or os.environ.get("CAB_DATA")
    return user_path(root) if root else None


def fetch_hint(name: str, data_root: Path | None) -> str:
    """Return the command that downloads a data set, for error messages."""
    return f"cab data download {name} --data-root {'FOLDER' if data_root is None else shlex.quote(str(data_root))}"
