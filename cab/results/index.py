"""The compositional index (Section 3.2, Appendix C): one score per attention and task, and the average over tasks.

Each metric is normalized, with the sign changed if lower is better. The index of a task is the mean of its metrics over
all backbones and published data sets; a data set of several parts, such as ETT, has the weight of one. The index of a
pattern is the mean over its tasks. An index needs every value that Table 3 has for its task and pattern: otherwise it
is absent, with the reason.

Each index says its source and its normalization. ``published`` is what the paper prints. An index that is computed from
printed metrics is ``recomputed``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cab.files.disk import listed
from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY
from cab.results.cells import NO_ATTENTION
from cab.results.guards import comparable
from cab.results.load import AVERAGE, INDEX, OWN, PUBLISHED, REFERENCE_SOURCE, metrics_of
from cab.results.normalization import (
    MIN_ATTENTIONS,
    OF_RESULTS,
    OFFICIAL,
    SOFTMAX_VARIANTS,
    TERM,
    constants,
    corrected,
    normalization_of,
    scales,
)
from cab.results.published import PART, PUBLISHED_TERM, on_published_sets, parts_of_sets, table3, tasks3, terms3
from cab.results.statistics import ORDER, Estimate, compare_pairs, weighted_sum
from cab.results.summarize import NOT_GIVEN, estimate, summarize, worst_verified

RECOMPUTED = "recomputed"
"""Source of an index that is computed from printed metrics."""
PRINTED = "printed"
"""Normalization of a printed index."""
INDEX_COLUMNS = [
    *("pattern", "task", "attention", "index", "low", "high", "seeds", "verified", "source", "normalization"),
    "missing",
]
BENEFIT = ["pattern", "task", "best", "efficient", "vanilla", "without"]
INDEX_KEY = ["pattern", "task", "attention"]
INDEX_PLACE = ["pattern", *COMPARISON_KEY]
NO_INDEX = Estimate(math.nan, math.nan, 0)
FLAT = f"fewer than {MIN_ATTENTIONS} attentions with different results"
"""Reason of a missing index: a metric without a standard deviation."""
NO_CONSTANTS = "the paper has no constants; use --normalization results"


class Key(NamedTuple):
    """The place of an index."""

    pattern: str
    task: str
    attention: str


@dataclass(frozen=True)
class Scores:
    """The indices of one source, with everything they are derived from.

    Attributes:
        table: columns :data:`INDEX_COLUMNS`, sorted by index within each pattern and task.
        results: the metrics that are scored, with their non-primary metrics (:func:`cab.results.guards.comparable`).
        terms: the values that each index averages, see :func:`_terms`; none for printed indices.
        apart: pattern and task of results that no average includes (Section 3.1).
        estimates: each index with its variance over seeds.
    """

    source: str
    normalization: str
    table: pd.DataFrame
    results: pd.DataFrame
    terms: pd.DataFrame
    apart: Collection[tuple[str, str]]
    estimates: Mapping[Key, Estimate]

    @property
    def label(self) -> str:
        """How the indices were made, in words."""
        if self.source == PUBLISHED:
            return "published"
        return f"{self.source} ({self.normalization})"

    @property
    def members(self) -> dict[tuple[str, str], dict[str, list[str]]]:
        """The metrics that each task averages: ``{(pattern, task): {"informer ett": ["mse", "mae"], ...}}``."""
        members: dict[tuple[str, str], dict[str, list[str]]] = {}
        for pattern, task, dataset, variant, backbone, metric in self.terms[TERM].itertuples(index=False, name=None):
            place = " ".join(filter(None, (backbone, dataset, variant)))
            members.setdefault((pattern, task), {}).setdefault(place, []).append(metric)
        return members


def index_table(
    frame: pd.DataFrame, *, normalization: str | None = None, tasks: Collection[str] = (), partial: bool = False
) -> pd.DataFrame:
    """Return the compositional index of every pattern, task and attention; ``task="all"`` is the average over tasks.

    Args:
        frame: table of :func:`cab.load_results`.
        normalization: source of mean and standard deviation (:data:`cab.results.normalization.NORMALIZATIONS`). If it
            is named, the indices of printed metrics are recomputed as well.
        tasks: tasks that the average includes even in patterns where the paper's does not, such as ``lstf`` in NS.
        partial: whether indices are made of the values that the results have; their tasks say of how many.

    Returns:
        Columns :data:`INDEX_COLUMNS`. ``low`` and ``high`` bound the 95% confidence interval (Student) over seeds, NaN
        for a single seed; the normalization is treated as known. ``seeds`` is the smallest number of seeds of any value
        in the row, 0 if one is missing, NaN for published values. ``missing`` is why there is no index.

    Raises:
        UserError: the results cannot be scored together, or the normalization is unknown.
    """
    scored = scores_by_source(frame, normalization=normalization, tasks=tasks, partial=partial)
    tables = [scores.table for scores in scored.values()]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=INDEX_COLUMNS)


def scores_by_source(
    frame: pd.DataFrame, *, normalization: str | None = None, tasks: Collection[str] = (), partial: bool = False
) -> dict[str, Scores]:
    """Return the indices of each source, of which none is scored together with another; see :func:`index_table`."""
    rows = frame[frame["score"] == INDEX]
    printed = rows[(rows["source"] == PUBLISHED) & (rows["kind"] == INDEX)]
    metrics = metrics_of(rows)
    groups = {OWN: metrics[metrics["source"].isin([OWN, REFERENCE_SOURCE])]}
    if normalization is not None:
        groups[RECOMPUTED] = corrected(metrics[metrics["source"] == PUBLISHED])
    scored = {
        source: score(comparable(of), source, normalization, tasks=tasks, partial=partial)
        for source, of in groups.items()
        if len(of)
    }
    if len(printed):
        scored[PUBLISHED] = printed_scores(printed, metrics[metrics["source"] == PUBLISHED])
    return scored


def printed_scores(printed: pd.DataFrame, results: pd.DataFrame) -> Scores:
    """Return printed indices as they are, of which no seeds are known, with the printed metrics."""
    missing = printed["value"].isna().map({True: NOT_GIVEN, False: ""})
    table = printed.assign(index=printed["value"], low=math.nan, high=math.nan, seeds=math.nan, missing=missing)
    table = _sorted(table.assign(normalization=PRINTED)[INDEX_COLUMNS], list(dict.fromkeys(printed["task"])))
    rows: Any = table[[*INDEX_KEY, "index"]].itertuples(index=False, name=None)
    estimates = {Key(*key): Estimate(value, math.nan, 0) for *key, value in rows}
    terms = pd.DataFrame(columns=[*TERM, "mean", "std", "weight"])
    return Scores(PUBLISHED, PRINTED, table, results, terms, (), estimates)


def score(
    results: pd.DataFrame,
    source: str = OWN,
    normalization: str | None = None,
    *,
    tasks: Collection[str] = (),
    partial: bool = False,
) -> Scores:
    """Compute the indices of :func:`cab.results.guards.comparable` results of one source; see :func:`index_table`."""
    primary = results[results["primary"].astype(bool)]
    normalization = normalization_of(primary, normalization)
    values = _values(primary, partial=partial)
    terms = _terms(values, primary, normalization, partial=partial)
    apart = _tasks_apart(terms, tasks)
    checked, names = worst_verified(results), _partial_names(primary) if partial else {}
    rows, estimates = [], {}
    for key, found, seeds, missing in _indices(primary, values, terms, apart):
        key = key._replace(task=names.get(key[:2], key.task))
        estimates[key] = found
        verified = checked[key.pattern, key.attention]
        seeds = math.nan if source == RECOMPUTED else seeds
        rows.append((*key, found.value, *found.interval(), seeds, verified, source, normalization, missing))
    tasks_of_results = [names.get(pair, pair[1]) for pair in pairs_of(pd.concat([results, terms]))]
    table = _sorted(pd.DataFrame(rows, columns=INDEX_COLUMNS), tasks_of_results)
    return Scores(source, normalization, table, results, terms, apart, estimates)


def pairs_of(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return each pattern and task of a frame, in its order."""
    return [*frame[["pattern", "task"]].drop_duplicates().itertuples(index=False, name=None)]


