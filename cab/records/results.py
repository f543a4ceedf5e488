"""Load records, or published results in CSV files, as one table."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.files.disk import listed
from cab.files.text_table import csv_rows, parse_number
from cab.patterns import Pattern
from cab.records.files import COMMITTED_DIRS, REFERENCE_DIRS, record_paths
from cab.records.identity import changed_modules, value_changes
from cab.records.record import CELL, COMPARISON_KEY, Record, Status
from cab.records.verified import LEGEND, verdict, verified_codes
from cab.registry.names import is_file
from cab.registry.program import code_of, code_of_location
from cab.registry.registries import ATTENTIONS
from cab.registry.stacks import StackEntry
from cab.registry.tables import run_defaults

if TYPE_CHECKING:
    import pandas as pd


log = logging.getLogger(__name__)

DEFAULT_DIR = Path(run_defaults()["results_dir"])
PAPER_DIR = Path(__file__).resolve().parents[2] / "results" / "paper"
"""Tables of the paper, with their sources."""
CORE_DIR, MINI_DIR = REFERENCE_DIRS
REQUIRED = ("pattern", "task", "backbone", "dataset", "metric", "attention")
"""Columns of CSV files that every row must fill."""
PUBLISHED = "published"
"""Preset of CSV files that do not specify one."""

COLUMNS = (
    *CELL, "task_version", "metric", "value", "unit", "higher_is_better", "primary", "at_length", "status",
    "params", "train_seconds", "peak_memory_bytes", "revision", "verified", "hash", "file", "record",
)  # fmt: skip
"""``verified`` is ``yes``, ``no`` or ``unknown`` (see :func:`cab.records.verified.verdict`). ``record`` is the
:class:`cab.records.record.Record`. For rows of CSV files it is None, and ``hash`` is empty."""


def load_results(
    sources: Iterable[str | Path] | str | Path = DEFAULT_DIR, *, accept_code: bool = False
) -> pd.DataFrame:
    """Load results as one table with one row per metric and the columns :data:`COLUMNS`.

    Invalid records are skipped with a warning. Results of different code have different names, see
    :func:`names_of_programs`.

    Args:
        sources: folders of records, single records, or CSV files with the columns of ``results/paper/results.csv``
            (``pattern,task,backbone,dataset,metric,higher_is_better,attention,value``).
        accept_code: whether results of different code of the project, except the attention, have the same name.

    Raises:
        UserError: a source does not exist.
    """
    return read_results(sources, accept_code=accept_code)[0]


def read_results(
    sources: Iterable[str | Path] | str | Path, *, accept_code: bool = False
) -> tuple[pd.DataFrame, list[str]]:
    """Return the table of :func:`load_results`, and one message per skipped record."""
    records: list[tuple[Path, Record]] = []
    published: list[tuple[Any, ...]] = []
    skipped: list[str] = []
    gc.disable()  # collection would take a quarter of the time for thousands of records
    try:
        for source in map(Path, [sources] if isinstance(sources, (str, Path)) else sources):
            if not source.exists() and source.suffix != ".json":
                raise UserError(f"{source} does not exist: name a folder of records, a record or a CSV file")
            if source.is_dir():
                records += whole_records(source, skipped)
            elif source.suffix != ".csv":
                records.append((source, Record.read(source)))
            table = source / "results.csv" if source.is_dir() else source
            if table.suffix == ".csv" and table.exists():
                published += _published_rows(table)
        names = names_of_programs([record for _, record in records], accept_code=accept_code)
        return _table(records, names, published), skipped
    finally:
        gc.enable()


def with_reference_results(results: pd.DataFrame) -> pd.DataFrame:
    """Add the bundled reference results, which are never in one row with others.

    Of the folders in :data:`REFERENCE_DIRS`, the first with a result on a data set with a backbone and a pattern counts
    for these, because the next may have been trained with other settings. An own result of an attention with reference
    results has its code in its name.
    """
    import pandas as pd

    own = dict(zip(results["file"], results["record"], strict=True))
    known = {record.hash for record in own.values() if record is not None and record.is_bundled}
    places: set[tuple[Any, ...]] = set()
    reference: list[tuple[Path, Record]] = []
    for folder in REFERENCE_DIRS:
        found = whole_records(folder, []) if folder.is_dir() else []
        new = [(path, record) for path, record in found if _place(record) not in places]
        reference += [(path, record) for path, record in new if record.hash not in known]
        places |= {_place(record) for _, record in found}
    taken = {str(record.cell["attention"]) for _, record in reference}
    names = [
        _coded(name, record) if record is not None and not record.is_bundled and name in taken else name
        for name, record in zip(results["attention"], results["record"], strict=True)
    ]
    table = _table(reference, [str(record.cell["attention"]) for _, record in reference])
    return pd.concat([results.assign(attention=names), table], ignore_index=True) if len(results) else table


def _place(record: Record) -> tuple[Any, ...]:
    return tuple(record.cell[name] for name in PLACE)


def _coded(name: str, record: Record) -> str:
    """Return the name of an attention with its code."""
    return f"{name} [{record.attention_code[:8] or 'unknown'}]"


BUNDLED = "bundled"
"""Code of the reference results, which have rows of their own."""
MIXED = "mixed code"
"""Mark of an attention whose seeds were run with different code of the project, which the user accepted."""
PLACE = ["preset", *COMPARISON_KEY, "pattern"]
"""Keys of a cell without the attention and the seed; attentions are compared within a place."""


def names_of_programs(records: Sequence[Record], *, accept_code: bool = False) -> list[str]:
    """Return the name in tables of the attention of each record, so that one name in a cell is one program.

    Bundled results keep the name of their attention; without them, the installed code of a registered attention does,
    or else the newest. The name of any other code is followed by its hash. The seeds of a cell that were run with
    different code of the project, such as of the backbone, get different names as well, unless ``accept_code``.
    """
    names = [str(record.cell["attention"]) for record in records]
    codes: dict[str, dict[str, list[Record]]] = {}
    for name, record in zip(names, records, strict=True):
        codes.setdefault(name, {}).setdefault(_code(record), []).append(record)
    named = {name: _named_code(name, programs) for name, programs in codes.items()}
    names = [
        name if _code(record) == named[name] else _coded(name, record)
        for name, record in zip(names, records, strict=True)
    ]
    for name, programs in codes.items():
        if len(programs.keys() - {BUNDLED}) > 1:
            shown = ", ".join(sorted(code[:8] for code in programs))
            log.warning("%s has results of %d programs: %s; they are separate rows", name, len(programs), shown)
    return _with_names_of_projects(records, names, accept_code=accept_code)


def _code(record: Record) -> str:
    """Return what distinguishes the code of an attention: unknown code is that of its run alone."""
    return BUNDLED if record.is_bundled else record.attention_code or f"unknown {record.hash}"


def _named_code(name: str, programs: Mapping[str, list[Record]]) -> str:
    """Return the code that keeps the name of an attention."""
    installed = installed_code(name.partition("(")[0]) if len(programs) > 1 else ""
    newest = {code: max(record.started for record in records) for code, records in programs.items()}
    return max(programs, key=lambda code: (code == BUNDLED, code == installed, newest[code], code))


def _with_names_of_projects(records: Sequence[Record], names: list[str], *, accept_code: bool) -> list[str]:
    """Return the names, followed by the modules of the project that differ from those of the cell's newest run."""
    cells: dict[tuple[Any, ...], list[int]] = {}
    for i in sorted(range(len(records)), key=lambda i: records[i].started, reverse=True):
        if not records[i].is_bundled:
            cells.setdefault((names[i], *_place(records[i])), []).append(i)
    _warn_of_versions(records, cells)
    for (name, *place), runs in cells.items():
        newest, differing = records[runs[0]].program.modules, dict[str, list[int]]()
        for i in runs[1:]:
            program = records[i].program.modules
            if modules := changed_modules(newest, program):
                text = f"{modules[0]} {program.get(modules[0], '')[:6]}" + (
                    f" +{len(modules) - 1}" if modules[1:] else ""
                )
                differing.setdefault(text, []).append(i)
        for text, others in differing.items():
            where = " ".join(filter(None, map(str, (*place, name))))
            outcome = "accepted" if accept_code else "separate rows; --accept-code averages them"
            log.warning("%s has %d results of other code (%s): %s", where, len(others), text, outcome)
            for i in runs if accept_code else others:
                names[i] = f"{name} [{MIXED if accept_code else text}]"
    return names


