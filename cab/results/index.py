"""The compositional index (Section 3.2, Appendix C): one score per attention and task, and the average over tasks.

Each metric is normalized, with the sign changed if lower is better. The index of a task is the mean of its metrics over
all backbones and data sets; the index of a pattern is the mean over its tasks, of those of the paper over the ones in
Table 3. Missing values are never averaged over: an attention without a value for any metric has no index for the task
and none for the pattern.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY
from cab.records.results import PUBLISHED
from cab.results.normalization import NO_ATTENTION, SOFTMAX_VARIANTS, TERM, default_normalization, terms
from cab.results.notes import Key, find_gaps, notes_on_scores
from cab.results.published_cells import table3
from cab.results.selection import REHEARSAL, comparable, kinds_of_data
from cab.results.statistics import ORDER, Estimate, compare_pairs, weighted_sum

COLUMNS = ["pattern", "task", "attention", "index", "low", "high", "seeds"]
SOURCES = ("own", PUBLISHED)
BENEFIT = ["pattern", "task", "best", "efficient", "vanilla", "without"]
AVERAGE = "all"
PLACE = ["pattern", *COMPARISON_KEY]
MISSING = Estimate(math.nan, math.nan, 0)


def score_table(results: pd.DataFrame, *, normalization: str = "results", tasks: Collection[str] = ()) -> pd.DataFrame:
    """Return the compositional index of every pattern, task and attention; ``task="all"`` is the average over tasks.

    Args:
        results: table returned by :func:`cab.load_results`, of a single preset.
        normalization: source of mean and standard deviation (see :data:`cab.results.normalization.NORMALIZATIONS`).
        tasks: tasks that the average includes even in patterns where the paper's does not, such as ``lstf`` in NS.

    Returns:
        Columns pattern, task, attention, index, low, high, seeds, sorted by index within each pattern and task.
        ``index`` is NaN if a value is missing or all attentions have the same value. ``low`` and ``high`` bound the
        95% confidence interval (Student) over seeds, NaN for a single seed; the normalization is treated as known.
        ``seeds`` is the smallest number of seeds of any value in the row, 0 if one is missing.

    Raises:
        UserError: the results cannot be scored together, or the normalization is unknown.
    """
    return score(results, normalization=normalization, tasks=tasks).table[COLUMNS]


@dataclass(frozen=True)
class Scores:
    """Compositional indices with everything they are derived from.

    Attributes:
        results: the scored results with their non-primary metrics (see :func:`cab.results.selection.comparable`).
        members: the metrics that each task averages, ``{(pattern, task): {"informer etth1 M": ["mse", "mae"], ...}}``.
        notes: sentences about missing and excluded values.
        gaps: reason for each missing index, by (pattern, task, attention).
        estimates: each index with its variance over seeds, by (pattern, task, attention).
    """

    table: pd.DataFrame
    results: pd.DataFrame
    members: dict[tuple[str, str], dict[str, list[str]]]
    notes: list[str]
    gaps: dict[Key, str]
    estimates: dict[Key, Estimate]


def score(results: pd.DataFrame, *, normalization: str = "results", tasks: Collection[str] = ()) -> Scores:
    """Compute the compositional indices with everything they are derived from; see :func:`score_table`."""
    everything = comparable(results)
    if (kinds_of_data(everything) == REHEARSAL).all():  # the paper has no constants for generated data
        normalization = "results"
    results = everything[everything["primary"].astype(bool)]
    needed = terms(results, normalization)
    apart = tasks_apart(needed, tasks)
    estimates, rows = {}, []
    for row, estimate in _rows(results, needed, apart):
        rows.append(row)
        estimates[row["pattern"], row["task"], row["attention"]] = estimate
    gaps = find_gaps(results, needed)
    notes = [
        *notes_on_scores(results, needed, gaps, normalization),
        *(f"{pattern}: {AVERAGE} excludes {task} (Section 3.1); --task {task} includes it" for pattern, task in apart),
    ]
    table = _table(rows, list(dict.fromkeys([*results["task"], *needed["task"]])))
    return Scores(table, everything, _members(needed), notes, gaps, estimates)


def scores_by_source(
    results: pd.DataFrame, *, normalization: str | None = None, tasks: Collection[str] = ()
) -> dict[str, Scores]:
    """Score the user's and the published results apart, with the same constants: ``own`` and ``published``.

    The default normalization is ``official`` if there are both, or else ``results``.
    """
    sources = pd.Series(SOURCES[0], index=results.index).mask(results["preset"] == PUBLISHED, SOURCES[1])
    groups = {source: results[sources == source] for source in SOURCES if (sources == source).any()}
    normalization = normalization or default_normalization(results)
    return {source: score(rows, normalization=normalization, tasks=tasks) for source, rows in groups.items()}


def _shares(results: pd.DataFrame, needed: pd.DataFrame) -> dict[Key, list[list[float]]]:
    """Return the contributions to each task's index: one list per place (backbone and data set), one share per seed.

    A share is NaN if the run lacks one of the place's metrics or its normalization.
    """
    table = results.merge(needed, on=TERM)
    sign = np.where(table["higher_is_better"].astype(bool), 1.0, -1.0)
    table["share"] = sign * table["weight"] * (table["value"] - table["mean"]) / table["std"]
    runs = table.groupby([*PLACE, "attention", "seed"], sort=False)["share"].agg(["sum", "count"]).reset_index()
    runs = runs.merge(needed.groupby(PLACE).size().rename("required").reset_index(), on=PLACE)
    runs["share"] = runs["sum"].where(runs["count"] == runs["required"])
    shares: dict[Key, list[list[float]]] = {}
    for (pattern, task, *_, attention), rows in runs.groupby([*PLACE, "attention"], sort=False):
        shares.setdefault((str(pattern), str(task), str(attention)), []).append(rows["share"].to_list())
    return shares


def tasks_apart(needed: pd.DataFrame, tasks: Collection[str]) -> list[tuple[str, str]]:
    """Return each pattern and task of the paper that Table 3 does not combine: no part of the pattern's average.

    Section 3.1 leaves LSTF and PCC out of NS, where the encoders do not decide. ``tasks`` names those to include; the
    tasks of a pattern that has no others are included, too.
    """
    combined = {(cell.pattern, cell.task) for cell in table3()}
    of_paper = {task for _, task in combined} - set(tasks)
    pairs = [(str(pattern), str(task)) for pattern, task in needed[["pattern", "task"]].drop_duplicates().to_numpy()]
    apart = [(pattern, task) for pattern, task in pairs if task in of_paper and (pattern, task) not in combined]
    averaged = {pattern for pattern, task in pairs if (pattern, task) not in apart}
    return [(pattern, task) for pattern, task in apart if pattern in averaged]


def _rows(
    results: pd.DataFrame, needed: pd.DataFrame, apart: Collection[tuple[str, str]]
) -> Iterator[tuple[dict[str, Any], Estimate]]:
    """Yield the rows of the table, and each index with its variance over seeds."""
    shares = _shares(results, needed)
    places = needed[PLACE].drop_duplicates().groupby(["pattern", "task"], sort=False).size()
    measured = {key[:2] for key in shares}
    for pattern, attention in results[["pattern", "attention"]].drop_duplicates().itertuples(index=False, name=None):
        tasks = {}
        for (_, task), count in places[places.index.get_level_values(0) == pattern].items():
            values = shares.get((pattern, task, attention), [])
            is_complete = len(values) == count and not math.isnan(sum(map(sum, values)))
            estimate = weighted_sum((1.0, Estimate.of(seeds)) for seeds in values) if is_complete else MISSING
            tasks[task] = estimate, min(map(len, values)) if is_complete else 0
        averaged = [value for task, value in tasks.items() if (pattern, task) not in apart]
        average = weighted_sum((1 / len(averaged), estimate) for estimate, _ in averaged) if averaged else MISSING
        seeds = min((seeds for _, seeds in averaged), default=0)
        yield _row(pattern, AVERAGE, attention, average, seeds), average
        for task, (estimate, seeds) in tasks.items():
            if (pattern, task) in measured:
                yield _row(pattern, task, attention, estimate, seeds), estimate


def _row(pattern: str, task: str, attention: str, estimate: Estimate, seeds: int) -> dict[str, Any]:
    return dict(zip(COLUMNS, (pattern, task, attention, estimate.value, *estimate.interval(), seeds), strict=True))


def _table(rows: list[dict[str, Any]], tasks: list[str]) -> pd.DataFrame:
    order = [AVERAGE, *tasks]

    def key(row: Any) -> Any:
        index = row["index"]
        return *pattern_rank(row["pattern"]), order.index(row["task"]), math.isnan(index), -index, row["attention"]

    return pd.DataFrame(sorted(rows, key=key), columns=COLUMNS)


def _members(needed: pd.DataFrame) -> dict[tuple[str, str], dict[str, list[str]]]:
    members: dict[tuple[str, str], dict[str, list[str]]] = {}
    for pattern, task, dataset, config_variant, backbone, metric in needed[TERM].itertuples(index=False, name=None):
        place = " ".join(filter(None, (backbone, dataset, config_variant)))
        members.setdefault((pattern, task), {}).setdefault(place, []).append(metric)
    return members


def order_table(scores: Scores) -> pd.DataFrame:
    """Compare every two attentions with an index in a pattern and task, the larger index first.

    Returns:
        Columns pattern, task, and those of :func:`cab.results.statistics.compare_pairs`; one family per task.
    """
    rows = []
    for (pattern, task), ranked in scores.table.dropna(subset=["index"]).groupby(["pattern", "task"], sort=False):
        estimates = {name: scores.estimates[str(pattern), str(task), name] for name in ranked["attention"]}
        rows += [(pattern, task, *row) for row in compare_pairs(estimates)]
    return pd.DataFrame(rows, columns=["pattern", "task", *ORDER])


def benefit_of_attention(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the benefit of attention per task (Section 4.2, Table 12, Figure 3b) from a :func:`score_table`.

    Returns:
        Columns pattern, task, best (the best efficient attention), efficient (its index), vanilla (index of softmax
        attention: ``vanilla``, or else ``eager`` or ``flash``), without (index of ``none``); NaN without an index. The
        best attention is selected after the fact, which biases its index upwards.
    """
    rows = []
    tasks = scores[(scores["task"] != AVERAGE) & scores["index"].notna()]
    for (pattern, task), ranked in tasks.groupby(["pattern", "task"], sort=False):
        index = dict(zip(ranked["attention"], ranked["index"], strict=True))
        efficient = {name: ci for name, ci in index.items() if name not in (*SOFTMAX_VARIANTS, NO_ATTENTION)}
        best = max(efficient, key=lambda name: efficient[name], default="")
        vanilla = next((index[name] for name in SOFTMAX_VARIANTS if name in index), math.nan)
        rows.append((pattern, task, best, efficient.get(best, math.nan), vanilla, index.get(NO_ATTENTION, math.nan)))
    return pd.DataFrame(rows, columns=BENEFIT)
