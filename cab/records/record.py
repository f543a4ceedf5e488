"""Records of runs: one immutable JSON file per run, or one line per run in the ``records.jsonl`` of a finished set.

Records are written atomically and never edited, so many jobs can share a folder without a lock. A file is named after
the hash of the run (:mod:`cab.records.identity`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from cab.errors import UserError, first_line
from cab.files.disk import replacing
from cab.files.numbers import is_finite
from cab.files.text_table import counted
from cab.metric import STRICT, Metric
from cab.records.files import COMMITTED_DIRS, record_path, record_paths, set_lines
from cab.records.identity import Identity, Program, flat, hash_of, plain, shared
from cab.registry.names import is_file
from cab.registry.program import code_of_modules, joined
from cab.registry.registries import ATTENTIONS

if TYPE_CHECKING:
    from pydantic import TypeAdapter

log = logging.getLogger(__name__)

SCHEMA = 6
MOST_SHOWN = 5
"""Broken records of a folder that are logged one by one."""
CELL = ("task", "dataset", "config_variant", "backbone", "pattern", "attention", "preset", "seed")
"""Keys of a cell; ``config_variant`` distinguishes variants of a data set, such as univariate and multivariate."""
COMPARISON_KEY = CELL[:4]
"""Keys whose values must be equal for the metrics of two attentions to be comparable."""
Count = Annotated[int, Ge(0), Le(2**63)]
Amount = Annotated[float, Ge(0)]


class Status(StrEnum):
    """Status of a run: it has a score, ran out of memory, had a NaN or inf loss, or failed with an error."""

    FINISHED = "finished"
    OOM = "oom"
    DIVERGED = "diverged"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Cost of a run; None for unknown values. docs/reference/result-schema.md describes each field."""

    __pydantic_config__ = STRICT

    params: Count | None = None
    steps: Count | None = None
    processes: Count | None = None
    best_step: Count | None = None
    steps_to_solve: Count | None = None
    train_seconds: Amount | None = None
    wall_seconds: Amount | None = None
    cpu_seconds: Amount | None = None
    load: Amount | None = None
    peak_memory_bytes: Count | None = None
    peak_memory_kind: str | None = None
    expected_gpu_hours: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """Metadata of a run that does not depend on its outcome; docs/reference/result-schema.md describes each field.

    Empty values are unknown, except for ``weights_reused_from`` and ``initial_weights``.
    """

    __pydantic_config__ = STRICT | {"extra": "ignore"}

    hash: str
    cell: Mapping[str, Any]
    task_version: Count
    config: Mapping[str, Any]
    changed: Mapping[str, Any]
    program: Program
    engine: str
    command: str
    versions: Mapping[str, Any]
    revision: Mapping[str, Any]
    hardware: Mapping[str, Any]
    data: Mapping[str, Any]
    started: str
    attention_code: str = ""
    verified: bool | None = None
    weights_reused_from: str = ""
    initial_weights: Mapping[str, Any] = field(default_factory=dict)
    unpublished_files: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Record(RunMetadata):
    """Record of a run; docs/reference/result-schema.md describes each field.

    The metrics of a run without a score have the value None.
    """

    status: Status
    ended: str
    error: str = ""
    step: Count | None = None
    metrics: tuple[Metric, ...]
    baselines: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    history: Sequence[Mapping[str, int | float | None]] = field(default_factory=list)
    cost: RunCost
    engine_facts: Mapping[str, Any] = field(default_factory=dict)
    is_bundled: bool = False
    """Whether it is a reference result of this project; not stored."""
    earlier_code: str = ""
    """The code in an earlier record, of the attention and ``cab``, under which costs are stored; not stored itself."""

    def identity(self, renamed: Mapping[str, str] = MappingProxyType({})) -> Identity:
        """Return the identity of the run; ``renamed`` has the earlier names of options."""
        return Identity.of(self.config, self.program, self.data, self.versions, renamed)

    @classmethod
    def finished(
        cls,
        about: RunMetadata,
        *,
        metrics: Iterable[Metric],
        baselines: Mapping[str, Mapping[str, float]],
        history: Sequence[Mapping[str, float | None]],
        **others: Any,
    ) -> Record:
        """Create the record of a run with a score; ``others`` are the cost and the facts of the engine."""
        others["baselines"] = {name: _finite(values) for name, values in baselines.items()}
        others["history"] = [_finite(entry) for entry in history]
        return cls(**vars(about), status=Status.FINISHED, ended=now(), metrics=tuple(metrics), **others)

    @classmethod
    def failed(cls, about: RunMetadata, *, error: BaseException, metrics: Iterable[Metric], **others: Any) -> Record:
        """Create the record of a run without a score; ``others`` are its status, step and cost."""
        assert others["status"] is not Status.FINISHED
        name, reason = type(error).__name__, first_line(error)
        words = name if reason == name else f"{name}: {reason}"
        declared = tuple(metric.measured(None) for metric in metrics)
        return cls(**vars(about), ended=now(), error=words, metrics=declared, **others)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read the record at ``path``; UserError unless it is a complete, unmodified record of this schema.

        The record of a set is named as if it were a file of its own, ``FOLDER/HASH.json``.
        """
        with _reading_errors(path):
            if path.exists() and not path.is_file():  # reading a pipe would block
                raise UserError(f"{path} is not a file; name a <hash>.json of a results folder")
            line = None if path.exists() else set_lines(path.parent).get(path.stem)
            return cls.from_text(line or path.read_text(encoding="utf-8"), path)

    @classmethod
    def from_text(cls, text: str, path: Path) -> Record:
        """Parse the text of the record at ``path``."""
        with _reading_errors(path):
            content = json.loads(text)
            schema = content.get("schema") if isinstance(content, dict) else None
            if type(schema) is int and schema > SCHEMA:
                raise UserError(f"{path} has schema {schema}, of a newer version of CAB; upgrade CAB to read it")
            if type(schema) is not int or schema < SCHEMA:
                raise UserError(f"{path} is not a result record of schema {SCHEMA}; run the cell again")
            _check_fields(content)
            record = _adapter().validate_json(text)
            _check_consistency(record)
        return _sharing(_regrouped(record))

    def to_plain(self) -> dict[str, Any]:
        """Return the content of the record's file."""
        content = {"schema": SCHEMA, **{name: getattr(self, name) for name in _FIELDS}}
        content |= {"program": vars(self.program), "cost": vars(self.cost)}
        return with_checksum(content | {"metrics": [vars(metric) for metric in self.metrics]})

    def write(self, results_dir: Path, name: str = "") -> Path:
        """Write the record atomically, replacing an earlier one with the same name, and return its path.

        ``name`` is that of a run whose hash is the name of other code (default: the hash).
        """
        path = record_path(results_dir, name or self.hash)
        content = self.to_plain()
        results_dir.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("x", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        return path


_FIELDS = [each.name for each in dataclasses.fields(Record) if each.name not in ("is_bundled", "earlier_code")]


def _regrouped(record: Record) -> Record:
    """Return a record whose attention has no module of ``cab``, nor its code: an earlier one is read as one of today.

    The code contains the name of the class, which a record does not have: a name is right if it gives the stored code.
    """
    program = Program.recorded(**vars(record.program))
    if program.attention == record.program.attention:
        return dataclasses.replace(record, program=program)
    name, stored = record.config["attention"]["name"], record.attention_code
    names = [name.rpartition(":")[2]]
    with contextlib.suppress(UserError):
        names += [] if is_file(name) else [ATTENTIONS.get(name).location.qualname]
    modules = list(map(repr, sorted(record.program.attention.items())))
    right = [name for name in names if joined([name, *modules]) == stored]
    code = next((code_of_modules(name, program.attention) for name in right), stored)
    return dataclasses.replace(record, program=program, attention_code=code, earlier_code=stored)


def _sharing(record: Record) -> Record:
    """Return a record that has the parts in common with earlier records that are equal, to save memory."""
    config = {name: shared(value) if isinstance(value, dict) else value for name, value in record.config.items()}
    program = Program(shared(record.program.attention), shared(record.program.project))
    parts: Any = {
        name: shared(getattr(record, name)) for name in ("versions", "revision", "hardware", "data", "baselines")
    }
    return dataclasses.replace(record, config=config, program=program, **parts)


@contextlib.contextmanager
def _reading_errors(path: Path) -> Iterator[None]:
    """Convert the errors of reading a record to UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"no record at {path}: name a <hash>.json of a results folder") from None
    except KeyError as error:
        raise UserError(f"{path} has no field {error.args[0]}; run the cell again") from None
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; the run need not be repeated") from error
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        reason = first_line(error)
        raise UserError(f"{path} is not a valid result record ({reason}); run the cell again") from None


def records_in(
    folder: Path, skipped: list[str], reduced: Callable[[Record], Record] = lambda record: record
) -> list[tuple[Path, Record]]:
    """Return the records in ``folder``, sorted by cell; log broken ones, a few by name, and add lines to ``skipped``.

    ``reduced`` returns as much of a record as the caller needs, since thousands of whole ones take much memory.
    Those of this repository are read once per process, whatever the form of their path, and without checks: a test
    checks every committed record.
    """
    resolved = folder.resolve()
    committed = _committed(resolved) if resolved in COMMITTED_DIRS else []
    records = [(path, reduced(record)) for path, record in committed]
    known, errors = {path for path, _ in records}, list[UserError]()
    for path in record_paths(resolved if records else folder):
        if path in known:
            continue
        try:
            records.append((path, reduced(Record.read(path))))
        except UserError as error:
            errors.append(error)
    lines = [f"skipped: {error}" for error in errors[:MOST_SHOWN]]
    if rest := len(errors) - len(lines):
        lines.append(f"skipped: {counted(rest, 'more file')} in {folder} without a valid result record")
    for line in lines:
        log.warning("%s", line)
    skipped += lines
    return sorted(records, key=lambda pair: ([pair[1].cell[name] for name in CELL], pair[1].started))


@functools.cache
def _committed(folder: Path) -> list[tuple[Path, Record]]:
    """Return the records of a folder of this repository."""
    found = []
    for name, line in set_lines(folder).items():
        content = json.loads(line)
        parts = {
            "status": Status(content["status"]),
            "metrics": tuple([Metric(**metric) for metric in content["metrics"]]),
            "program": Program(**content["program"]),
            "cost": RunCost(**content["cost"]),
            "is_bundled": True,
        }
        record = Record(**{key: content[key] for key in _FIELDS} | parts)
        found.append((record_path(folder, name), _sharing(_regrouped(record))))
    return found


@functools.cache
def _adapter() -> TypeAdapter[Record]:
    from pydantic import TypeAdapter  # takes 0.4 s

    return TypeAdapter(Record)


def _check_fields(content: Mapping[str, Any]) -> None:
    """Raise KeyError or ValueError if a field is missing or unknown, or the checksum does not match."""
    for name in _FIELDS:
        if name not in content:
            raise KeyError(name)
    unknown = content.keys() - {*_FIELDS, "schema", "checksum"}
    if unknown:
        raise ValueError(f"it has unknown fields: {', '.join(sorted(unknown)):.60}")
    if content["checksum"] != checksum_of(content):
        raise ValueError("it was changed after it was written: the checksum does not match")


def _check_consistency(record: Record) -> None:
    """Raise KeyError or ValueError if parts of a record contradict each other."""
    for text in (record.started, record.ended):
        datetime.datetime.fromisoformat(text)
    if not isinstance(record.revision["commit"], str):
        raise ValueError("the commit is not text")
    if any(type(entry["step"]) is not int for entry in record.history):
        raise ValueError("a step in its history is not an integer")
    if record.status is not Status.FINISHED and any(metric.value is not None for metric in record.metrics):
        raise ValueError(f"it has a score, but its status is {record.status}")
    cell, config = record.cell, record.config
    for name in ("task", "dataset", "backbone", "attention", "trainer"):
        if not isinstance(config[name], dict):
            raise ValueError(f"its {name} is {config[name]!r:.40}, not options")
    expected = {name: config[name]["name"] for name in ("task", "dataset", "backbone")}
    expected |= {name: config[name] for name in ("pattern", "preset", "seed")}
    for name, value in expected.items():
        if (type(cell[name]), cell[name]) != (type(value), value):
            raise ValueError(f"its cell has {name} {cell[name]!r:.40}, its configuration {value!r:.40}")
    names = {config["attention"]["name"], config["attention"]["name"].rpartition(":")[2]}
    label = cell["attention"]
    if not isinstance(label, str) or not any(label == name or label.startswith(f"{name}(") for name in names):
        raise ValueError(f"its cell has attention {cell['attention']!r:.40}, its configuration {min(names)!r:.40}")
    if not isinstance(cell["config_variant"], str) or record.engine != config["engine"]:
        raise ValueError(f"its engine is {record.engine!r:.40}, that of its configuration {config['engine']!r:.40}")
    if record.task_version != record.changed.get("task version", 1):
        raise ValueError(f"its version of the task is {record.task_version}, but that is not what its hash is of")
    values = flat(config)
    for name, value in record.changed.items():
        if (other := values.get(name, value)) != value:  # of an option that was renamed since, there is no value
            raise ValueError(f"its {name} is {other!r:.40}, but that is not what its hash is of")
    if record.hash != (digest := hash_of(record.changed)):
        raise ValueError(f"its hash is {record.hash}, that of its configuration {digest}")


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` as JSON data with a ``checksum``, which detects manual edits of the file."""
    values = plain(dict(content))
    return {**values, "checksum": checksum_of(values)}


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all other fields, as JSON with sorted keys."""
    others = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Replace NaN and infinity by None, since JSON cannot represent them."""
    return {name: value if is_finite(value) else None for name, value in values.items()}


def now() -> str:
    """Return the current time in UTC (ISO 8601)."""
    return datetime.datetime.now(datetime.UTC).isoformat()
