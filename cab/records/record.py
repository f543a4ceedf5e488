"""Records of runs: one immutable JSON file per run.

Records are written atomically and never edited, so many jobs can share a folder without a lock.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

from cab.errors import UserError, first_line
from cab.files.disk import replacing
from cab.metric import Metric
from cab.patterns import Pattern
from cab.records.code_hash import attention_hash
from cab.registry.registries import ATTENTIONS, TASKS, is_file
from cab.registry.tables import attention_label

RUN_KEYS = ("results_dir", "data_root", "data", "device", "force", "retry", "logger", "cluster", "engine", "profile")
"""Keys that specify where and how a cell runs; all other keys identify it and determine its hash."""
MACHINE_KEYS = ("checkpoint_every", "micro_batch_size", "num_workers", "strategy")
"""Settings of the trainer that depend on the machine and do not change the result."""
DEFAULT_ENGINE = "torch"
NAMED = ("task", "dataset", "backbone")
"""Groups of the configuration whose name is a key of the cell."""


def identity_of(config: Mapping[str, Any], *, task_version: int, initial_weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`cell_hash` hashes.

    Args:
        config: resolved configuration.
        task_version: version of the task's evaluation protocol.
        initial_weights: identification of the weights that training starts from; empty for random ones.
    """
    keys = {key: value for key, value in config.items() if key not in RUN_KEYS}
    keys["trainer"] = measured(keys["trainer"])
    return {**keys, **other_engine(config), **initial_weights, "task_version": task_version}


