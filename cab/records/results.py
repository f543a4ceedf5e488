"""Load records, or published results in CSV files, as one table."""

from __future__ import annotations

import csv
import dataclasses
import functools
import gc
import logging
import math
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.files.disk import listed
from cab.files.text_table import csv_errors
from cab.records.record import CELL, COMMITTED_DIRS, REFERENCE_DIRS, Record, Status, record_path
from cab.records.verified import LEGEND, verdict, verified_codes
from cab.registry.registries import ATTENTIONS, is_file
from cab.registry.sources import attention_hash
from cab.registry.tables import run_defaults

if TYPE_CHECKING:
    import pandas as pd


log = logging.getLogger(__name__)

DEFAULT_DIR = Path(run_defaults()["results_dir"])
PAPER_DIR = Path(__file__).resolve().parents[2] / "results" / "paper"
"""Tables of the paper, with their sources."""
CORE_DIR, MINI_DIR = REFERENCE_DIRS
PUBLISHED = "published"
"""Preset of CSV files that do not specify one."""

COLUMNS = (
    *CELL, "task_version", "metric", "value", "unit", "higher_is_better", "primary", "at_length", "status",
    "params", "train_seconds", "peak_memory_bytes", "revision", "verified", "hash", "file", "record",
)  # fmt: skip
"""``verified`` is ``yes``, ``no`` or ``unknown`` (see :func:`cab.records.verified.verdict`). ``record`` is the
:class:`cab.records.record.Record`. For rows of CSV files it is None, and ``hash`` is empty."""


def load_results(sources: Iterable[str | Path] | str | Path = DEFAULT_DIR) -> pd.DataFrame:
    """Load results as one table with one row per metric and the columns :data:`COLUMNS`.

    Invalid records are skipped with a warning. Results of different code under one name have different names.

    Args:
        sources: folders of records, single records, or CSV files with the columns of ``results/paper/results.csv``
            (``pattern,task,backbone,dataset,metric,higher_is_better,attention,value``).

    Raises:
        UserError: a source does not exist.
    """
    return read_results(sources)[0]


