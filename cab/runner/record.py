"""What a record says of a run."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from cab.results import SCHEMA
from cab.runner.cell import Cell
from cab.runner.provenance import hardware, revision, versions
from cab.task import Task


def base_record(cell: Cell, command: str, device: Any | None) -> dict[str, Any]:
    """All that is known of a run whatever becomes of it; without a device, of one whose machine is not known."""
    return {
        "schema": SCHEMA,
        "hash": cell.hash,
        "cell": cell.key,
        "task_version": cell.task.version,
        "config": dict(cell.config),
        "engine": cell.engine,
        "command": command,
        "versions": versions(),
        "revision": revision(),
        "hardware": hardware(device) if device else {},
        "data": cell.task.fingerprint() if device else {},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def without_score(
    base: Mapping[str, Any], task: Task, *, status: str, error: Exception, seconds: float
) -> dict[str, Any]:
    """The record of a run that has no score: every metric is null, the reason beside it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    step = getattr(error, "step", None)
    return {
        **base,
        "status": status,
        "error": f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__,
        "step": step,
        "metrics": metric_rows(task, {}),
        "baselines": {},
        "history": [],
        "cost": {
            "params": None,
            "steps": step,
            "train_seconds": seconds,
            "peak_memory_bytes": None,
            "wall_seconds": seconds,
        },
    }


def metric_rows(task: Task, scores: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """The task's metrics with their values; what is no finite number, or was not scored, is null."""
    return [
        {
            "name": metric.name,
            "value": _finite(scores.get(metric.name)),
            "unit": metric.unit,
            "higher_is_better": metric.higher_is_better,
            "primary": metric.primary,
        }
        for metric in task.metrics
    ]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