def measured(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the trainer that determine the result: all but :data:`MACHINE_KEYS`."""
    return {name: value for name, value in trainer.items() if name not in MACHINE_KEYS}


def other_engine(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine if it is not the default, since a cell with another engine is a different cell."""
    return {} if config["engine"] == DEFAULT_ENGINE else {"engine": config["engine"]}


def with_engine(variant: str, config: Mapping[str, Any]) -> str:
    """Return the variant of the data set, followed by the engine if it is not the default."""
    return " ".join(filter(None, (variant, *other_engine(config).values())))


def cell_hash(identity: Mapping[str, Any]) -> str:
    """Return the name of a run: the first 16 hexadecimal digits of the SHA-256 of its cell's identity."""
    plain = json.loads(json.dumps(identity))  # as in a record, where all keys are text
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def check_identity(content: Mapping[str, Any]) -> None:
    """Raise ValueError if the cell, the configuration, the engine and the hash in a record do not agree."""
    cell, config = content["cell"], content["config"]
    expected = {name: config[name]["name"] for name in NAMED}
    expected |= {name: config[name] for name in ("pattern", "preset", "seed")}
    for name, value in expected.items():
        if (type(cell[name]), cell[name]) != (type(value), value):
            raise ValueError(f"its cell has {name} {cell[name]!r:.40}, its configuration {value!r:.40}")
    if not _is_label(cell["attention"], config["attention"], is_tuned=config.get("tuning") is not None):
        raise ValueError(
            f"its cell has attention {cell['attention']!r:.40}, its configuration {config['attention']!r:.60}"
        )
    engine = other_engine(config).get("engine", "")
    if content["engine"] != config["engine"] or not cell["config_variant"].endswith(engine):
        raise ValueError(f"its engine is {content['engine']!r:.40}, that of its configuration {config['engine']!r:.40}")
    identity = identity_of(
        config, task_version=content["task_version"], initial_weights=content.get("initial_weights", {})
    )
    if content["hash"] != cell_hash(identity):
        raise ValueError(f"its hash is {content['hash']}, that of its configuration {cell_hash(identity)}")


def check_names(content: Mapping[str, Any]) -> None:
    """Raise ValueError if the names in a cell that follow from code are not those of its configuration.

    The variant of the data set follows from the code of the task. The options in the name of the attention follow from
    its defaults. They are compared if this code is installed and has the options of the configuration. A name is not
    compared with the defaults of changed code. Files of users are not imported to read a record.
    """
    cell, config = content["cell"], content["config"]
    known = {}
    if content["attention_code"] and content["attention_code"] == _installed_code(config["attention"]["name"]):
        known["attention"] = _label(_text(config, "attention", *NAMED, "pattern", "preset", "tuning"))
    if not content.get("initial_weights"):  # the variant names their run, whose record may be elsewhere
        known["config_variant"] = _variant(_text(config, "task", "dataset", "trainer", "engine"))
    for name, own in known.items():
        if own is not None and cell[name] != own:
            raise ValueError(f"its cell has {name} {cell[name]!r:.60}, its configuration {own!r:.60}")


def _text(config: Mapping[str, Any], *keys: str) -> str:
    return json.dumps({key: config.get(key) for key in keys}, sort_keys=True)


@functools.cache
def _installed_code(attention: str) -> str:
    """Return the hash of the code of a registered attention; empty if it is not installed."""
    if is_file(attention) or attention not in ATTENTIONS:
        return ""
    place = ATTENTIONS.get(attention).place
    return "" if place.file is None else attention_hash(place.qualname, place.file, place.module)


@functools.lru_cache(maxsize=10_000)
def _label(text: str) -> str | None:
    """Return the name of an attention in tables for a configuration in JSON; None if the installed code has none."""
    with contextlib.suppress(Exception):
        return attention_label(json.loads(text))
    return None


@functools.lru_cache(maxsize=10_000)
def _variant(text: str) -> str | None:
    """Return the variant of the data set for a configuration in JSON; None if the installed code has none."""
    config = json.loads(text)
    options = {name: value for name, value in config["task"].items() if name != "name"}
    with contextlib.suppress(Exception):
        entry = TASKS.get(config["task"]["name"])
        if options.keys() == entry.options.keys():
            task = entry.build(dataset=config["dataset"]["name"], **options)
            task.bind_config(config)
            return with_engine(task.config_variant, config)
    return None


def _is_label(label: str, attention: Mapping[str, Any], *, is_tuned: bool) -> bool:
    """Return whether ``label`` is the name of an attention, with any of its options, such as ``abc(num_landmarks=8)``.

    A tuned run has ``tuned`` as its last option.

    A class of a file can have the file and the class as its name, or the class alone.
    """
    settings = [f"{name}={value}" for name, value in sorted(attention.items()) if name != "name"]
    shown = [text for text in settings if re.search(rf"[( ]{re.escape(text)}[,)]", label)]
    shown += ["tuned"] if is_tuned else []
    names = {attention["name"], attention["name"].rpartition(":")[2]}
    return label in {name + (f"({', '.join(shown)})" if shown else "") for name in names}


SCHEMA = 5
ADDED = ("initial_weights", "unpublished_files")
"""Fields that records of schema 4 do not have; they are empty then. All other fields are the same in both schemas."""
LARGEST_SEED = 2**31 - 1

_DEEPEST = 20
_TEXTS = ("hash", "engine", "command", "started", "ended", "status", "error")
_MAPPINGS = ("cell", "config", "versions", "revision", "hardware", "data", "baselines", "cost", "engine_facts")
_COUNTS = ("params", "steps", "processes", "best_step", "steps_to_solve", "peak_memory_bytes")


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` as JSON data with a ``checksum``, which detects manual edits of the file."""
    plain = json.loads(json.dumps(dict(content)))
    return plain | {"checksum": checksum_of(plain)}


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all other fields, as JSON with sorted keys."""
    others = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_content(content: Mapping[str, Any], cell_names: Iterable[str]) -> None:
    """Raise KeyError, TypeError or ValueError if a run did not write this content.

    The checksum and the identity are compared last.
    """
    for names, kind in ((_TEXTS, str), (_MAPPINGS, dict), (("metrics", "history"), list)):
        for name in names:
            if not isinstance(content[name], kind):
                raise TypeError(f"{name} has the wrong type: {content[name]!r:.40}")
    check_hash(content["hash"])
    _check_cell(content["cell"], cell_names)
    _check_count("task_version", content["task_version"])
    if content["step"] is not None:
        _check_count("step", content["step"])
    for name in ("attention_code", "weights_reused_from"):
        if not isinstance(content[name], str):
            raise TypeError(f"{name} is not text: {content[name]!r:.40}")
    if not isinstance(content["verified"], bool | None):
        raise TypeError(f"verified is not true, false or null: {content['verified']!r:.40}")
    for name in ("started", "ended"):
        datetime.datetime.fromisoformat(content[name])
    if not isinstance(content["revision"]["commit"], str):
        raise TypeError("the commit is not text")
    for metric in content["metrics"]:
        _check_metric(metric, has_score=content["status"] == "finished")
    _check_cost(content["cost"])
    for name, values in content["baselines"].items():
        for value in values.values():
            _check_number(f"baseline {name}", value)
    for entry in content["history"]:
        for name, value in entry.items():
            _check_number(f"{name} in the history", value)
        _check_count("step in the history", entry["step"])
    weights = content.get("initial_weights", {})
    if not isinstance(weights, dict):
        raise TypeError(f"initial_weights has the wrong type: {weights!r:.40}")
    _check_depth("initial_weights", weights, _DEEPEST)
    files = content.get("unpublished_files", [])
    if not (isinstance(files, list) and all(isinstance(name, str) for name in files)):
        raise TypeError(f"unpublished_files is not a list of texts: {files!r:.40}")
    for name in _MAPPINGS:
        _check_depth(name, content[name], _DEEPEST)
    if content["checksum"] != checksum_of(content):
        raise ValueError("it was changed after it was written: the checksum does not match")
    check_identity(content)


def check_hash(digest: str) -> None:
    """Raise UserError if ``digest`` is not a valid name of a record."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", digest):
        raise UserError(f"{digest!r:.60} is not the hash of a cell, which has letters and digits only")


def _check_cell(cell: Mapping[str, Any], names: Iterable[str]) -> None:
    _check_count("seed", cell["seed"])
    if cell["seed"] > LARGEST_SEED:
        raise ValueError(f"seed {cell['seed']!r:.40} is larger than {LARGEST_SEED}")
    for name in names:
        if name == "seed":
            continue
        if not isinstance(cell[name], str):
            raise TypeError(f"{name} is not text: {cell[name]!r:.40}")
        if not cell[name] and name != "config_variant":
            raise ValueError(f"{name} is empty")
    if cell["pattern"] not in tuple(Pattern):
        raise ValueError(f"pattern {cell['pattern']!r:.40} is not one of {' '.join(Pattern)}")


def _check_metric(metric: Mapping[str, Any], *, has_score: bool) -> None:
    name, value, length = metric["name"], metric.get("value"), metric.get("at_length")
    if not (isinstance(name, str) and isinstance(metric["unit"], str)):
        raise TypeError(f"metric {metric!r:.60}: its name and unit must be text")
    if not (isinstance(metric["higher_is_better"], bool) and isinstance(metric.get("primary", True), bool)):
        raise TypeError(f"metric {metric!r:.60}: higher_is_better and primary must be true or false")
    _check_number(f"the value of {name}", value)
    if value is not None and not has_score:
        raise ValueError(f"the value of {name} is {value!r:.40}, in a run without a score")
    if not (length is None or (type(length) is int and length > 0)):
        raise TypeError(f"the length of {name} is not a positive integer: {length!r:.40}")


def _check_cost(cost: Mapping[str, Any]) -> None:
    for name, value in cost.items():
        if value is None:
            continue
        if name == "peak_memory_kind":
            if not isinstance(value, str):
                raise TypeError(f"{name} is not text: {value!r:.40}")
            continue
        _check_number(f"cost {name}", value)
        if value < 0:
            raise ValueError(f"cost {name} is {value!r:.40}, which is negative")
        if name in _COUNTS and type(value) is not int:
            raise ValueError(f"cost {name} is {value!r:.40}, which is not an integer")


def _check_count(field: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise TypeError(f"{field} is not a non-negative integer: {value!r:.40}")


def _check_number(field: str, value: Any) -> None:
    """Raise TypeError or ValueError unless ``value`` is None or a finite number in the range of a float."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{field} is not a number: {value!r:.40}")
    if not (isinstance(value, int) and abs(value) < 2**63) and not math.isfinite(value):
        raise ValueError(f"{field} is not finite: {value!r:.40}")


def _check_depth(field: str, value: Any, left: int) -> None:
    if not left:
        raise ValueError(f"{field} is nested too deeply")
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(field, part, left - 1)


REFERENCE_DIRS = tuple(Path(__file__).resolve().parents[2] / "results" / name for name in ("core", "mini"))
"""Bundled reference results of the suite: its core cells, and all cells."""
CELL = ("task", "dataset", "config_variant", "backbone", "pattern", "attention", "preset", "seed")
"""Keys of a cell; ``config_variant`` distinguishes variants of a data set, such as univariate and multivariate."""
COMPARISON_KEY = CELL[:4]
"""Keys whose values must be equal for the metrics of two attentions to be comparable."""


class Status(StrEnum):
    """Status of a run: it has a score, ran out of memory, had a NaN or inf loss, or failed with an error."""

    FINISHED = "finished"
    OOM = "oom"
    DIVERGED = "diverged"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a run; None for unknown values.

    Attributes:
        params: number of parameters of the network.
        steps: number of optimizer steps.
        processes: number of processes that trained together.
        best_step: step of the evaluated weights, if validation selected them; else 0.
        steps_to_solve: step at which validation reached ``trainer.stop_at``; None if it did not, or without the option.
        train_seconds: wall time of training, including the time before an interruption.
        wall_seconds: wall time of training and evaluation.
        cpu_seconds: CPU time of training and evaluation, of the process that writes the record and its children; None
            for a run that was interrupted.
        load: load of the machine as a fraction of its cores, mean of start and end. Above 1, other processes slowed
            the run down.
        peak_memory_bytes: peak memory.
        peak_memory_kind: how it was measured: CUDA allocator, or resident set of the process.
        expected_gpu_hours: expected hours on one GPU according to Table 15, in preset `paper`.
    """

    params: int | None = None
    steps: int | None = None
    processes: int | None = None
    best_step: int | None = None
    steps_to_solve: int | None = None
    train_seconds: float | None = None
    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    load: float | None = None
    peak_memory_bytes: int | None = None
    peak_memory_kind: str | None = None
    expected_gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """Metadata of a run that does not depend on its outcome.

    Attributes:
        hash: name of the run, see :func:`cab.records.record.cell_hash`.
        cell: values of :data:`CELL`.
        task_version: version of the task's evaluation protocol.
        config: complete resolved configuration.
        engine: name of the training engine.
        command: command line that runs this cell alone.
        versions: versions of Python and packages.
        revision: ``commit``, and whether the working tree was ``dirty``.
        hardware: description of the machine; empty if unknown.
        data: fingerprint of the data; empty if the data were not read.
        started: start time in UTC (ISO 8601).
        attention_code: hash of the code of the attention under test; empty if unknown.
        verified: whether this code had passed `cab verify` in the pattern under test; None if unknown.
        weights_reused_from: hash of the cell whose run trained this network; empty if it was trained in this run.
        initial_weights: identification of the weights that training started from; empty for random ones.
        unpublished_files: data files whose checksum is not the published one.
    """

    hash: str
    cell: Mapping[str, Any]
    task_version: int
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
    """Record of a run.

    Attributes:
        status: status of the run.
        ended: end time in UTC (ISO 8601).
        error: type and first line of the error of a run without a score; else empty.
        step: step at which training failed, if known.
        metrics: metrics of the task; values are None for a run without a score.
        baselines: metrics of trivial baselines, by the name of the baseline.
        history: entries with ``step``, ``loss`` and ``validation``, in nats.
        cost: cost of the run.
        engine_facts: additional information from the engine.
    """

    status: Status
    ended: str
    error: str = ""
    step: int | None = None
    metrics: tuple[Metric, ...]
    baselines: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    history: Sequence[Mapping[str, float | None]] = field(default_factory=list)
    cost: Cost
    engine_facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def finished(
        cls,
        about: RunMetadata,
        *,
        metrics: Iterable[Metric],
        baselines: Mapping[str, Mapping[str, float]],
        history: Sequence[Mapping[str, float | None]],
        cost: Cost,
        engine_facts: Mapping[str, Any],
    ) -> Record:
        """Create the record of a run with a score."""
        return cls(
            **vars(about),
            status=Status.FINISHED,
            ended=now(),
            metrics=tuple(metrics),
            baselines={name: _finite(values) for name, values in baselines.items()},
            history=[_finite(entry) for entry in history],
            cost=cost,
            engine_facts=engine_facts,
        )

    @classmethod
    def failed(
        cls,
        about: RunMetadata,
        *,
        status: Status,
        error: BaseException,
        step: int | None,
        cost: Cost,
        metrics: Iterable[Metric],
    ) -> Record:
        """Create the record of a run without a score; its metrics have no values."""
        assert status is not Status.FINISHED
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = ": ".join([type(error).__name__, *lines[:1]])
        declared = tuple(metric.measured(None) for metric in metrics)
        return cls(**vars(about), status=status, ended=now(), error=words, step=step, metrics=declared, cost=cost)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read the record at ``path``.

        Raises:
            UserError: the file is not a complete, unmodified record of this schema.
        """
        try:
            if path.exists() and not path.is_file():  # reading a pipe would block
                raise UserError(f"{path} is not a file; name a <hash>.json of a results folder")
            text = path.read_text(encoding="utf-8")
            content = json.loads(text)
        except FileNotFoundError:
            raise UserError(f"no record at {path}: name a <hash>.json of a results folder") from None
        except (OSError, ValueError, RecursionError) as error:
            raise error if isinstance(error, UserError) else _unreadable(path, error) from None
        schema = content.get("schema") if isinstance(content, dict) else None
        if type(schema) is int and schema > SCHEMA:
            raise UserError(f"{path} has schema {schema}, of a newer version of CAB; upgrade CAB to read it")
        if type(schema) is not int or schema < SCHEMA - 1:
            raise UserError(f"{path} is not a result record of schema {SCHEMA}; run the cell again")
        try:
            str(path).encode()
            record = cls._parsed(content)
            if path.resolve().parent not in REFERENCE_DIRS:  # bundled, and checked by the tests
                check_names(content)
            if "\\u" in text:  # JSON can encode lone surrogates, which are not valid text
                json.dumps([content["cell"], content["metrics"]], ensure_ascii=False).encode()
        except UnicodeError:
            raise UserError(f"{path} contains text that is not valid Unicode; run the cell again") from None
        except KeyError as error:
            raise UserError(f"{path} has no field {error.args[0]}; run the cell again") from None
        except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _unreadable(path, error) from None
        return record

    @classmethod
    def _parsed(cls, content: Mapping[str, Any]) -> Record:
        """Parse JSON content; KeyError, TypeError or ValueError if it was not written by :meth:`write`."""
        fields = _FIELDS if content["schema"] == SCHEMA else [name for name in _FIELDS if name not in ADDED]
        parts = {name: content[name] for name in fields}
        unknown = content.keys() - {*fields, "schema", "checksum"}
        if unknown:
            raise ValueError(f"it has unknown fields: {', '.join(sorted(unknown)):.60}")
        status = Status(parts["status"])
        check_content(content, CELL)
        metrics = tuple(Metric(**row) for row in parts["metrics"])
        return cls(**{**parts, "status": status, "metrics": metrics, "cost": Cost(**parts["cost"])})

    def write(self, results_dir: Path) -> Path:
        """Write the record atomically, replacing an earlier one with the same hash, and return its path.

        Its permissions follow the umask.
        """
        check_hash(self.hash)
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


_FIELDS = [part.name for part in dataclasses.fields(Record)]


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a valid result record ({first_line(error)}); run the cell again")


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