def _warn_of_versions(records: Sequence[Record], cells: Mapping[tuple[Any, ...], Sequence[int]]) -> None:
    """Warn of cells whose seeds were run with different versions of the libraries, once per difference."""
    places: dict[str, list[str]] = {}
    for key, runs in cells.items():
        newest = records[runs[0]].versions
        texts = {value_changes(records[i].versions, newest) for i in runs[1:] if records[i].versions != newest}
        for text in texts - {""}:
            places.setdefault(text, []).append(" ".join(filter(None, map(str, (*key[1:], key[0])))))
    for text, found in places.items():
        log.warning("%d means over seeds are of different versions (%s): %s", len(found), text, listed(found, shown=1))


def with_program_names(records: Iterable[Record]) -> list[Record]:
    """Return the records with the names of :func:`names_of_programs`."""
    records = list(records)
    return [
        record
        if record.cell["attention"] == name
        else dataclasses.replace(record, cell={**record.cell, "attention": name})
        for record, name in zip(records, names_of_programs(records), strict=True)
    ]


@functools.cache
def installed_code(attention: str) -> str:
    """Return the hash of the code of a registered attention; empty if it is not installed."""
    if is_file(attention) or attention not in ATTENTIONS:
        return ""
    entry = ATTENTIONS.get(attention)
    if isinstance(entry, StackEntry):
        return code_of(entry.cls)
    location = entry.location
    return "" if location.file is None else code_of_location(location.module, location.qualname)