def read_results(sources: Iterable[str | Path] | str | Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the table of :func:`load_results`, and one message per skipped record."""
    records: list[tuple[Path, Record]] = []
    published: list[tuple[Any, ...]] = []
    skipped: list[str] = []
    gc.disable()  # collection would take a quarter of the time for thousands of records
    try:
        for source in map(Path, [sources] if isinstance(sources, (str, Path)) else sources):
            if not source.exists():
                raise UserError(f"{source} does not exist: name a folder of records, a record or a CSV file")
            if source.is_dir():
                records += whole_records(source, skipped)
            elif source.suffix != ".csv":
                records.append((source, Record.read(source)))
            table = source / "results.csv" if source.is_dir() else source
            if table.suffix == ".csv" and table.exists():
                published += _published_rows(table)
        return _with_names_of_programs(_table(records, published)), skipped
    finally:
        gc.enable()


def with_reference_results(results: pd.DataFrame) -> pd.DataFrame:
    """Add the reference results of attentions and seeds that ``results`` lacks.

    Of the folders in :data:`REFERENCE_DIRS`, the first with a result on a data set with a backbone and a pattern counts
    for these, because the next may have been trained with other settings.
    """
    import pandas as pd

    columns = [name for name in CELL if name not in ("attention", "seed")]
    reference = _table([])
    for folder in filter(Path.is_dir, REFERENCE_DIRS):
        others = _without(read_results(folder)[0], reference, columns)
        reference = pd.concat([reference, others], ignore_index=True) if len(reference) else others
    others = _without(reference, results, list(CELL))
    return _with_names_of_programs(pd.concat([results, others], ignore_index=True)) if len(results) else others


def _without(table: pd.DataFrame, other: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return the rows whose values in these columns do not occur in the other table."""
    import pandas as pd

    return table[~pd.MultiIndex.from_frame(table[columns]).isin(pd.MultiIndex.from_frame(other[columns]))]


def _with_names_of_programs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with one name per program, see :func:`separate_programs`."""
    records = [record for record in table["record"] if record is not None]
    names = separate_programs(records)
    if not names:
        return table
    keys = [record and (record.cell["attention"], record.attention_code) for record in table["record"]]
    return table.assign(attention=[names.get(key, name) for key, name in zip(keys, table["attention"], strict=True)])


def separate_programs(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """Return the name in tables of each program that shares the name of an attention with another one.

    The names are by attention and hash of its code. The installed code of a registered attention keeps the name,
    otherwise the newest program. The name of any other is followed by its hash, so that results of different code are
    never averaged.
    """
    started: dict[str, dict[str, str]] = {}
    for record in records:
        if record.attention_code:
            programs = started.setdefault(str(record.cell["attention"]), {})
            programs[record.attention_code] = max(record.started, programs.get(record.attention_code, ""))
    names: dict[tuple[str, str], str] = {}
    for attention, programs in started.items():
        if len(programs) > 1:
            installed = installed_code(attention.partition("(")[0])
            named = max(programs, key=lambda code: (code == installed, programs[code], code))
            names |= {(attention, code): f"{attention} [{code[:8]}]" for code in programs if code != named}
            log.warning(
                "%s has results of %d programs: %s; those of older ones are separate rows. Delete their records, or "
                "rerun their cells with force=true", attention, len(programs), ", ".join(code[:8] for code in programs),
            )  # fmt: skip
    return names


def with_program_names(records: Iterable[Record]) -> list[Record]:
    """Return the records with the names of :func:`separate_programs`."""
    records = list(records)
    names = separate_programs(records)
    keys = [(record.cell["attention"], record.attention_code) for record in records]
    return [
        dataclasses.replace(record, cell={**record.cell, "attention": names[key]}) if key in names else record
        for record, key in zip(records, keys, strict=True)
    ]


@functools.cache
def installed_code(attention: str) -> str:
    """Return the hash of the code of a registered attention; empty if it is not installed."""
    if is_file(attention) or attention not in ATTENTIONS:
        return ""
    location = ATTENTIONS.get(attention).location
    return "" if location.file is None else attention_hash(location.qualname, location.file, location.module)


def table_of(records: Iterable[Record]) -> pd.DataFrame:
    """Return the table of :func:`load_results` for ``records``; ``file`` is the file name of each."""
    return _with_names_of_programs(_table([(record_path(Path(), record.hash), record) for record in records]))


def _table(records: Iterable[tuple[Path, Record]], published: Iterable[tuple[Any, ...]] = ()) -> pd.DataFrame:
    import pandas as pd

    verified = verified_codes()
    rows = [row for path, record in records for row in _record_rows(path, record, verified)]
    return pd.DataFrame([*rows, *published], columns=list(COLUMNS))


def whole_records(folder: Path, skipped: list[str]) -> list[tuple[Path, Record]]:
    """Return the records in ``folder``, sorted by cell; log each broken one and add a line to ``skipped``.

    Records of this repository are read once per process, and count as results of the installed code, which gives the
    same scores.
    """
    records = []
    is_committed = folder.resolve() in COMMITTED_DIRS
    for path in sorted(folder.glob("*.json")):
        try:
            record = _read_once(path) if is_committed else Record.read(path)
        except UserError as error:
            skipped.append(f"skipped: {error}")
            log.warning("%s", skipped[-1])
            continue
        code = installed_code(record.config["attention"]["name"]) if is_committed else ""
        records.append((path, dataclasses.replace(record, attention_code=code or record.attention_code)))
    return sorted(records, key=lambda pair: ([pair[1].cell[name] for name in CELL], pair[1].started))


_read_once = functools.cache(Record.read)


def _record_rows(path: Path, record: Record, verified: Container[tuple[str, str]]) -> list[tuple[Any, ...]]:
    cost = record.cost
    cell = (*(record.cell[name] for name in CELL), record.task_version)
    run = (str(record.status), cost.params, cost.train_seconds, cost.peak_memory_bytes)
    source = (record.revision["commit"], verdict(record, verified), record.hash, str(path), record)
    return [
        (
            *(*cell, metric.name, math.nan if metric.value is None else float(metric.value), metric.unit),
            *(metric.higher_is_better, metric.primary, metric.at_length, *run, *source),
        )
        for metric in record.metrics
    ]


def _published_rows(path: Path) -> list[tuple[Any, ...]]:
    with csv_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        needed = {"pattern", "task", "backbone", "dataset", "metric", "higher_is_better", "attention", "value"}
        lacking = needed - set(reader.fieldnames or ())
        if lacking:
            raise UserError(f"{path} has no columns {', '.join(sorted(lacking))}; add them")
        return [_published_row(path, reader.line_num, row) for row in reader]


def _published_row(path: Path, line: int, row: Mapping[str, str | None]) -> tuple[Any, ...]:
    try:
        fields: dict[str, Any] = {
            **{name: row.get(name) or "" for name in (*CELL, "metric")},
            "preset": row.get("preset") or PUBLISHED,
            "seed": int(row.get("seed") or 0),
            "value": float(row["value"]) if row["value"] else math.nan,
            "higher_is_better": {"1": True, "0": False}[row["higher_is_better"] or ""],
        }
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{path}, line {line}: value and seed must be numbers, and higher_is_better 1 or 0, got {error}"
        ) from None
    fields |= {"task_version": 0, "unit": "", "primary": True, "status": str(Status.FINISHED)}
    fields |= {"revision": "", "verified": "unknown", "hash": "", "file": str(path)}
    return tuple(fields.get(name) for name in COLUMNS)


_VERDICTS = ("no", "unknown", "yes")
"""Ordered from worst to best."""


def verdicts(results: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the worst verdict of the runs of each (pattern, attention): ``no``, ``unknown`` or ``yes``."""
    worst: dict[tuple[str, str], str] = {}
    rows = results[["pattern", "attention", "verified"]].itertuples(index=False, name=None)
    for pattern, attention, verdict_of_row in dict.fromkeys(rows):
        key = (pattern, attention)
        worst[key] = min(verdict_of_row, worst.get(key, verdict_of_row), key=_VERDICTS.index)
    return worst


def legend(results: pd.DataFrame) -> list[str]:
    """Return notes on unverified names in a table of ``results``; published results are excluded."""
    worst = verdicts(results[results["preset"] != PUBLISHED])
    unknown = sorted({attention for (_, attention), verdict in worst.items() if verdict == "unknown"})
    lines = [LEGEND] if "no" in worst.values() else []
    return lines + ([f"the results do not record whether these are verified: {listed(unknown)}"] if unknown else [])
