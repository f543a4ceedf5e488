"""What each cell of the suite tests, and what each metric of its tasks means, for the leaderboard page."""

from __future__ import annotations

import csv
import functools

from cab.files.config_folders import CONFIGS
from cab.suite.cells import Key


@functools.cache
def cell_descriptions() -> dict[Key, str]:
    """Return one sentence per cell, from configs/suite/descriptions.csv."""
    with (CONFIGS / "suite" / "descriptions.csv").open(newline="") as file:
        return {(row["task"], row["backbone"], row["pattern"]): row["tests"] for row in csv.DictReader(file)}


@functools.cache
def metric_meanings() -> dict[tuple[str, str], str]:
    """Return the meaning of each metric by task and name, from configs/suite/metrics.csv."""
    with (CONFIGS / "suite" / "metrics.csv").open(newline="") as file:
        return {(row["task"], row["metric"]): row["meaning"] for row in csv.DictReader(file)}
