"""Notes for a table of indices: missing values, excluded values, and the reasons."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cab.files.config_folders import CONFIGS
from cab.files.disk import listed
from cab.records.record import COMPARISON_KEY, Record
from cab.records.results import PUBLISHED
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

_NUMBER = [*COMPARISON_KEY[1:], "metric"]
Key = tuple[str, str, str]
"""Pattern, task, attention."""
Number = tuple[str, ...]
"""Data set, variant, backbone, metric."""


def not_scored(results: pd.DataFrame, needed: pd.DataFrame, normalization: str) -> list[str]:
    """Report metrics of the results that no index includes."""
    wanted = set(needed[TERM].itertuples(index=False, name=None))
    left: dict[str, list[str]] = {}
    for term in results[TERM].drop_duplicates().itertuples(index=False, name=None):
        if term not in wanted:
            pattern, task, *number = term
            left.setdefault(f"{pattern} {task}", []).append(_named(tuple(number)))
    reason = f"measured only for '{NO_ATTENTION}':" if normalization == "results" else "no constants in the paper for"
    notes = [f"{where}: not scored ({reason} {listed(names)})" for where, names in left.items()]
    if normalization != "results" and not {"paper", PUBLISHED} & set(results["preset"]):
        notes.append(
            f"the paper's constants are for its full training; results of preset {results['preset'].iloc[0]} "
            "are not comparable with them"
        )
    return notes


def without_deviation(results: pd.DataFrame, needed: pd.DataFrame) -> list[str]:
    """Report metrics that cannot be normalized because too few attentions have them or all values are equal."""
    known: dict[tuple[str, ...], set[str]] = {}
    columns = results.loc[results["value"].notna(), ["pattern", "task", *_NUMBER, "attention"]]
    for *number, name in columns.itertuples(index=False, name=None):
        known.setdefault(tuple(number), set()).add(name)
    notes = []
    for (pattern, task), wanted in _by_task(needed[needed["std"].isna()]).items():
        for names, numbers in _by_population(wanted, known, pattern, task).items():
            required = max(required_attentions(dataset) for dataset, *_ in wanted)
            if len(names) < required:
                have = f" ({listed(names)})" if names else ""
                notes.append(
                    f"{pattern} {task}: no index; {numbers}: {len(names)} of the required {required} attentions{have}"
                )
            else:
                notes.append(f"{pattern} {task}: no index; {listed(names)} have equal values of {numbers}")
    return notes


def _by_population(
    wanted: Iterable[tuple[str, ...]], known: Mapping[tuple[str, ...], set[str]], pattern: str, task: str
) -> dict[tuple[str, ...], str]:
    """Return the wanted metrics of each set of attentions that have them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for number in wanted:
        names = population(known.get((pattern, task, *number), ()))
        groups.setdefault(tuple(names), []).append(_named(number))
    return {names: listed(numbers) for names, numbers in groups.items()}


class Gap(NamedTuple):
    """Reasons why an attention has no index in a task.

    Attributes:
        lacking: metrics without a result.
        broken: metrics whose value is NaN or inf, with the file of the result.
        flat: metrics without a standard deviation.
    """

    lacking: list[Number]
    broken: dict[Number, str]
    flat: list[Number]


def find_gaps(results: pd.DataFrame, needed: pd.DataFrame) -> dict[Key, Gap]:
    """Return the gaps of all attentions with a result in a pattern, for each task that their index requires."""
    have: dict[Key, set[Number]] = {}
    broken: dict[Key, dict[Number, str]] = {}
    columns = results[["pattern", "task", "attention", "value", "file", *_NUMBER]]
    for pattern, task, name, value, file, *number in columns.itertuples(index=False, name=None):
        have.setdefault((pattern, task, name), set()).add(tuple(number))
        if value != value:
            broken.setdefault((pattern, task, name), {})[tuple(number)] = file
    flat = _by_task(needed[needed["std"].isna()])
    attentions = list(results[["pattern", "attention"]].drop_duplicates().itertuples(index=False, name=None))
    gaps = {}
    for (pattern, task), wanted in _by_task(needed).items():
        for key in [(pattern, task, name) for of, name in attentions if of == pattern]:
            lacking = [number for number in wanted if number not in have.get(key, ())]
            files = {number: file for number, file in broken.get(key, {}).items() if number in wanted}
            if any(gap := Gap(lacking, files, flat.get((pattern, task), []))):
                gaps[key] = gap
    return gaps


