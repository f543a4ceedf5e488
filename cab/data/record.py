"""Record of downloaded files with their sources and checksums, stored next to the data."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cab.data.names import inner_path
from cab.errors import UserError
from cab.files.replace import replacing


def record_file(folder: Path, name: str) -> Path:
    """Return the path of the record of a data set."""
    return folder / f"cab-data-{name}.json"


def read_record(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return ``sha256``, ``bytes``, ``address`` and ``when`` of each file, by its path relative to ``folder``.

    Raises:
        UserError: the file is not such a record.
    """
    path = record_file(folder, name)
    if not path.is_file():
        return {}
    try:
        entries = dict(json.loads(path.read_text(encoding="utf-8"))["files"])
        for file, entry in entries.items():
            if str(inner_path(file, of=path.name)) != file or not re.fullmatch("[0-9a-f]{64}", entry["sha256"]):
                raise ValueError(file)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} was not written by `cab data download`: delete it") from None
    return entries


def add_to_record(folder: Path, name: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add entries to the record, atomically."""
    if not entries:
        return
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    files = read_record(folder, name) | {file: {**entry, "when": when} for file, entry in entries.items()}
    path = record_file(folder, name)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"data_set": name, "files": dict(sorted(files.items()))}, indent=1) + "\n")
