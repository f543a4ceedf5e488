"""Notes for a table of indices: missing values, excluded values, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from cab.files.disk import listed
from cab.records.results import PUBLISHED
from cab.registry.tables import read_table
from cab.results.changed_settings import CHANGED_MARK, changed_settings
from cab.results.normalization import (
    MIN_ATTENTIONS,
    NO_ATTENTION,
    PUBLISHED_TERM,
    TERM,
    corrections,
    population,
)
from cab.results.selection import REHEARSAL, REHEARSAL_NOTE, kinds_of_data

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str, str]
"""Pattern, task, attention."""
MetricKey = tuple[str, ...]
"""Data set, variant, backbone, metric."""


FLAT = f"generated data, or fewer than {MIN_ATTENTIONS} attentions with different results"
"""Reason of a missing index: a metric without a standard deviation."""


def find_gaps(results: pd.DataFrame, needed: pd.DataFrame) -> dict[Key, str]:
    """Return the reason for each missing index of an attention with a result in the pattern."""
    files: dict[tuple[str, ...], str | None] = {}  # of values that are NaN, by attention and metric
    columns = results[["pattern", "task", "attention", *TERM[2:], "value", "file", "preset"]]
    for *names, value, file, preset in columns.itertuples(index=False, name=None):
        place = None if value == value else "" if preset == PUBLISHED else f" in {file}"
        files[tuple(names)] = place if files.get(tuple(names)) is None else files[tuple(names)]
    flat = _by_task(needed[needed["std"].isna()])
    attentions = results[["pattern", "attention"]].drop_duplicates().to_numpy()
    gaps = {}
    for (pattern, task), numbers in _by_task(needed).items():
        for key in [(pattern, task, str(name)) for of, name in attentions if of == pattern]:
            lacking = [number for number in numbers if (*key, *number) not in files]
            broken = [number for number in numbers if files.get((*key, *number)) is not None]
            texts = [f"missing: {listed(_names(lacking))}"] if lacking else []
            if broken:
                places = [f"{name}{files[*key, *number]}" for name, number in zip(_names(broken), broken, strict=True)]
                texts.append(f"NaN or inf: {listed(places)}")
            if texts or (pattern, task) in flat:
                gaps[key] = "; ".join(texts) or FLAT
    return gaps


def notes_on_scores(
    results: pd.DataFrame, needed: pd.DataFrame, gaps: Mapping[Key, str], normalization: str
) -> list[str]:
    """Return one sentence per reason for a missing, excluded or doubtful value of the indices with terms ``needed``."""
    return [
        *([REHEARSAL_NOTE] if (kinds_of_data(results) == REHEARSAL).any() else []),
        *_not_scored(results, needed, normalization),
        *_without_deviation(needed),
        *_of_two(results, normalization),
        *dict.fromkeys(_missing_numbers(results, gaps)),
        *_fewer_seeds(results),
        *_unpublished_data(results),
        *(_changed_settings(results) if normalization != "results" else []),
        *(_corrected_constants(needed) if normalization == "official" else []),
    ]


def _by_task(needed: pd.DataFrame) -> dict[tuple[str, str], list[MetricKey]]:
    """Return the metrics that each pattern and task requires."""
    tasks: dict[tuple[str, str], list[MetricKey]] = {}
    for pattern, task, *number in needed[TERM].itertuples(index=False, name=None):
        tasks.setdefault((pattern, task), []).append(tuple(number))
    return tasks


def _names(numbers: Iterable[MetricKey]) -> list[str]:
    return [" ".join(filter(None, (backbone, *place, metric))) for *place, backbone, metric in numbers]


def _not_scored(results: pd.DataFrame, needed: pd.DataFrame, normalization: str) -> Iterator[str]:
    scored = _by_task(needed)
    reason = f"measured only for '{NO_ATTENTION}':" if normalization == "results" else "no constants in the paper for"
    for key, numbers in _by_task(results[TERM].drop_duplicates()).items():
        if others := [number for number in numbers if number not in scored.get(key, ())]:
            yield f"{' '.join(key)}: not scored ({reason} {listed(_names(others))})"
    if normalization != "results" and not {"paper", PUBLISHED} & set(results["preset"]):
        yield (
            f"the paper's constants are for its full training; results of preset {results['preset'].iloc[0]} "
            "are not comparable with them"
        )


def _without_deviation(needed: pd.DataFrame) -> Iterator[str]:
    """Report metrics that cannot be normalized."""
    for key, numbers in _by_task(needed[needed["std"].isna()]).items():
        yield f"{' '.join(key)}: no index; {listed(_names(numbers))}: {FLAT}"


def _of_two(results: pd.DataFrame, normalization: str) -> Iterator[str]:
    """Report patterns whose two attentions have indices of 0.707 and -0.707 by definition."""
    for pattern, names in results.groupby("pattern", sort=False)["attention"].unique().items():
        if normalization == "results" and len(population(names)) == 2:
            yield f"{pattern}: every metric of two attentions is 0.707 and -0.707 once normalized; run more attentions"


def _missing_numbers(results: pd.DataFrame, gaps: Mapping[Key, str]) -> Iterator[str]:
    measured = set(zip(results["pattern"], results["task"], strict=True))
    for (pattern, task, name), reason in gaps.items():
        if (pattern, task) not in measured:
            yield f"{pattern}: no average over tasks, because {task} has no results"
        elif reason != FLAT:
            yield f"{pattern} {task}: no index for {name} ({reason})"


def _corrected_constants(needed: pd.DataFrame) -> list[str]:
    used = set(needed[PUBLISHED_TERM].itertuples(index=False, name=None))
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


def _changed_settings(results: pd.DataFrame) -> Iterator[str]:
    """Report runs of preset ``paper`` that were not trained as published."""
    runs: dict[tuple[str, ...], list[str]] = {}
    for record in results["record"].dropna().drop_duplicates():
        if settings := changed_settings(record):
            place = " ".join(str(record.cell[name]) for name in ("pattern", "task", "dataset", "backbone"))
            runs.setdefault((place, *settings), []).append(str(record.cell["attention"]))
    for (place, *settings), names in runs.items():
        attentions = listed(dict.fromkeys(names))
        yield f"{place}: {attentions} {CHANGED_MARK} not comparable with the paper ({', '.join(settings)})"


def _unpublished_data(results: pd.DataFrame) -> Iterator[str]:
    records = dict(zip(results["file"], results["record"], strict=True))
    marked = {str(file): record.unpublished_files for file, record in records.items() if record is not None}
    marked = {file: names for file, names in marked.items() if names}
    if marked:
        names = sorted({name for names in marked.values() for name in names})
        yield f"measured on files that are not the published ones ({listed(names)}): {listed(marked)}"
