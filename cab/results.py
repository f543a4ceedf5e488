"""Result records: one immutable JSON file a finished run, and the table that is made of many.

A record is written to a temporary name and renamed, so a folder can be shared by many jobs with no lock and
never holds half a record of ours; files that are broken all the same are reported and left out.
"""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

SCHEMA = 1
DEFAULT_DIR = Path("results/local")
PUBLISHED = Path(__file__).resolve().parent.parent / "results" / "paper"
"""The published tables, as data with their sources."""

EXAMPLE_COMMAND = "cab run task=lstf dataset=synthetic backbone=informer attention=abc pattern=NC preset=smoke"
"""Leaves a first result within seconds and without any data: what a message about none suggests."""

CELL = ("task", "dataset", "variant", "backbone", "pattern", "attention", "preset", "seed")
"""What one run measures; ``variant`` tells apart runs of one data set, as univariate and multivariate."""

COLUMNS = (
    *CELL,
    "task_version",
    "metric",
    "value",
    "unit",
    "higher_is_better",
    "primary",
    "params",
    "train_seconds",
    "peak_memory_bytes",
    "revision",
    "hash",
    "file",
    "settings",
)
"""``settings``: JSON of task, backbone and trainer as the record has them; empty for what is no record."""

MACHINE_KEYS = ("checkpoint_every", "micro_batch_size", "num_workers", "strategy")
"""Keys of the trainer that suit a machine and are not part of what is measured."""


def cell_hash(config: Mapping[str, Any]) -> str:
    """The name of a run: 16 hexadecimal digits of the SHA-256 of its resolved configuration."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def record_path(results_dir: Path, digest: str) -> Path:
    """Where the record called ``digest`` lies; logs, checkpoints and pictures are in the folder beside it."""
    return results_dir / f"{digest}.json"


def weights_path(results_dir: Path, digest: str) -> Path:
    """The weights that a finished run was scored with: a state dict of the backbone, to read with ``torch.load``."""
    return results_dir / digest / "weights.pt"


def write_record(record: Mapping[str, Any], results_dir: Path) -> Path:
    """Write a record whole or not at all; it replaces an earlier one of the same hash."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", record["hash"]):
        raise UserError(f"'{record['hash']}' is not the hash of a cell: letters and digits")
    path = record_path(results_dir, record["hash"])
    results_dir.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=results_dir, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def read_record(path: Path) -> dict[str, Any]:
    """One record; UserError when the file is not a whole record of this schema."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"no record at {path}: name a <hash>.json of a results folder") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole result record ({error}); run the cell again") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UserError(f"{path} is not a result record of schema {SCHEMA}")
    missing = {"hash", "status", "cell", "metrics", "cost"} - record.keys()
    if missing:
        raise UserError(f"{path} lacks {', '.join(sorted(missing))}")
    return record


def load_results(sources: Iterable[str | Path] | str | Path = DEFAULT_DIR) -> pd.DataFrame:
    """Results as one table, a row a metric, with the columns :data:`COLUMNS`.

    Args:
        sources: folders of records, single records, or CSV files in the layout of ``results/paper/results.csv``
            (``pattern,task,backbone,dataset,metric,higher_is_better,attention,value``).

    Raises:
        ValueError: a source that does not exist. Broken records are warned about and left out.
    """
    import pandas as pd

    if isinstance(sources, (str, Path)):
        sources = [sources]
    rows: list[dict[str, Any]] = []
    for source in map(Path, sources):
        if not source.exists():
            raise UserError(f"no results at {source}: name a folder of records, a record or a CSV file")
        if source.is_dir():
            for path in sorted(source.glob("*.json")):
                rows += _rows_or_warning(path)
            if (source / "results.csv").exists():
                rows += _published_rows(source / "results.csv")
        elif source.suffix == ".csv":
            rows += _published_rows(source)
        else:
            rows += _record_rows(source)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows_or_warning(path: Path) -> list[dict[str, Any]]:
    try:
        return _record_rows(path)
    except UserError as error:
        log.warning("skipped: %s", error)
        return []


def _record_rows(path: Path) -> list[dict[str, Any]]:
    record = read_record(path)
    try:
        json.dumps([str(path), record["cell"], record["metrics"]], ensure_ascii=False).encode()
        shared = {name: record["cell"][name] for name in CELL}
        if not all(isinstance(shared[name], str) for name in CELL if name != "seed"):
            raise TypeError("a name in the cell is not text")
        shared |= {
            "task_version": record["task_version"],
            "params": record["cost"]["params"],
            "train_seconds": record["cost"]["train_seconds"],
            "peak_memory_bytes": record["cost"]["peak_memory_bytes"],
            "revision": record["revision"]["commit"],
            "hash": record["hash"],
            "file": str(path),
            "settings": _settings(record.get("config", {})),
        }
        return [
            shared
            | {
                "metric": metric["name"],
                "value": math.nan if metric["value"] is None else float(metric["value"]),
                "unit": metric["unit"],
                "higher_is_better": bool(metric["higher_is_better"]),
                "primary": bool(metric.get("primary", True)),
            }
            for metric in record["metrics"]
        ]
    except UnicodeError:  # JSON can spell halves of characters, which no table can hold
        raise UserError(f"{path} holds text that is not Unicode; run the cell again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a whole result record ({error!r}); run the cell again") from None


def _settings(config: Mapping[str, Any]) -> str:
    groups: dict[str, Any] = {name: config[name] for name in ("task", "backbone", "trainer") if name in config}
    if "trainer" in groups:
        groups["trainer"] = {name: value for name, value in groups["trainer"].items() if name not in MACHINE_KEYS}
    return sys.intern(json.dumps(groups, sort_keys=True))


def _published_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        needed = {"pattern", "task", "backbone", "dataset", "metric", "higher_is_better", "attention", "value"}
        lacking = needed - set(reader.fieldnames or ())
        if lacking:
            raise UserError(f"{path} lacks the columns {', '.join(sorted(lacking))}")
        return [_published_row(path, reader.line_num, row) for row in reader]


def _published_row(path: Path, line: int, row: Mapping[str, str | None]) -> dict[str, Any]:
    try:
        return {
            **{name: row.get(name) or "" for name in CELL},
            "preset": row.get("preset") or "published",
            "seed": int(row.get("seed") or 0),
            "task_version": 0,
            "metric": row["metric"],
            "value": float(row["value"]) if row["value"] else math.nan,
            "unit": "",
            "higher_is_better": {"1": True, "0": False}[row["higher_is_better"] or ""],
            "primary": True,
            "hash": "",
            "revision": "",
            "file": str(path),
            "settings": "",
        }
    except ValueError:
        raise UserError(f"{path}, line {line}: value '{row['value']}' or seed is not a number") from None
    except KeyError:
        raise UserError(f"{path}, line {line}: higher_is_better must be 1 or 0") from None
