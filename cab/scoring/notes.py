"""Notes for a table of indices: missing values, excluded values, and the reasons."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cab.files.disk import listed
from cab.records.results import PUBLISHED
from cab.registry.tables import CONFIGS
from cab.scoring.changed_settings import CHANGED_MARK, changed_settings
from cab.scoring.normalization import (
    NO_ATTENTION,
    PUBLISHED_TERM,
    TERM,
    corrections,
    population,
    required_attentions,
)

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str, str]
"""Pattern, task, attention."""
MetricKey = tuple[str, ...]
"""Data set, variant, backbone, metric."""


class Gap(NamedTuple):
    """Reasons why an attention has no index in a task.

    Attributes:
        lacking: metrics without a result.
        broken: metrics whose value is NaN or inf, with the file of the result.
        flat: metrics without a standard deviation.
    """

    lacking: list[MetricKey]
    broken: dict[MetricKey, str]
    flat: list[MetricKey]


def find_gaps(results: pd.DataFrame, needed: pd.DataFrame) -> dict[Key, Gap]:
    """Return the gaps of all attentions with a result in a pattern, for each task that their index requires."""
    broken_files: dict[Key, dict[MetricKey, str]] = {}
    columns = results[["pattern", "task", "attention", "value", "file", *TERM[2:]]]
    for pattern, task, name, value, file, *number in columns.itertuples(index=False, name=None):
        files = broken_files.setdefault((pattern, task, name), {})
        files[tuple(number)] = file if value != value else files.get(tuple(number), "")
    flat = _by_task(needed[needed["std"].isna()])
    attentions = results[["pattern", "attention"]].drop_duplicates().to_numpy()
    gaps = {}
    for (pattern, task), numbers in _by_task(needed).items():
        for key in [(pattern, task, str(name)) for of, name in attentions if of == pattern]:
            files = broken_files.get(key, {})
            lacking = [number for number in numbers if number not in files]
            broken = {number: file for number, file in files.items() if file and number in numbers}
            if any(gap := Gap(lacking, broken, flat.get((pattern, task), []))):
                gaps[key] = gap
    return gaps


def notes_on_scores(
    results: pd.DataFrame, needed: pd.DataFrame, gaps: Mapping[Key, Gap], normalization: str
) -> list[str]:
    """Return one sentence per reason for a missing, excluded or doubtful value.

    Args:
        needed: the terms of the indices (see :func:`cab.scoring.normalization.terms`).
        gaps: see :func:`find_gaps`.
    """
    return [
        *_not_scored(results, needed, normalization),
        *_without_deviation(results, needed),
        *_missing_numbers(results, gaps),
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


def _without_deviation(results: pd.DataFrame, needed: pd.DataFrame) -> Iterator[str]:
    """Report metrics that cannot be normalized because too few attentions have them or all values are equal."""
    measured = results[results["value"].notna()].groupby(TERM)["attention"].unique()
    for (pattern, task), numbers in _by_task(needed[needed["std"].isna()]).items():
        required = max(required_attentions(dataset) for dataset, *_ in numbers)
        groups: dict[tuple[str, ...], list[MetricKey]] = {}
        for number in numbers:
            attentions = population(measured.get((pattern, task, *number), ()))
            groups.setdefault(tuple(attentions), []).append(number)
        for names, members in groups.items():
            metrics = listed(_names(members))
            if len(names) < required:
                have = f" ({listed(names)})" if names else ""
                reason = f"{metrics}: {len(names)} of the required {required} attentions{have}"
            else:
                reason = f"{listed(names)} have equal values of {metrics}"
            yield f"{pattern} {task}: no index; {reason}"


def _missing_numbers(results: pd.DataFrame, gaps: Mapping[Key, Gap]) -> list[str]:
    measured = set(zip(results["pattern"], results["task"], strict=True))
    published = set(results.loc[results["preset"] == PUBLISHED, "file"])
    notes = []
    for (pattern, task, name), gap in gaps.items():
        if (pattern, task) not in measured:
            notes.append(f"{pattern}: no average over tasks, because {task} has no results")
            continue
        files = ["" if file in published else f" in {file}" for file in gap.broken.values()]
        broken = [metric + file for metric, file in zip(_names(gap.broken), files, strict=True)]
        for reason, texts in (("missing", _names(gap.lacking)), ("NaN or inf", broken)):
            if texts:
                notes.append(f"{pattern} {task}: no index for {name} ({reason}: {listed(texts)})")
    return list(dict.fromkeys(notes))


def _corrected_constants(needed: pd.DataFrame) -> list[str]:
    used = {" ".join(term).lower() for term in needed[PUBLISHED_TERM].itertuples(index=False, name=None)}
    return [
        f"official: {row['column']} of {row['pattern']} {row['task']} {row['metric']} is {row['corrected']}, not "
        f"{row['published']}: {row['reason']}"
        for row in corrections().to_dict("records")
        if " ".join(str(row[name]) for name in PUBLISHED_TERM).lower() in used
    ]


def _fewer_seeds(results: pd.DataFrame) -> Iterator[str]:
    """Report attentions of preset ``paper`` with fewer seeds than the published means of LSTF are taken over."""
    runs = results[(results["preset"] == "paper") & (results["task"] == "lstf") & results["value"].notna()]
    if runs.empty:
        return
    with (CONFIGS / "paper" / "lstf.csv").open(newline="") as file:
        repeats = {(row["dataset"], row["features"]): int(row["repeats"]) for row in csv.DictReader(file)}
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
