"""Records of runs: one immutable JSON file per run.

Records are written atomically and never edited, so many jobs can share a folder without a lock.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cab.errors import UserError, first_line
from cab.files.disk import replacing
from cab.metric import Metric
from cab.records.identity import check_names
from cab.records.schema import ADDED, SCHEMA, check_content, check_hash, with_checksum

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
        hash: name of the run, see :func:`cab.records.identity.cell_hash`.
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
