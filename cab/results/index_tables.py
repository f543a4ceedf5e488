"""Tables of compositional indices, one per pattern with all sources, and their notes: what is missing, and why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from cab.files.disk import listed
from cab.patterns import pattern_rank
from cab.registry.names import is_generated
from cab.registry.tables import read_table
from cab.results.changed_settings import CHANGED_MARK, with_changed
from cab.results.formats import Fields, TableCell, index
from cab.results.guards import REHEARSAL_NOTE
from cab.results.index import FLAT, NO_CONSTANTS, RECOMPUTED, Scores, is_average, order_table, pairs_of
from cab.results.load import AVERAGE, INDEX, OWN, PUBLISHED, REHEARSAL, runs_of
from cab.results.normalization import NORMALIZATIONS, OF_RESULTS, OFFICIAL, corrections, population
from cab.results.published import PUBLISHED_TERM
from cab.results.statistics import Verdict
from cab.results.summarize import seeds_of_rows
from cab.results.table import Column, Table

ORDER_SIGNS = {Verdict.BETTER: ">", Verdict.WORSE: "<", Verdict.ONE_SEED: "", "": ""}
"""Sign between a row and the next; all other verdicts are ``~``."""
ORDER_LEGEND = {
    ">": "> significantly larger than in the next row",
    "~": "~ not significantly different from the next row",
}


# --- tables -----------------------------------------------------------------------------------------------------------


def index_tables(scored: Mapping[str, Scores]) -> Iterator[tuple[Table, list[tuple[str, str]]]]:
    """Yield one table per pattern, best attention first, and the metrics of each of its tasks.

    With own results, only their patterns are shown. A rehearsal has other constants: its rows precede the others. A
    sign marks runs of other settings than the published ones.

    Args:
        scored: scores by source (:func:`cab.results.index.scores_by_source`).
    """
    order = order_table(scored[OWN]).to_numpy().tolist() if OWN in scored else []
    words = {tuple(row[:4]): row[-1] for row in order}
    changed = _changed(scored[OWN]) if OWN in scored else set()
    is_rehearsal = OWN in scored and bool((scored[OWN].results["data"] == REHEARSAL).any())
    seeds = {(source, *row): count for source in scored for row, count in seeds_of_rows(scored[source].results).items()}
    labels = {source: "" if source == OWN else f" ({scores.label})" for source, scores in scored.items()}
    labels = dict.fromkeys(scored, "") if len(scored) == 1 else labels
    labels |= {OWN: f" ({REHEARSAL})"} if is_rehearsal and len(scored) > 1 else {}

    def cell(row: Fields) -> TableCell:
        is_single = row["source"] == OWN and math.isnan(row["low"])
        return index(row["index"], row["low"], row["high"], row["missing"], is_single=is_single)

    def label(row: Fields) -> str:
        is_changed = row["source"] == OWN and (row["pattern"], row["attention"]) in changed
        return f"{row['attention']}{labels[row['source']]}{f' {CHANGED_MARK}' * is_changed}"

    table = pd.concat([scores.table for scores in scored.values()], ignore_index=True)
    own = table[table["source"] == OWN] if OWN in scored else table
    table = table[table["pattern"].isin(own["pattern"])]
    for pattern, rows in sorted(table.groupby("pattern"), key=lambda group: pattern_rank(str(group[0]))):
        members = [
            (f"{task}, {scores.label}" if len(scored) > 1 else task, named_members(places))
            for scores in scored.values()
            for (of, task), places in scores.members.items()
            if of == pattern and (of, task) in pairs_of(scores.results)
        ]
        tasks = list(dict.fromkeys(rows["task"]))
        is_several = rows.loc[~rows["task"].map(is_average), "task"].nunique() > 1
        shown = rows if is_several else rows[~rows["task"].map(is_average)]
        shown = shown.assign(
            label=[label(row) for row in shown.to_dict("records")],
            seeds=shown[["source", "pattern", "attention"]].apply(tuple, axis=1).map(seeds),
            rank=shown["task"].map(tasks.index),
            block=shown["source"].map(list(scored).index) if is_rehearsal else 0,
        ).sort_values(["rank", "block", "index"], ascending=[True, True, False], kind="stable")
        first = shown[shown["rank"] == shown["rank"].min()]
        names = first["attention"].where(first["source"] == OWN, "")
        adjacent = [words.get((pattern, first["task"].iloc[0], *pair), "") for pair in itertools.pairwise(names)]
        made = Table.wide(shown, "task", cell, heading=str(pattern), caption=_caption(scored))
        signs = [ORDER_SIGNS.get(word, "~") for word in [*adjacent, ""]]
        made.columns.insert(0, Column("", list(map(TableCell, [*signs, *[""] * len(made.rows)][: len(made.rows)]))))
        made.remarks = [text for sign, text in ORDER_LEGEND.items() if sign in signs]
        yield made, members


def _caption(scored: Mapping[str, Scores]) -> str:
    """Return how the indices of each source were made."""
    texts = [
        "published: as printed" if scores.source == PUBLISHED else f"{source}: {NORMALIZATIONS[scores.normalization]}"
        for source, scores in scored.items()
    ]
    return f"compositional index; {'; '.join(texts)}"


def named_members(places: Mapping[str, list[str]]) -> str:
    """Return the metrics that a task averages, grouped by place."""
    groups: dict[str, list[str]] = {}
    for place, metrics in places.items():
        groups.setdefault(", ".join(metrics), []).append(place)
    return "; ".join(f"{metrics} of {', '.join(names)}" for metrics, names in groups.items())


def _changed(scores: Scores) -> set[tuple[str, str]]:
    """Return each pattern and attention with runs of other settings than the published ones."""
    runs = with_changed(runs_of(scores.results))
    rows = runs[["pattern", "attention", "changed"]].itertuples(index=False, name=None)
    return {(pattern, name) for pattern, name, changed in rows if changed and scores.normalization != OF_RESULTS}


# --- notes ------------------------------------------------------------------------------------------------------------


def no_score(frame: pd.DataFrame, *, normalization: str | None = None) -> list[str]:
    """Return one sentence per place whose results have metrics only, with the reason, and on published ones."""
    names = ["preset", "task", "dataset", "config_variant", "backbone", "pattern"]
    lines = []
    for place in frame[frame["score"] == ""].drop_duplicates(names)[[*names, "hash"]].to_dict("records"):
        if is_generated(place["dataset"]) and not place["hash"]:
            reason = "K needs records: a CSV file does not have the settings and the data of a run"
        elif is_generated(place["dataset"]):
            reason = "generated data outside the cells of the suite (`cab list cells`)"
        else:
            reason = f"the paper's index does not include task {place['task']}"
        lines.append(f"{' '.join(filter(None, map(place.get, names)))}: no score: {reason}")
    published = frame[(frame["source"] == PUBLISHED) & (frame["score"] == INDEX)]
    folders = [file.rpartition("/")[0] for file in published["file"]]
    with_index = {folder for folder, kind in zip(folders, published["kind"], strict=True) if kind == INDEX}
    if set(folders) - with_index and normalization is None:
        lines.append(
            "published results without printed indices: no score; --normalization official recomputes them; "
            "own results need a column preset"
        )
    return lines


def notes_on(scores: Scores) -> list[str]:
    """Return one sentence per reason for a missing, excluded or doubtful value of computed indices."""
    if scores.source == PUBLISHED:
        return []
    return [
        *([REHEARSAL_NOTE] if (scores.results["data"] == REHEARSAL).any() else []),
        *_without_constants(scores),
        *_of_two(scores),
        *_missing_values(scores),
        *_fewer_seeds(scores.results),
        *_unpublished_data(scores.results),
        *_other_training(scores),
        *(_corrected_constants(scores) if scores.normalization == OFFICIAL else []),
        *(
            f"{pattern}: {AVERAGE} excludes {task} (Section 3.1); --task with the names of all tasks includes it"
            for pattern, task in scores.apart
        ),
    ]


def _without_constants(scores: Scores) -> Iterator[str]:
    """Report tasks without terms, and metrics that cannot be normalized."""
    known = set(pairs_of(scores.terms))
    for pattern, task in pairs_of(scores.results[scores.results["primary"].astype(bool)]):
        if (pattern, task) not in known:
            yield f"{pattern} {task}: no index; {NO_CONSTANTS}"
    flat = scores.terms[scores.terms["std"].isna()]
    for pattern, task in pairs_of(flat):
        rows = flat[(flat["pattern"] == pattern) & (flat["task"] == task)]
        measured = scores.results[(scores.results["pattern"] == pattern) & (scores.results["task"] == task)]
        names = [
            " ".join(filter(None, name))
            for name in rows[["backbone", "dataset", "config_variant", "metric"]].itertuples(index=False, name=None)
        ]
        if len(measured):
            yield f"{pattern} {task}: no index; {listed(names)}: {FLAT}"


def _of_two(scores: Scores) -> Iterator[str]:
    """Report patterns whose two attentions have indices of 0.707 and -0.707 by definition."""
    for pattern, names in scores.results.groupby("pattern", sort=False)["attention"].unique().items():
        if scores.normalization == OF_RESULTS and len(population(names)) == 2:
            yield f"{pattern}: every metric of two attentions is 0.707 and -0.707 once normalized; run more attentions"


def _missing_values(scores: Scores) -> Iterator[str]:
    """Report why an attention has no index, and which tasks the average of a pattern lacks altogether."""
    measured = set(pairs_of(scores.results))
    for pattern, task in pairs_of(scores.terms):
        if (pattern, task) not in measured:
            yield f"{pattern}: no average over tasks, because {task} has no results"
    rows = scores.table[(scores.table["missing"] != "") & ~scores.table["task"].map(is_average)]
    for pattern, task, attention, reason in rows[["pattern", "task", "attention", "missing"]].to_numpy():
        if reason not in (FLAT, NO_CONSTANTS):
            yield f"{pattern} {task}: no index for {attention} ({reason})"


def _corrected_constants(scores: Scores) -> list[str]:
    used = set(scores.terms[PUBLISHED_TERM].itertuples(index=False, name=None))
    return [
        f"official: {row['column']} of {row['pattern']} {row['task']} {row['metric']} is {row['corrected']}, not "
        f"{row['published']}: {row['reason']}"
        for row in corrections().to_dict("records")
        if tuple(row[name] for name in PUBLISHED_TERM) in used
    ]


def _fewer_seeds(results: pd.DataFrame) -> Iterator[str]:
    """Report attentions of preset ``paper`` with fewer seeds than the published means of LSTF are taken over."""
    runs = results[(results["preset"] == "paper") & (results["task"] == "lstf") & results["value"].notna()]
    if runs.empty:
        return
    repeats = {(row["dataset"], row["features"]): int(row["repeats"]) for row in read_table("lstf")}
    seeds = runs.groupby(["dataset", "config_variant", "attention"])["seed"].nunique().reset_index()
    for (dataset, features), rows in seeds.groupby(["dataset", "config_variant"]):
        required = repeats.get((str(dataset), str(features)), 0)
        if fewer := list(rows.loc[rows["seed"] < required, "attention"]):
            means = f"the published values are means over {required} seeds"
            yield f"lstf {dataset} {features}: {means}; fewer: {listed(fewer)}"


def _other_training(scores: Scores) -> Iterator[str]:
    """Report runs that were not trained as published."""
    if scores.source == RECOMPUTED or scores.normalization == OF_RESULTS:
        return
    if "paper" not in set(scores.results["preset"]):
        yield (
            f"the paper's constants are for its full training; results of preset {scores.results['preset'].iloc[0]} "
            "are not comparable with them"
        )
    runs = with_changed(runs_of(scores.results))
    key: Any
    for key, of in runs.groupby(["pattern", "task", "dataset", "backbone", "changed"], sort=False):
        *place, changed = key
        if changed:
            where, names = " ".join(place), listed(dict.fromkeys(of["attention"]))
            yield f"{where}: {names} {CHANGED_MARK} not comparable with the paper ({', '.join(changed)})"


def _unpublished_data(results: pd.DataFrame) -> Iterator[str]:
    runs = results[results["unpublished_files"] != ""]
    if len(runs):
        names = sorted({name for text in runs["unpublished_files"] for name in text.split()})
        files = listed(dict.fromkeys(runs["file"]))
        yield f"measured on files that are not the published ones ({listed(names)}): {files}"
