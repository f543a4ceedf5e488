"""The compositional index (Section 3.2, Appendix C): one score per attention and task, and the average over tasks.

Each metric is normalized, with the sign changed if lower is better. The index of a task is the mean of its metrics over
all backbones and data sets; the index of a pattern is the mean over its tasks. Missing values are never averaged over:
an attention without a value for any metric has no index for the task and none for the pattern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY
from cab.scoring.intervals import Key, SeedVariance, StandardError
from cab.scoring.normalization import TERM, terms
from cab.scoring.notes import (
    Gap,
    corrected_constants,
    fewer_seeds,
    find_gaps,
    missing_numbers,
    not_scored,
    unpublished_data,
    without_deviation,
)
from cab.scoring.selection import comparable

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["pattern", "task", "attention", "index", "low", "high", "seeds"]
AVERAGE = "all"


def score_table(results: pd.DataFrame, *, normalization: str = "results") -> pd.DataFrame:
    """Return the compositional index of every pattern, task and attention; ``task="all"`` is the average over tasks.

    Args:
        results: table returned by :func:`cab.load_results`, of a single preset.
        normalization: source of mean and standard deviation. ``results``: mean and sample standard deviation over the
            given results (see :func:`cab.scoring.normalization.population`). ``paper``: Tables 7-10 as printed.
            ``official``: the constants of the official script. The last two require the paper's tasks and metrics.

    Returns: Columns pattern, task, attention, index, low, high, seeds, sorted by index within each pattern and task.
        ``index`` is NaN if a value is missing or all attentions have the same value. ``low`` and ``high`` bound the 95%
        confidence interval over seeds (see :class:`cab.scoring.intervals.SeedVariance`), NaN for a single seed.
        ``seeds`` is the smallest number of seeds of any value in the row, 0 if one is missing.

    Raises:
        ValueError: the results cannot be scored together (see :func:`cab.scoring.selection.comparable`), or the
            normalization is unknown.
    """
    return score(results, normalization=normalization).table[COLUMNS]


@dataclass(frozen=True)
class Scores:
    """Compositional indices with everything they are derived from.

    Attributes:
        table: the columns of :func:`score_table`, and ``standard_error`` of ``index``.
        results: the scored results with their non-primary metrics (see :func:`cab.scoring.selection.comparable`).
        members: the metrics that each task averages, ``{(pattern, task): {"informer etth1 M": ["mse", "mae"], ...}}``.
        notes: sentences about missing and excluded values.
        gaps: reason for each missing index, by (pattern, task, attention).
        errors: standard error of each index with several seeds, by (pattern, task, attention).
    """

    table: pd.DataFrame
    results: pd.DataFrame
    members: dict[tuple[str, str], dict[str, list[str]]]
    notes: list[str]
    gaps: dict[Key, Gap]
    errors: dict[Key, StandardError]


def score(results: pd.DataFrame, *, normalization: str = "results") -> Scores:
    """Compute the compositional indices with everything they are derived from."""
    everything = comparable(results)
    results = everything[everything["primary"].astype(bool)]
    needed = terms(results, normalization)
    rows, errors = _rows(results, needed, _shares(results, needed))
    gaps = find_gaps(results, needed)
    notes = [
        *not_scored(results, needed, normalization),
        *without_deviation(results, needed),
        *missing_numbers(results, gaps),
        *fewer_seeds(results),
        *unpublished_data(results),
        *(corrected_constants(needed) if normalization == "official" else []),
    ]
    table = _table(rows, list(dict.fromkeys([*results["task"], *needed["task"]])))
    return Scores(table, everything, _members(needed), notes, gaps, errors)


def _shares(results: pd.DataFrame, needed: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run with ``place`` (backbone and data set) and ``share`` (contribution to the task's index).

    The share is NaN if the run lacks one of the place's metrics or its normalization.
    """
    table = results.merge(needed, on=TERM)
    sign = np.where(table["higher_is_better"].astype(bool), 1.0, -1.0)
    table["share"] = sign * table["weight"] * (table["value"] - table["mean"]) / table["std"]
    place = ["pattern", *COMPARISON_KEY]
    runs = table.groupby([*place, "attention", "seed"], sort=False)["share"].agg(["sum", "count"]).reset_index()
    wanted = needed.groupby(place).size().rename("wanted").reset_index()
    runs = runs.merge(wanted, on=place)
    runs["share"] = runs["sum"].where(runs["count"] == runs["wanted"])
    runs["place"] = runs["backbone"] + " " + runs["dataset"] + " " + runs["config_variant"]
    return runs[["pattern", "task", "place", "attention", "seed", "share"]]


