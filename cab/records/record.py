"""Records of runs: one immutable JSON file per run.

Records are written atomically and never edited, so many jobs can share a folder without a lock. The parts of the
configuration that determine a run are its identity, whose hash is the name of the file.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from cab.errors import UserError, first_line
from cab.files.disk import replacing
from cab.metric import STRICT, Metric
from cab.records.identity import Origin, attention_files, cell_hash, identity_of, other_engine

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = 5
ADDED = ("initial_weights", "unpublished_files")
"""Fields that records of schema 4 do not have; they are empty then. All other fields are the same in both schemas."""
LARGEST_SEED = 2**31 - 1
REFERENCE_DIRS = tuple(Path(__file__).resolve().parents[2] / "results" / name for name in ("core", "mini"))
"""Bundled reference results of the suite: its core cells, and all cells."""
COMMITTED_DIRS = (*REFERENCE_DIRS, *(REFERENCE_DIRS[0].with_name(name) for name in ("cosformer_kernels", "reproduced")))
"""All folders of records in this repository."""
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
class Cost:
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
    cost: Cost
    engine_facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> Origin:
        """Program and data of the run."""
        return Origin.of(self.attention_code, self.data, self.config["trainer"])

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
        finite: dict[str, Any] = {
            "baselines": {name: _finite(values) for name, values in baselines.items()},
            "history": [_finite(entry) for entry in history],
        }
        return cls(**vars(about), status=Status.FINISHED, ended=now(), metrics=tuple(metrics), **finite, **others)

    @classmethod
    def failed(cls, about: RunMetadata, *, error: BaseException, metrics: Iterable[Metric], **others: Any) -> Record:
        """Create the record of a run without a score; ``others`` are its status, step and cost."""
        assert others["status"] is not Status.FINISHED
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = ": ".join([type(error).__name__, *lines[:1]])
        declared = tuple(metric.measured(None) for metric in metrics)
        return cls(**vars(about), ended=now(), error=words, metrics=declared, **others)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read the record at ``path``; UserError unless it is a complete, unmodified record of this schema."""
        try:
            if path.exists() and not path.is_file():  # reading a pipe would block
                raise UserError(f"{path} is not a file; name a <hash>.json of a results folder")
            text = path.read_text(encoding="utf-8")
            content = json.loads(text)
            schema = content.get("schema") if isinstance(content, dict) else None
            if type(schema) is int and schema > SCHEMA:
                raise UserError(f"{path} has schema {schema}, of a newer version of CAB; upgrade CAB to read it")
            if type(schema) is not int or schema < SCHEMA - 1:
                raise UserError(f"{path} is not a result record of schema {SCHEMA}; run the cell again")
            _check_fields(content)
            record = _adapter().validate_json(text)
            _check_identity(record)
        except FileNotFoundError:
            raise UserError(f"no record at {path}: name a <hash>.json of a results folder") from None
        except KeyError as error:
            raise UserError(f"{path} has no field {error.args[0]}; run the cell again") from None
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}; the run need not be repeated") from error
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            reason = _described(error)
            raise UserError(f"{path} is not a valid result record ({reason}); run the cell again") from None
        return record

    def write(self, results_dir: Path) -> Path:
        """Write the record atomically, replacing an earlier one with the same hash, and return its path."""
        path = record_path(results_dir, self.hash)
        content = {"schema": SCHEMA, **vars(self)}
        content |= {"metrics": [vars(metric) for metric in self.metrics], "cost": vars(self.cost)}
        content = with_checksum(content)
        results_dir.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("x", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        return path


_FIELDS = [field.name for field in dataclasses.fields(Record)]


@functools.cache
def _adapter() -> TypeAdapter[Record]:
    from pydantic import TypeAdapter  # takes 0.4 s

    return TypeAdapter(Record)


def _described(error: Exception) -> str:
    """Return the first error of a validation with its place and value, or the first line of another error."""
    if not hasattr(error, "errors"):
        return first_line(error)
    details = error.errors(include_url=False)[0]
    location = ".".join(map(str, details["loc"]))
    return f"{location}: {details['msg']}, got {details['input']!r:.40}" if location else details["msg"]


def _check_fields(content: Mapping[str, Any]) -> None:
    """Raise KeyError or ValueError if a field is missing or unknown, or the checksum does not match."""
    for name in _FIELDS:
        if name not in content and not (content["schema"] < SCHEMA and name in ADDED):
            raise KeyError(name)
    unknown = content.keys() - {*_FIELDS, "schema", "checksum"}
    if unknown:
        raise ValueError(f"it has unknown fields: {', '.join(sorted(unknown)):.60}")
    if content["checksum"] != checksum_of(content):
        raise ValueError("it was changed after it was written: the checksum does not match")


def _check_identity(record: Record) -> None:
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
    expected = {name: config[name]["name"] for name in ("task", "dataset", "backbone")}
    expected |= {name: config[name] for name in ("pattern", "preset", "seed")}
    for name, value in expected.items():
        if (type(cell[name]), cell[name]) != (type(value), value):
            raise ValueError(f"its cell has {name} {cell[name]!r:.40}, its configuration {value!r:.40}")
    if not _is_label(cell["attention"], config["attention"], is_tuned=config.get("tuning") is not None):
        raise ValueError(
            f"its cell has attention {cell['attention']!r:.40}, its configuration {config['attention']!r:.60}"
        )
    engine = other_engine(config).get("engine", "")
    if record.engine != config["engine"] or not cell["config_variant"].endswith(engine):
        raise ValueError(f"its engine is {record.engine!r:.40}, that of its configuration {config['engine']!r:.40}")
    codes = {**record.versions, config["attention"]["name"]: record.attention_code}
    programs = {name: codes[name] for name in attention_files(config)}
    weights = record.initial_weights
    digest = cell_hash(
        identity_of(config, task_version=record.task_version, initial_weights=weights, programs=programs)
    )
    if record.hash != digest:
        raise ValueError(f"its hash is {record.hash}, that of its configuration {digest}")


def _is_label(label: Any, attention: Mapping[str, Any], *, is_tuned: bool) -> bool:
    """Return whether ``label`` is the name of an attention, with any of its options, such as ``abc(num_landmarks=8)``.

    A tuned run has ``tuned`` as its last option. A class of a file can have the file and the class as its name, or the
    class alone.
    """
    if not isinstance(label, str):
        return False
    settings = [f"{name}={value}" for name, value in sorted(attention.items()) if name != "name"]
    shown = [text for text in settings if re.search(rf"[( ]{re.escape(text)}[,)]", label)]
    shown += ["tuned"] if is_tuned else []
    names = {attention["name"], attention["name"].rpartition(":")[2]}
    return label in {name + (f"({', '.join(shown)})" if shown else "") for name in names}


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` as JSON data with a ``checksum``, which detects manual edits of the file."""
    plain = json.loads(json.dumps(dict(content)))
    return plain | {"checksum": checksum_of(plain)}


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all other fields, as JSON with sorted keys."""
    others = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Replace NaN and infinity by None, since JSON cannot represent them."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}


def now() -> str:
    """Return the current time in UTC (ISO 8601), to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def record_path(results_dir: Path, digest: str) -> Path:
    """Return the path of the record ``digest``; the folder of the same name has its logs, checkpoints and plots."""
    return results_dir / f"{digest}.json"


def weights_path(results_dir: Path, digest: str) -> Path:
    """Return the path of the evaluated weights of a finished run: a state dict, to load with ``torch.load``."""
    return results_dir / digest / "weights.pt"
