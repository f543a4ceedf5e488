"""Result records for the tests of reports."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Any

from cab.results import cell_hash


def number(*names: object) -> float:
    """A number between 1 and 2 that depends on the names alone."""
    return 1 + zlib.crc32(repr(names).encode()) % 9973 / 9973


def make_record(metrics: dict[str, float | None], *, beside: Collection[str] = (), **changes: Any) -> dict[str, Any]:
    """A record with these metrics, those ``beside`` not scored; ``changes`` go to the cell, or replace whole parts."""
    cell = {"task": "lstf", "dataset": "etth1", "variant": "multivariate", "backbone": "informer"}
    cell |= {"pattern": "NC", "attention": "vanilla", "preset": "mini", "seed": 0}
    parts = {name: changes.pop(name) for name in ("baselines", "cost", "command", "hardware") if name in changes}
    cell |= changes
    shown = [
        {
            "name": name,
            "value": value,
            "unit": "dB" if name == "f_score" else "",
            "higher_is_better": name == "f_score",
            "primary": name not in beside,
        }
        for name, value in metrics.items()
    ]
    return {
        "schema": 1,
        "hash": cell_hash(cell),
        "status": "finished",
        "cell": cell,
        "task_version": 1,
        "metrics": shown,
        "baselines": {},
        "cost": {"params": 1_000_003, "train_seconds": 75.5, "peak_memory_bytes": 3 * 2**29, "steps": 40},
        "config": cell,
        "command": f"cab run attention={cell['attention']} seed={cell['seed']}",
        "versions": {"python": "3.11.7"},
        "revision": {"commit": "0123456789abcdef0123", "dirty": False},
        "hardware": {"device": "cpu", "cores": 2},
        "data": {"fingerprint": "feed"},
        "created": "2026-11-20T12:00:00+00:00",
    } | parts