def missing_numbers(results: pd.DataFrame, gaps: Mapping[Key, Gap]) -> list[str]:
    """Report attentions without an index in a task, and the metrics that they lack."""
    measured = set(zip(results["pattern"], results["task"], strict=True))
    places = dict(zip(results["file"], results["preset"] == PUBLISHED, strict=True))
    notes = []
    for (pattern, task, name), gap in gaps.items():
        if (pattern, task) not in measured:
            notes.append(f"{pattern}: no average over tasks, because {task} has no results")
            continue
        if gap.lacking:
            notes.append(f"{pattern} {task}: no index for {name} (missing: {listed(map(_named, gap.lacking))})")
        if gap.broken:
            texts = [_named(number) + ("" if places[file] else f" in {file}") for number, file in gap.broken.items()]
            notes.append(f"{pattern} {task}: no index for {name} (NaN or inf: {listed(texts)})")
    return list(dict.fromkeys(notes))


def corrected_constants(needed: pd.DataFrame) -> list[str]:
    """Report constants of the official script that ``official`` corrects."""
    used = {" ".join(term).lower() for term in needed[PUBLISHED_TERM].itertuples(index=False, name=None)}
    return [
        f"official: {row['column']} of {row['pattern']} {row['task']} {row['metric']} is {row['corrected']}, not "
        f"{row['published']}: {row['reason']}"
        for row in corrections().to_dict("records")
        if " ".join(str(row[name]) for name in PUBLISHED_TERM).lower() in used
    ]


def fewer_seeds(results: pd.DataFrame) -> list[str]:
    """Report attentions of preset ``paper`` with fewer seeds than the published means of LSTF are taken over."""
    runs = results[(results["preset"] == "paper") & (results["task"] == "lstf") & results["value"].notna()]
    found: dict[tuple[str, str, int], list[str]] = {}
    for (dataset, features, name), own in runs.groupby(["dataset", "config_variant", "attention"]):
        needed = _published_seeds().get((str(dataset), str(features)), 0)
        if own["seed"].nunique() < needed:
            found.setdefault((str(dataset), str(features), needed), []).append(str(name))
    return [
        f"lstf {dataset} {features}: the published values are means over {needed} seeds; fewer: {listed(names)}"
        for (dataset, features, needed), names in found.items()
    ]


@functools.cache
def _published_seeds() -> dict[tuple[str, str], int]:
    with (CONFIGS / "paper" / "lstf.csv").open(newline="") as file:
        return {(row["dataset"], row["features"]): int(row["repeats"]) for row in csv.DictReader(file)}


def unpublished_data(results: pd.DataFrame) -> list[str]:
    """Report runs on data files whose checksum is not the published one."""
    marked = {
        str(file): list(record.unpublished_files)
        for file, record in zip(results["file"], results["record"], strict=True)
        if isinstance(record, Record) and record.unpublished_files
    }
    names = sorted({name for files in marked.values() for name in files})
    return [f"measured on files that are not the published ones ({listed(names)}): {listed(marked)}"] if marked else []


def _by_task(needed: pd.DataFrame) -> dict[tuple[str, str], list[tuple[str, ...]]]:
    """Return the metrics that each pattern and task requires."""
    found: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for pattern, task, *number in needed[TERM].itertuples(index=False, name=None):
        found.setdefault((pattern, task), []).append(tuple(number))
    return found


def _named(number: Number) -> str:
    dataset, config_variant, backbone, metric = number
    return " ".join(filter(None, (backbone, dataset, config_variant, metric)))
