"""The compositional index (section 3.2, appendix C): one number an attention and task, and their average.

Each metric is turned so that higher is better and normalised; the index of a task is the flat mean of its metrics over
all backbones and data sets, the index of a pattern the mean over its tasks. There is never a mean over missing numbers:
an attention that lacks a number has no index in that task, and none for the pattern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cab.patterns import pattern_rank
from cab.records.record import PLACE
from cab.scoring.intervals import Error, Key, Spread
from cab.scoring.normalization import TERM, terms
from cab.scoring.notes import Gap, corrected_constants, find_gaps, missing_numbers, not_scored, without_deviation
from cab.scoring.selection import comparable

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["pattern", "task", "attention", "index", "low", "high", "seeds"]
AVERAGE = "all"


def score_table(results: pd.DataFrame, *, normalization: str = "results") -> pd.DataFrame:
    """Compositional index of every pattern, task and attention; ``task="all"`` is the average over tasks.

    Args:
        results: as :func:`cab.load_results` gives them, of one preset.
        normalization: what a metric is measured against. ``results``: mean and sample deviation over the given results
            (see :func:`cab.scoring.normalization.population`); ``paper``: Tables 7-10 as printed; ``official``: the
            same with the digits of the official script. Under the last two the tasks of a pattern, and the metrics of
            a task, are the paper's.

    Returns:
        Columns pattern, task, attention, ci, low, high, seeds, best first in each pattern and task. ``index`` is NaN
        where a number is missing, or where the given attentions do not differ. ``low`` and ``high`` bound the 95%
        confidence interval over seeds (see :class:`cab.scoring.intervals.Spread`), NaN with one seed. ``seeds`` is the
        smallest number of seeds behind a number of the row, 0 where one is missing.

    Raises:
        ValueError: results that are not to be scored together (see :func:`cab.scoring.selection.comparable`), or an
            unknown normalisation.
    """
    return score(results, normalization=normalization).table[COLUMNS]


@dataclass(frozen=True)
class Scores:
    """``table``: the columns of :func:`score_table`, and ``standard_error`` of ``index``.

    ``results`` are what was scored and what was measured beside (see :func:`cab.scoring.selection.comparable`);
    ``members`` says what each task averages, ``{(pattern, task): {"informer etth1 M": ["mse", "mae"], ...}}``;
    ``notes`` say in sentences what is missing and what was left out; ``gaps`` and ``errors`` have the reason for no
    index, and the error, of each ``(pattern, task, attention)`` with one.
    """

    table: pd.DataFrame
    results: pd.DataFrame
    members: dict[tuple[str, str], dict[str, list[str]]]
    notes: list[str]
    gaps: dict[Key, Gap]
    errors: dict[Key, Error]


def score(results: pd.DataFrame, *, normalization: str = "results") -> Scores:
    """All that :func:`score_table` is made of."""
    everything = comparable(results)
    results = everything[everything["primary"].astype(bool)]
    needed = terms(results, normalization)
    rows, errors = _rows(results, needed, _shares(results, needed))
    gaps = find_gaps(results, needed)
    notes = [
        *not_scored(results, needed, normalization),
        *without_deviation(results, needed),
        *missing_numbers(results, gaps),
        *(corrected_constants(needed) if normalization == "official" else []),
    ]
    table = _table(rows, list(dict.fromkeys([*results["task"], *needed["task"]])))
    return Scores(table, everything, _members(needed), notes, gaps, errors)


def _shares(results: pd.DataFrame, needed: pd.DataFrame) -> pd.DataFrame:
    """A row a run with ``place``, where it was measured as text, and ``share``: what it adds to the index of its task.

    The share is NaN where the run lacks one of the metrics there or its normalisation.
    """
    table = results.merge(needed, on=TERM)
    sign = np.where(table["higher_is_better"].astype(bool), 1.0, -1.0)
    table["share"] = sign * table["weight"] * (table["value"] - table["mean"]) / table["std"]
    place = ["pattern", *PLACE]
    runs = table.groupby([*place, "attention", "seed"], sort=False)["share"].agg(["sum", "count"]).reset_index()
    wanted = needed.groupby(place).size().rename("wanted").reset_index()
    runs = runs.merge(wanted, on=place)
    runs["share"] = runs["sum"].where(runs["count"] == runs["wanted"])
    runs["place"] = runs["backbone"] + " " + runs["dataset"] + " " + runs["config_variant"]
    return runs[["pattern", "task", "place", "attention", "seed", "share"]]


def _rows(
    results: pd.DataFrame, needed: pd.DataFrame, runs: pd.DataFrame
) -> tuple[list[dict[str, Any]], dict[Key, Error]]:
    """The rows of the table, and the errors of those that have several seeds."""
    means = runs.groupby(["pattern", "task", "attention", "place"], sort=False)["share"].agg(["mean", "count", "size"])
    means.loc[means["count"] < means["size"], "mean"] = math.nan
    tasks = means.groupby(level=["pattern", "task", "attention"], sort=False).agg(
        index=("mean", "sum"), known=("mean", "count"), seeds=("count", "min")
    )
    index = {key: values for key, *values in tasks.itertuples(name=None)}
    places = needed[["pattern", *PLACE]].drop_duplicates().groupby(["pattern", "task"], sort=False).size()
    spread = Spread(runs)
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


def _row(pattern: str, task: str, attention: str, ci: float, error: Error | None, seeds: int) -> dict[str, Any]:
    low, high = error.interval(ci) if error else (math.nan, math.nan)
    names = {"pattern": pattern, "task": task, "attention": attention}
    deviation = math.sqrt(error.variance) if error else math.nan
    return {**names, "index": ci, "standard_error": deviation, "low": low, "high": high, "seeds": seeds}


def _average(
    tasks: list[dict[str, Any]], errors: dict[Key, Error], pattern: str, attention: str
) -> tuple[dict[str, Any], Error | None]:
    """The mean over all tasks of the pattern; NaN as soon as one is NaN."""
    known = [errors.get((pattern, row["task"], attention)) for row in tasks]
    error = Error.mean(known) if tasks and all(known) else None  # type: ignore[arg-type]
    ci = sum(row["index"] for row in tasks) / len(tasks) if tasks else math.nan
    seeds = min((row["seeds"] for row in tasks), default=0)
    return _row(pattern, AVERAGE, attention, ci, error, seeds), error


def _table(rows: list[dict[str, Any]], tasks: list[str]) -> pd.DataFrame:
    """The rows in order: patterns as in the paper, the average before the tasks, the best attention first."""
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
