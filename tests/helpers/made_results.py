"""Results built by hand for the tests of scoring."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from cab.results import cells
from cab.results.load import FRAME_COLUMNS, METRIC, OWN, PUBLISHED, K, kind_of_data, score_of
from tests.helpers.made_records import make_config

HIGHER = {"acc", "f_score", "psnr"}


def result(
    value: float, attention: str = "vanilla", metric: str = "mse", seed: int = 0, **changes: Any
) -> dict[str, Any]:
    """One row of results; columns that depend on others have the values of :mod:`cab.results.load`."""
    cell = {"task": "lstf", "dataset": "etth1", "config_variant": "M", "backbone": "informer", "pattern": "NC"}
    cell |= {"attention": attention, "preset": "mini", "seed": seed}
    cell |= {name: changes[name] for name in cell if name in changes}
    data = kind_of_data(cell["dataset"], cell["preset"])
    place = (cell["task"], cell["backbone"], cell["pattern"], cell["dataset"], cell["preset"])
    of_suite = next((each for each in cells.suite_cells() if (*each.key, each.dataset, cells.PRESET) == place), None)
    anchors = cells.read_anchors().get(of_suite.key) if of_suite else None
    digest = "-".join(map(str, cell.values()))
    row = {
        **cell, "label": cell["attention"], "task_version": 1, "data": data, "kind": METRIC,
        "source": PUBLISHED if cell["preset"] == PUBLISHED else OWN,
        "metric": metric, "value": value, "unit": "", "higher_is_better": metric in HIGHER, "primary": True,
        "status": "finished", "score": K if of_suite else score_of(cell["task"], data),
        "K": math.nan, "reason": "" if anchors or not of_suite else "the cell has no anchors",
        "steps": math.nan, "unfinished": False, "diverged": False, "slots": "", "verified": "yes", "program": "",
        "params": 1, "train_seconds": 1.0, "peak_memory_bytes": 1, "revision": "", "hardware": "", "started": "",
        "data_id": "", "unpublished_files": "", "hash": digest, "file": f"{digest}.json",
        "baselines": {}, "changed_options": {}, "config": make_config(cell),
    }  # fmt: skip
    if of_suite and anchors and metric == of_suite.metric:
        row["K"] = of_suite.retained(anchors, value)
    return row | {name: changes[name] for name in changes if name in FRAME_COLUMNS}


def mine(value: float, attention: str, metric: str = "mse", **changes: Any) -> dict[str, Any]:
    """A result of a task that Table 3 does not have."""
    return result(value, attention, metric, **{"task": "mine", **changes})


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    """The frame of rows of :func:`result`."""
    return pd.DataFrame(rows, columns=list(FRAME_COLUMNS))


def index_of(
    scores: pd.DataFrame, attention: str, task: str = "all", pattern: str = "NC", column: str = "index"
) -> float:
    rows = scores[(scores["attention"] == attention) & (scores["task"] == task) & (scores["pattern"] == pattern)]
    assert len(rows) == 1
    return float(rows[column].iloc[0])
