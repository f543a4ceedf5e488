"""The record of a run: its schema, how one is made, and the only way to read one.

A record is one JSON file, written to a temporary name and renamed, and never edited: a folder can be shared by many
jobs with no lock, and holds no half a record of ours.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cab.errors import UserError, first_line
from cab.metric import Metric
from cab.records.schema import SCHEMA, check_content, check_hash, with_checksum

CELL = ("task", "dataset", "config_variant", "backbone", "pattern", "attention", "preset", "seed")
"""What one run measures; ``config_variant`` tells apart runs of one data set, as univariate and multivariate."""
COMPARISON_KEY = CELL[:4]
"""Where attentions are compared: their metrics of one place measure the same thing."""


class Status(StrEnum):
    """What became of a run: a score, out of memory, a loss that is no number, or an error."""

    FINISHED = "finished"
    OOM = "oom"
    DIVERGED = "diverged"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run took; None where it is not known.

    Attributes:
        params: parameters of the network.
        steps: optimiser steps that were made.
        processes: that trained together.
        best_step: the step whose weights were scored, when validation chose them; else 0.
        train_seconds: of training, over all processes of a run that was cut.
        wall_seconds: of training and evaluation.
        cpu_seconds: processor time of training and evaluation, of the process that writes the record and those that
            it started; None for a run that was cut.
        load: of the machine, as a share of its cores, the mean of start and end. Above 1 others took their part of
            the seconds.
        peak_memory_bytes: as ``peak_memory_kind`` measures it.
        peak_memory_kind: the device's allocator, or the resident set of the process.
        expected_gpu_hours: of one GPU, by configs/costs.csv: beside what was measured, Table 15's in preset `paper`.
    """

    params: int | None = None
    steps: int | None = None
    processes: int | None = None
    best_step: int | None = None
    train_seconds: float | None = None
    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    load: float | None = None
    peak_memory_bytes: int | None = None
    peak_memory_kind: str | None = None
    expected_gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunMetadata:
    """What is known of a run whatever becomes of it.

    Attributes:
        hash: name of the run, see :func:`cell_hash`.
        cell: the values of :data:`CELL`.
        task_version: of the task's protocol.
        config: the whole resolved configuration.
        engine: what trains.
        command: the command line that runs this cell alone.
        versions: of Python and packages.
        revision: ``commit``, and whether the files are ``dirty``.
        hardware: the machine; empty where it is not known.
        data: what identifies the data; empty where they were not read.
        started: when, in UTC (ISO 8601).
        attention_code: hash of the code of the attention under test; empty where it is not known.
        verified: whether that code had passed `cab verify` in the pattern under test; None where that is not known.
        weights_reused_from: hash of the cell that trained this network; empty for a run of its own.
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


@dataclass(frozen=True, kw_only=True)
class Record(RunMetadata):
    """A run and what became of it.

    Attributes:
        ended: when it had its score or failed, in UTC (ISO 8601).
        error: of a run without a score: the error's type and its first line, else empty.
        step: where training failed, if that is known.
        baselines: the same metrics of trivial answers, by the baseline's name.
        history: entries with ``step``, ``loss`` and ``validation``, in nats.
        engine_facts: what else the engine has to say of itself.
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
        """The record of a run with a score."""
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
        """The record of a run without a score: every metric as declared, without a value."""
        assert status is not Status.FINISHED
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = ": ".join([type(error).__name__, *lines[:1]])
        declared = tuple(metric.measured(None) for metric in metrics)
        return cls(**vars(about), status=status, ended=now(), error=words, step=step, metrics=declared, cost=cost)

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record at ``path``; UserError, in one line, when that is not a whole record of this schema."""
        try:
            if path.exists() and not path.is_file():  # a pipe would never end
                raise UserError(f"{path} is not a file, as a record is")
            text = path.read_text(encoding="utf-8")
            content = json.loads(text)
        except FileNotFoundError:
            raise UserError(f"no record at {path}: name a <hash>.json of a results folder") from None
        except (OSError, ValueError, RecursionError) as error:
            raise error if isinstance(error, UserError) else _unreadable(path, error) from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise UserError(f"{path} is not a result record of schema {SCHEMA}; run the cell again")
        try:
            str(path).encode()
            record = cls._parsed(content)
            if "\\u" in text:  # JSON can spell halves of characters, which no table can hold
                json.dumps([content["cell"], content["metrics"]], ensure_ascii=False).encode()
        except UnicodeError:
            raise UserError(f"{path} holds text that is not Unicode; run the cell again") from None
        except KeyError as error:
            raise UserError(f"{path} lacks {error.args[0]}; run the cell again") from None
        except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _unreadable(path, error) from None
        return record

    @classmethod
    def _parsed(cls, content: Mapping[str, Any]) -> Record:
        """KeyError, TypeError or ValueError for what is not as :meth:`write` writes it."""
        parts = {name: content[name] for name in _FIELDS}
        status = Status(parts["status"])
        check_content(content, CELL)
        metrics = tuple(Metric(**row) for row in parts["metrics"])
        return cls(**{**parts, "status": status, "metrics": metrics, "cost": Cost(**parts["cost"])})

    def write(self, results_dir: Path) -> Path:
        """Write the record whole or not at all; it replaces an earlier one of the same hash."""
        check_hash(self.hash)
        path = record_path(results_dir, self.hash)
        content = {"schema": SCHEMA, **vars(self)}
        content |= {"metrics": [vars(metric) for metric in self.metrics], "cost": vars(self.cost)}
        content = with_checksum(content)
        results_dir.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=results_dir, prefix=f".{path.stem}-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return path


_FIELDS = [part.name for part in dataclasses.fields(Record)]


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a whole result record ({first_line(error)}); run the cell again")


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """What is no finite number is None, as JSON has no other."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}


def now() -> str:
    """The time in UTC (ISO 8601), to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def cell_hash(identity: Mapping[str, Any]) -> str:
    """The name of a run: 16 hexadecimal digits of the SHA-256 of what its cell is."""
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def record_path(results_dir: Path, digest: str) -> Path:
    """Where the record called ``digest`` lies; logs, checkpoints and pictures are in the folder beside it."""
    return results_dir / f"{digest}.json"


def weights_path(results_dir: Path, digest: str) -> Path:
    """The weights that a finished run was scored with: a state dict of the backbone, to read with ``torch.load``."""
    return results_dir / digest / "weights.pt"