def _rows(
    results: pd.DataFrame, needed: pd.DataFrame, runs: pd.DataFrame
) -> tuple[list[dict[str, Any]], dict[Key, StandardError]]:
    """Return the rows of the table, and the standard errors of those with several seeds."""
    means = runs.groupby(["pattern", "task", "attention", "place"], sort=False)["share"].agg(["mean", "count", "size"])
    means.loc[means["count"] < means["size"], "mean"] = math.nan
    tasks = means.groupby(level=["pattern", "task", "attention"], sort=False).agg(
        index=("mean", "sum"), known=("mean", "count"), seeds=("count", "min")
    )
    index = {key: values for key, *values in tasks.itertuples(name=None)}
    places = needed[["pattern", *COMPARISON_KEY]].drop_duplicates().groupby(["pattern", "task"], sort=False).size()
    spread = SeedVariance(runs)
    rows, errors = [], {}
    measured = set(zip(runs["pattern"], runs["task"], strict=True))
    for pattern, attention in results[["pattern", "attention"]].drop_duplicates().itertuples(index=False, name=None):
        own = []
        for (_, task), wanted in places[places.index.get_level_values(0) == pattern].items():
            key = (pattern, task, attention)
            ci, known, seeds = index.get(key, (math.nan, 0, 0))
            complete = known == wanted
            error = spread.error(*key) if complete else None
            own.append(_row(*key, ci if complete else math.nan, error, int(seeds) if complete else 0))
            if error:
                errors[key] = error
        average, error = _average(own, errors, pattern, attention)
        rows += [average, *(row for row in own if (pattern, row["task"]) in measured)]
        if error:
            errors[(pattern, AVERAGE, attention)] = error
    return rows, errors


def _row(pattern: str, task: str, attention: str, ci: float, error: StandardError | None, seeds: int) -> dict[str, Any]:
    low, high = error.interval(ci) if error else (math.nan, math.nan)
    names = {"pattern": pattern, "task": task, "attention": attention}
    deviation = math.sqrt(error.variance) if error else math.nan
    return {**names, "index": ci, "standard_error": deviation, "low": low, "high": high, "seeds": seeds}


def _average(
    tasks: list[dict[str, Any]], errors: dict[Key, StandardError], pattern: str, attention: str
) -> tuple[dict[str, Any], StandardError | None]:
    """Return the mean over all tasks of the pattern; NaN if one is NaN."""
    known = [errors.get((pattern, row["task"], attention)) for row in tasks]
    error = StandardError.mean(known) if tasks and all(known) else None  # type: ignore[arg-type]
    ci = sum(row["index"] for row in tasks) / len(tasks) if tasks else math.nan
    seeds = min((row["seeds"] for row in tasks), default=0)
    return _row(pattern, AVERAGE, attention, ci, error, seeds), error


def _table(rows: list[dict[str, Any]], tasks: list[str]) -> pd.DataFrame:
    """Return the rows sorted by pattern, average before tasks, and index."""
    import pandas as pd

    order = {task: place for place, task in enumerate([AVERAGE, *tasks])}
    keys = [
        (*pattern_rank(row["pattern"]), order[row["task"]], math.isnan(row["index"]), -row["index"], row["attention"])
        for row in rows
    ]
    ranked = [rows[place] for place in sorted(range(len(rows)), key=keys.__getitem__)]
    return pd.DataFrame(ranked, columns=[*COLUMNS, "standard_error"])


def _members(needed: pd.DataFrame) -> dict[tuple[str, str], dict[str, list[str]]]:
    members: dict[tuple[str, str], dict[str, list[str]]] = {}
    for pattern, task, dataset, config_variant, backbone, metric in needed[TERM].itertuples(index=False, name=None):
        place = " ".join(filter(None, (backbone, dataset, config_variant)))
        members.setdefault((pattern, task), {}).setdefault(place, []).append(metric)
    return members