def _table(
    records: Iterable[tuple[Path, Record]], names: Iterable[str], published: Iterable[tuple[Any, ...]] = ()
) -> pd.DataFrame:
    import pandas as pd

    verified = verified_codes()
    rows = [
        row
        for (path, record), name in zip(records, names, strict=True)
        for row in _record_rows(path, record, name, verified)
    ]
    return pd.DataFrame([*rows, *published], columns=list(COLUMNS))


def whole_records(folder: Path, skipped: list[str]) -> list[tuple[Path, Record]]:
    """Return the records in ``folder``, sorted by cell; log each broken one and add a line to ``skipped``.

    Records of this repository are read once per process.
    """
    records = []
    is_bundled = folder.resolve() in COMMITTED_DIRS
    for path in record_paths(folder):
        try:
            record = _read_bundled(path) if is_bundled else Record.read(path)
        except UserError as error:
            skipped.append(f"skipped: {error}")
            log.warning("%s", skipped[-1])
            continue
        records.append((path, record))
    return sorted(records, key=lambda pair: ([pair[1].cell[name] for name in CELL], pair[1].started))


@functools.cache
def _read_bundled(path: Path) -> Record:
    return dataclasses.replace(Record.read(path), is_bundled=True)


def _record_rows(path: Path, record: Record, name: str, verified: Container[tuple[str, str]]) -> list[tuple[Any, ...]]:
    cost = record.cost
    cell = (*({**record.cell, "attention": name}[key] for key in CELL), record.task_version)
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
    lines: dict[tuple[Any, ...], int] = {}
    rows = []
    for line, row in csv_rows(path, (*REQUIRED, "higher_is_better", "value")):
        key = tuple(row.get(name, "") for name in (*CELL, "metric"))
        if key in lines:
            raise UserError(f"{path}, line {line}: the result of line {lines[key]} again; remove one of them")
        lines[key] = line
        rows.append(_published_row(path, line, row))
    return rows


def _published_row(path: Path, line: int, row: Mapping[str, str]) -> tuple[Any, ...]:
    if missing := [name for name in REQUIRED if not row[name].strip()]:
        raise UserError(f"{path}, line {line}: no {missing[0]}")
    if row["pattern"] not in list(Pattern):
        raise UserError(
            f"{path}, line {line}: the pattern must be one of {', '.join(Pattern)}, got '{row['pattern']:.40}'"
        )
    seed, value = row.get("seed") or "0", row["value"]
    try:
        if not (seed.isdecimal() and len(seed) < 10):
            raise ValueError(f"'{seed:.40}'")
        fields: dict[str, Any] = {
            **{name: row.get(name, "") for name in (*CELL, "metric")},
            "preset": row.get("preset") or PUBLISHED,
            "seed": int(seed),
            "value": parse_number(value) if value else math.nan,
            "higher_is_better": {"1": True, "0": False}[row["higher_is_better"]],
        }
        if fields["value"] is None:
            raise ValueError(f"'{value:.40}'")
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{path}, line {line}: value must be a finite number or empty, seed a natural number, and higher_is_better "
            f"1 or 0, got {error}"
        ) from None
    fields |= {"task_version": 0, "unit": "", "primary": True, "status": str(Status.FINISHED)}
    fields |= {"revision": "", "verified": "unknown", "hash": "", "file": str(path)}
    return tuple(fields.get(name) for name in COLUMNS)


VERDICTS = ("no", "unknown", "yes")
"""Ordered from worst to best."""


def verdicts(results: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the worst verdict of the runs of each (pattern, attention): ``no``, ``unknown`` or ``yes``."""
    worst: dict[tuple[str, str], str] = {}
    rows = results[["pattern", "attention", "verified"]].itertuples(index=False, name=None)
    for pattern, attention, verdict_of_row in dict.fromkeys(rows):
        key = (pattern, attention)
        worst[key] = min(verdict_of_row, worst.get(key, verdict_of_row), key=VERDICTS.index)
    return worst


def verification_notes(results: pd.DataFrame) -> list[str]:
    """Return notes on unverified names in a table of ``results``; published results are excluded."""
    worst = verdicts(results[results["preset"] != PUBLISHED])
    unknown = sorted({attention for (_, attention), verdict in worst.items() if verdict == "unknown"})
    lines = [LEGEND] if "no" in worst.values() else []
    return lines + ([f"the results do not record whether these are verified: {listed(unknown)}"] if unknown else [])
