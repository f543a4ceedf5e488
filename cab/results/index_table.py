"""Tables of compositional indices: one per pattern, own and published attentions together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pandas as pd

from cab.patterns import pattern_rank
from cab.records.results import verdicts
from cab.results.changed_settings import CHANGED_MARK, changed_settings
from cab.results.formats import Cell, Fields, index
from cab.results.index import AVERAGE, COLUMNS, SOURCES, Scores, order_table
from cab.results.selection import REHEARSAL, kinds_of_data
from cab.results.statistics import Verdict
from cab.results.table import Column, Table

OWN = SOURCES[0]
ORDER_SIGNS = {Verdict.BETTER: ">", Verdict.WORSE: "<", Verdict.ONE_SEED: "", "": ""}
"""Sign between a row and the next; all other verdicts are ``~``."""

ORDER_LEGEND = {
    ">": "> significantly larger than in the next row",
    "~": "~ not significantly different from the next row",
}


def verified_indices(scores: Scores) -> pd.DataFrame:
    """Return the table of indices with the verdict on the code of each attention."""
    verified = verdicts(scores.results)
    pairs = zip(scores.table["pattern"], scores.table["attention"], strict=True)
    return scores.table[COLUMNS].assign(verified=[verified[pair] for pair in pairs])


def named_members(places: Mapping[str, list[str]]) -> str:
    """Return the metrics that a task averages, grouped by place."""
    groups: dict[str, list[str]] = {}
    for place, metrics in places.items():
        groups.setdefault(", ".join(metrics), []).append(place)
    return "; ".join(f"{metrics} of {', '.join(names)}" for metrics, names in groups.items())


def index_tables(
    scored: Mapping[str, Scores], table: pd.DataFrame, *, is_official: bool
) -> Iterator[tuple[Table, list[tuple[str, str]]]]:
    """Yield one table per pattern, best attention first, and the metrics of each of its tasks.

    With own results, only their patterns are shown. A rehearsal has other constants: its rows precede the others.

    Args:
        scored: scores by source (:func:`cab.results.index.scores_by_source`).
        table: their indices with the columns verified and source.
        is_official: whether runs of other settings than the published ones are marked.
    """
    words = {key: word for source, scores in scored.items() for key, word in _order(source, scores)}
    changed = {key for source, scores in scored.items() for key in _changed(source, scores)} if is_official else set()
    is_trained = {source: bool((scores.results["hash"] != "").any()) for source, scores in scored.items()}
    marks = _marks(scored)

    def cell(row: Fields) -> Cell:
        return index(row["index"], row["low"], row["high"], is_single=is_trained[row["source"]] and row["seeds"] == 1)

    def label(row: Fields) -> str:
        is_changed = (row["source"], row["pattern"], row["attention"]) in changed
        return f"{row['attention']}{marks[row['source']]}{f' {CHANGED_MARK}' * is_changed}"

    own = table[table["source"] == OWN] if OWN in scored else table
    table = table[table["pattern"].isin(own["pattern"])]
    for pattern, rows in sorted(table.groupby("pattern"), key=lambda group: pattern_rank(str(group[0]))):
        members = [
            (task + f" ({source})" * (len(scored) > 1), named_members(places))
            for source, scores in scored.items()
            for (of, task), places in scores.members.items()
            if of == pattern
        ]
        tasks = list(dict.fromkeys(rows["task"]))
        is_several = len({task for scores in scored.values() for of, task in scores.members if of == pattern}) > 1
        shown = rows if is_several else rows[rows["task"] != AVERAGE]
        shown = shown.assign(
            label=[label(row) for row in shown.to_dict("records")],
            seeds=shown["seeds"].where(shown["seeds"] > 0),
            rank=shown["task"].map(tasks.index),
            block=shown["source"].map(list(scored).index) if marks.get(OWN) else 0,
        ).sort_values(["rank", "block", "index"], ascending=[True, True, False], kind="stable")
        names = shown.loc[shown["rank"] == shown["rank"].min(), ["source", "attention"]]
        pairs = itertools.pairwise(names.itertuples(index=False, name=None))
        adjacent = [words.get((str(pattern), *one, *other), "") for one, other in pairs]
        made = Table.wide(shown, "task", cell, heading=str(pattern))
        signs = [ORDER_SIGNS.get(word, "~") for word in [*adjacent, ""]]
        made.columns.insert(0, Column("", list(map(Cell, signs))))
        made.remarks = [text for sign, text in ORDER_LEGEND.items() if sign in signs]
        yield made, members


def _order(source: str, scores: Scores) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the verdict on the averages of every two attentions of a pattern."""
    order = order_table(scores)
    pairs = order[order["task"] == AVERAGE][["pattern", "better", "worse", "verdict"]]
    for pattern, better, worse, word in pairs.itertuples(index=False, name=None):
        yield (pattern, source, better, source, worse), word


def _changed(source: str, scores: Scores) -> Iterator[tuple[str, str, str]]:
    """Yield each pattern and attention with runs of other settings than the published ones."""
    runs = scores.results[["pattern", "attention", "record"]].dropna()
    for pattern, name, record in runs.itertuples(index=False, name=None):
        if changed_settings(record):
            yield source, pattern, name


def _marks(scored: Mapping[str, Scores]) -> dict[str, str]:
    """Return what follows the names of each source if there are several."""
    if len(scored) == 1:
        return dict.fromkeys(scored, "")
    is_rehearsal = bool((kinds_of_data(scored[OWN].results) == REHEARSAL).any())
    return {source: f" ({source})" for source in scored} | {OWN: f" ({REHEARSAL})" * is_rehearsal}