def _is_in_table(frame: pd.DataFrame) -> list[bool]:
    """Return for each row whether Table 3 has its task in its pattern."""
    return [pair in tasks3() for pair in zip(frame["pattern"], frame["task"], strict=True)]


def _sorted(table: pd.DataFrame, tasks: list[str]) -> pd.DataFrame:
    """Sort by pattern, task (averages first) and index, the largest first."""
    order = {task: rank for rank, task in enumerate(dict.fromkeys([*tasks, *table["task"]]))}
    ranks = table.assign(
        _pattern=table["pattern"].map(pattern_rank),
        _task=[-1 if is_average(task) else order[task] for task in table["task"]],
        _index=-table["index"],
    )
    by = ["_pattern", "_task", "_index", "attention"]
    return ranks.sort_values(by, kind="stable", ignore_index=True)[INDEX_COLUMNS]


# --- values and terms -------------------------------------------------------------------------------------------------


def _values(primary: pd.DataFrame, *, partial: bool) -> pd.DataFrame:
    """Return what an index can average: values of the published data sets, and those of tasks outside Table 3."""
    composed = on_published_sets(primary, partial=partial)
    others = primary[[not is_in for is_in in _is_in_table(primary)]]
    return pd.concat([composed[_is_in_table(composed)], others], ignore_index=True) if len(others) else composed


