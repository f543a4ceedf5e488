"""Results built by hand for the tests of scoring."""

from __future__ import annotations

from typing import Any

import pandas as pd

from cab.records.results import COLUMNS

HIGHER = {"acc", "f_score", "psnr"}


def result(
    value: float, attention: str = "vanilla", metric: str = "mse", seed: int = 0, **changes: Any
) -> dict[str, Any]:
    """One row of results."""
    cell = {"task": "lstf", "dataset": "etth1", "config_variant": "M", "backbone": "informer", "pattern": "NC"}
    names = {"preset": "mini", "task_version": 1, "attention": attention, "seed": seed, "metric": metric} | changes
    cell |= {name: value for name, value in names.items() if name in COLUMNS}
    digest = "-".join(str(cell[name]) for name in cell if name != "metric")
    rest = {"unit": "", "higher_is_better": metric in HIGHER, "primary": True, "params": 1, "train_seconds": 1.0}
    rest |= {
        "peak_memory_bytes": 1,
        "revision": "",
        "hash": digest,
        "file": f"{digest}.json",
        "status": "finished",
        "record": None,
    }
    return rest | {"value": value} | cell | {name: changes[name] for name in changes if name in rest}


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS))


def index_of(
    scores: pd.DataFrame, attention: str, task: str = "all", pattern: str = "NC", column: str = "index"
) -> float:
    rows = scores[(scores["attention"] == attention) & (scores["task"] == task) & (scores["pattern"] == pattern)]
    assert len(rows) == 1
    return float(rows[column].iloc[0])
