"""What came from where, with its checksum: a small file beside the data."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cab.errors import UserError


def record_file(folder: Path, name: str) -> Path:
    return folder / f"cab-data-{name}.json"


def read_record(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """The entries by file name, relative to ``folder``: ``sha256``, ``bytes``, ``address`` and ``when``.

    Raises:
        ValueError: a file that is no record.
    """
    path = record_file(folder, name)
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_text())["files"]
        assert all("sha256" in entry for entry in entries.values())
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise UserError(f"{path} is not what cab data download wrote: delete it") from None
    return dict(entries)


def add_to_record(folder: Path, name: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what came just now among what came before, whole or not at all."""
    if not entries:
        return
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    files = read_record(folder, name) | {file: {**entry, "when": when} for file, entry in entries.items()}
    path = record_file(folder, name)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"data_set": name, "files": dict(sorted(files.items()))}, indent=1) + "\n")
    unfinished.replace(path)