def _terms(values: pd.DataFrame, primary: pd.DataFrame, normalization: str, *, partial: bool) -> pd.DataFrame:
    """Return the terms of every index, one row each, with columns :data:`TERM`, mean, std and weight.

    The index of an attention in a task is the sum of weight * (value - mean) / std, with the sign changed if lower is
    better. The terms of a pattern with a task of Table 3 are all values of the table, or, if ``partial``, those that
    the results have. The terms of a task outside the table are the values that any attention has; the paper has no
    constants for them.
    """
    patterns = {pattern for pattern, task in pairs_of(primary) if (pattern, task) in tasks3()}
    table = pd.DataFrame([term for term in terms3() if term[0] in patterns], columns=PUBLISHED_TERM)
    table = table.assign(config_variant="")[TERM]
    if partial:
        table = table.merge(values[TERM].drop_duplicates(), on=TERM)
    if normalization == OF_RESULTS:
        measured = values.loc[values["attention"] != NO_ATTENTION, TERM].drop_duplicates()
        table = pd.concat([table, measured[[not is_in for is_in in _is_in_table(measured)]]], ignore_index=True)
        known = scales(values) if len(values) else constants(OFFICIAL)[:0].assign(config_variant="")
    else:
        known = constants(normalization).assign(config_variant="")
    terms = table.merge(known, on=TERM, how="left")
    return terms.assign(weight=1 / terms.groupby(["pattern", "task"])["metric"].transform("size"))


