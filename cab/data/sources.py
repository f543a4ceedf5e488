"""What is known of each data set: `configs/data/*.yaml`, read and checked."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cab.config.folders import config_folders
from cab.errors import UserError, unknown_name


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing to fetch.

    Attributes:
        name: of the file, at its host as on a mirror.
        address: where its host has it; None where only a person can get it.
        by_hand: what that person does.
        bytes, sha256: where they are known; ``source`` says from where.
        gives: the counts that are full when it is here.
        list_of: the item is a list, a path a line, of files below this address.
        unpacks: the item is an archive: ``to`` a folder goes what lies ``beside`` a file or folder of that name in it,
            or all of it.
        table: the item is a gzipped table without a header: what :func:`cab.data.prepare.dated_table` is told.
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
    """A number that the publication names: of files, or of lines of a file after its ``header``.

    The first of the patterns that finds something counts. ``columns`` is how many the first line has.
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
    """A data set; ``folders`` below the data root are where a task looks, the first is where it is put."""

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
    def by_hand(self) -> bool:
        """Whether a part of it can be had by hand alone."""
        return any(item.address is None for item in self.items)

    @property
    def download_bytes(self) -> int | None:
        """Of all its items, where each is known."""
        known = [item.bytes for item in self.items]
        return None if None in known else sum(size for size in known if size is not None)


@functools.cache
def data_sets() -> dict[str, DataSet]:
    """All of them by name, in the order of the names; what two packages have is the first one's."""
    found: dict[str, DataSet] = {}
    for folder in config_folders():
        for path in sorted((folder / "data").glob("*.yaml")):
            found.setdefault(path.stem, _read(path))
    return dict(sorted(found.items()))


def data_set(name: str) -> DataSet:
    """UserError for a name that does not exist."""
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
        raise UserError(f"{path} does not describe a data set: {' '.join(str(error).split())}") from None


def chosen_root(named: str | None) -> Path | None:
    """The data root that is named, or that of ``CAB_DATA``."""
    root = named or os.environ.get("CAB_DATA")
    return Path(root).expanduser() if root else None


def how_to_get(name: str, data_root: Path | None) -> str:
    """The first thing to do where a data set is missing, for the message that says so."""
    return f"cab data download {name} --data-root {'FOLDER' if data_root is None else shlex.quote(str(data_root))}"


def readable_size(count: int) -> str:
    """Bytes in the units of decimal prefixes, as publications give them.

    >>> readable_size(2_589_657)
    '2.6 MB'
    """
    for unit, digits in (("GB", 9), ("MB", 6)):
        if count >= 10**digits:
            return f"{count / 10**digits:.1f} {unit}"
    return f"{count / 1000:.0f} kB"