def _partial_names(primary: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the names of tasks whose index lacks values of Table 3: of how many it is made, parts of sets counted."""
    names: dict[tuple[str, str], str] = {}
    place = ["backbone", "published_set"]
    rows = primary[primary["value"].notna()].merge(parts_of_sets(), on=PART)
    of_table = Counter((*term[:3], term[3]) for term in terms3())  # a part counts if it has every metric
    rows["_metrics"] = rows.groupby(["pattern", *PART, *place])["metric"].transform("nunique")
    rows = rows.drop_duplicates(["pattern", *PART, *place])
    needed_of = [of_table[row] for row in rows[["pattern", "task", *place]].itertuples(index=False, name=None)]
    rows = rows[rows["_metrics"] >= pd.Series(needed_of, index=rows.index, dtype=int)]
    for pattern in dict.fromkeys(primary["pattern"]):
        found = total = 0
        for task in [task for of, task in sorted(tasks3()) if of == pattern]:
            needed = {
                (cell.backbone, cell.dataset): len(cell.parts) for cell in table3() if cell[:2] == (pattern, task)
            }
            of_task = rows[(rows["pattern"] == pattern) & (rows["task"] == task)]
            has = {key: (len(of), of["num_parts"].iloc[0]) for key, of in of_task.groupby(place)}
            needed |= {key: size for key, (_, size) in has.items()}
            count, size = sum(number for number, _ in has.values()), sum(needed.values())
            found, total = found + count, total + size
            if count < size:
                names[pattern, task] = f"{task} (partial: {count} of {size} values)"
        if found < total:
            names[pattern, AVERAGE] = f"{AVERAGE} (partial: {found} of {total} values)"
    return names


def is_average(task: str) -> bool:
    """Return whether a task is the average over tasks, perhaps a partial one."""
    return task.partition(" ")[0] == AVERAGE


def _tasks_apart(terms: pd.DataFrame, tasks: Collection[str]) -> list[tuple[str, str]]:
    """Return each pattern and task of the paper that Table 3 does not combine: no part of the pattern's average.

    Section 3.1 leaves LSTF and PCC out of NS, where the encoders do not decide. ``tasks`` names those to include; the
    tasks of a pattern that has no others are included, too.
    """
    of_paper = {task for _, task in tasks3()} - {task.lower() for task in tasks}
    pairs = pairs_of(terms)
    apart = [pair for pair in pairs if pair[1] in of_paper and pair not in tasks3()]
    averaged = {pattern for pattern, task in pairs if (pattern, task) not in apart}
    return [pair for pair in apart if pair[0] in averaged]


# --- indices ----------------------------------------------------------------------------------------------------------


def _indices(
    primary: pd.DataFrame, values: pd.DataFrame, terms: pd.DataFrame, apart: Collection[tuple[str, str]]
) -> Iterator[tuple[Key, Estimate, float, str]]:
    """Yield each index with its variance over seeds, its number of seeds, and why it is missing."""
    shares: dict[Key, list[Any]] = {}
    rows: Any = _shares(values, terms).itertuples(index=False)
    for row in rows:
        shares.setdefault(Key(row.pattern, row.task, row.attention), []).append(row)
    places: dict[Any, int] = (
        terms[INDEX_PLACE].drop_duplicates().groupby(["pattern", "task"], sort=False).size().to_dict()
    )
    gaps = _gaps(primary, values, terms)
    measured = pairs_of(primary)
    for pattern, attention in primary[["pattern", "attention"]].drop_duplicates().itertuples(index=False, name=None):
        tasks: dict[str, tuple[Estimate, float, str]] = {}
        for task in [task for of, task in dict.fromkeys([*places, *measured]) if of == pattern]:
            key = Key(pattern, task, attention)
            own = shares.get(key, [])
            reason = gaps.get(key) or next((row.missing for row in own if row.missing), "")
            if (pattern, task) not in places:
                reason = "missing: parts that other attentions have" if (pattern, task) in tasks3() else NO_CONSTANTS
            is_complete = not reason and len(own) == places[pattern, task]
            found = weighted_sum((1.0, estimate(row)) for row in own) if is_complete else NO_INDEX
            tasks[task] = found, min(row.seeds for row in own) if is_complete else 0, reason
        averaged = {
            task: each for task, each in tasks.items() if (pattern, task) not in apart and each[2] != NO_CONSTANTS
        }
        lacking = [task for task, (found, *_) in averaged.items() if math.isnan(found.value)]
        average = weighted_sum((1 / len(averaged), found) for found, *_ in averaged.values()) if averaged else NO_INDEX
        missing = f"no index in {', '.join(lacking)}" if lacking else "" if averaged else "no task has an index"
        seeds = 0 if lacking else min((seeds for _, seeds, _ in averaged.values()), default=0)
        yield Key(pattern, AVERAGE, attention), NO_INDEX if lacking else average, seeds, missing
        for task, each in tasks.items():
            if (pattern, task) in measured:
                yield Key(pattern, task, attention), *each


def _shares(values: pd.DataFrame, terms: pd.DataFrame) -> pd.DataFrame:
    """Return what each place (backbone and data set) contributes to the index of its task, summarized over seeds.

    The contribution of a run that lacks one of the place's metrics is missing.
    """
    table = values.merge(terms, on=TERM)
    sign = np.where(table["higher_is_better"].astype(bool), 1.0, -1.0)
    table["share"] = sign * table["weight"] * (table["value"] - table["mean"]) / table["std"]
    groups = table.groupby([*INDEX_PLACE, "attention", "seed"], sort=False)
    runs = groups[["source", "status", "verified"]].first().join(groups["share"].agg(["sum", "count"])).reset_index()
    runs = runs.merge(terms.groupby(INDEX_PLACE).size().rename("required").reset_index(), on=INDEX_PLACE)
    runs["share"] = runs["sum"].where(runs["count"] == runs["required"])
    return summarize(runs, [*INDEX_PLACE, "attention"], value="share")


def _gaps(primary: pd.DataFrame, values: pd.DataFrame, terms: pd.DataFrame) -> dict[Key, str]:
    """Return the reason for each missing index of an attention with a result in the pattern."""
    found = summarize(values, [*TERM, "attention"]).set_index([*TERM, "attention"])["missing"].to_dict()
    flat = {tuple(term) for term in terms.loc[terms["std"].isna(), TERM].itertuples(index=False, name=None)}
    of_pair: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for term in terms[TERM].itertuples(index=False, name=None):
        of_pair.setdefault(term[:2], []).append(term)
    gaps: dict[Key, str] = {}
    for pattern, attention in primary[["pattern", "attention"]].drop_duplicates().itertuples(index=False, name=None):
        for (of, task), needed in of_pair.items():
            if of != pattern:
                continue
            lacking = [term for term in needed if (*term, attention) not in found]
            failed = {term: text for term in needed if (text := found.get((*term, attention)))}
            texts = [f"missing: {listed(dict.fromkeys(map(_name, lacking)))}"] if lacking else []
            for text in dict.fromkeys(failed.values()):
                texts.append(f"{text}: {listed([_name(term) for term, of_term in failed.items() if of_term == text])}")
            texts = texts or ([FLAT] if flat.intersection(needed) else [])
            if texts:
                gaps[Key(pattern, task, attention)] = "; ".join(texts)
    return gaps


def _name(term: tuple[Any, ...]) -> str:
    """Return a term in words, such as ``informer ett mse``."""
    _, _, dataset, variant, backbone, metric = term
    return " ".join(filter(None, (backbone, dataset, variant, metric)))


# --- comparisons ------------------------------------------------------------------------------------------------------


def order_table(scores: Scores) -> pd.DataFrame:
    """Compare every two attentions with an index in a pattern and task, the larger index first.

    Returns:
        Columns pattern, task, and those of :func:`cab.results.statistics.compare_pairs`; one family per task.
    """
    rows = []
    for (pattern, task), ranked in scores.table.dropna(subset=["index"]).groupby(["pattern", "task"], sort=False):
        estimates = {name: scores.estimates[Key(str(pattern), str(task), name)] for name in ranked["attention"]}
        rows += [(pattern, task, *row) for row in compare_pairs(estimates)]
    return pd.DataFrame(rows, columns=["pattern", "task", *ORDER])


def benefit_of_attention(table: pd.DataFrame) -> pd.DataFrame:
    """Return the benefit of attention per task (Section 4.2, Table 12, Figure 3b) from an :func:`index_table`.

    Returns:
        Columns pattern, task, best (the best efficient attention), efficient (its index), vanilla (index of softmax
        attention: ``vanilla``, or else ``eager`` or ``flash``), without (index of ``none``); NaN without an index. The
        best attention is selected after the fact, which biases its index upwards.
    """
    rows = []
    tasks = table[(table["task"] != AVERAGE) & table["index"].notna()]
    for (pattern, task), ranked in tasks.groupby(["pattern", "task"], sort=False):
        index = dict(zip(ranked["attention"], ranked["index"], strict=True))
        efficient = {name: ci for name, ci in index.items() if name not in (*SOFTMAX_VARIANTS, NO_ATTENTION)}
        best = max(efficient, key=lambda name: efficient[name], default="")
        vanilla = next((index[name] for name in SOFTMAX_VARIANTS if name in index), math.nan)
        rows.append((pattern, task, best, efficient.get(best, math.nan), vanilla, index.get(NO_ATTENTION, math.nan)))
    return pd.DataFrame(rows, columns=BENEFIT)
