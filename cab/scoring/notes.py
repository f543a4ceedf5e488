"""What a person must know beside a table of indices: what is missing, what was left out, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cab.files.sanitize import listed
from cab.records.record import PLACE
from cab.records.results import PUBLISHED
from cab.scoring.intervals import Key
from cab.scoring.normalization import ABLATION, PUBLISHED_TERM, TERM, corrections, population

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = [*PLACE[1:], "metric"]
Number = tuple[str, ...]
"""Data set, variant, backbone, metric."""


def not_scored(results: pd.DataFrame, needed: pd.DataFrame, normalization: str) -> list[str]:
    """Metrics of the results that no index is made of."""
    wanted = set(needed[TERM].itertuples(index=False, name=None))
    left: dict[str, list[str]] = {}
    for term in results[TERM].drop_duplicates().itertuples(index=False, name=None):
        if term not in wanted:
            pattern, task, *number = term
            left.setdefault(f"{pattern} {task}", []).append(_named(tuple(number)))
    reason = f"only '{ABLATION}' has" if normalization == "results" else "the paper has no constants for"
    notes = [f"{where}: not scored, {reason} {listed(names)}" for where, names in left.items()]
    if normalization != "results" and not {"paper", PUBLISHED} & set(results["preset"]):
        notes.append(
            f"the paper's constants are those of its full training; results of preset {results['preset'].iloc[0]} "
            "are not comparable with them"
        )
    return notes


def without_deviation(results: pd.DataFrame, needed: pd.DataFrame) -> list[str]:
    """Metrics of the results that cannot be normalised, for lack of attentions or of any difference between them."""
    known: dict[tuple[str, ...], set[str]] = {}
    columns = results.loc[results["value"].notna(), ["pattern", "task", *_NUMBER, "attention"]]
    for *number, name in columns.itertuples(index=False, name=None):
        known.setdefault(tuple(number), set()).add(name)
    notes = []
    for (pattern, task), wanted in _by_task(needed[needed["std"].isna()]).items():
        for names, numbers in _by_population(wanted, known, pattern, task).items():
            if len(names) < 2:
                only = f"only one attention ({names[0]})" if names else "no attention"
                notes.append(
                    f"{pattern} {task}: no index; {only} has {numbers}, and a deviation needs two: run another"
                )
            else:
                notes.append(f"{pattern} {task}: no index; {listed(names)} have the same {numbers}")
    return notes


def _by_population(
    wanted: Iterable[tuple[str, ...]], known: Mapping[tuple[str, ...], set[str]], pattern: str, task: str
) -> dict[tuple[str, ...], str]:
    """Which of the wanted numbers each set of attentions has."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for number in wanted:
        names = population(known.get((pattern, task, *number), ()))
        groups.setdefault(tuple(names), []).append(_named(number))
    return {names: listed(numbers) for names, numbers in groups.items()}


class Gap(NamedTuple):
    """Why an attention has no index in a task.

    ``lacking`` numbers have no result, ``broken`` ones have one that is no number (with the file that it is in), and
    the metrics of ``flat`` ones have no deviation to measure against.
    """

    lacking: list[Number]
    broken: dict[Number, str]
    flat: list[Number]


def find_gaps(results: pd.DataFrame, needed: pd.DataFrame) -> dict[Key, Gap]:
    """Every gap of the attentions that have a result in a pattern, in any task that their index needs."""
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
    """Attentions that have no index in a task, with the numbers that they lack."""
    measured = set(zip(results["pattern"], results["task"], strict=True))
    places = dict(zip(results["file"], results["preset"] == PUBLISHED, strict=True))
    notes = []
    for (pattern, task, name), gap in gaps.items():
        if (pattern, task) not in measured:
            notes.append(f"{pattern}: no average over tasks, as there is no result for {task}")
            continue
        if gap.lacking:
            notes.append(f"{pattern} {task}: no index for {name}, which lacks {listed(map(_named, gap.lacking))}")
        if gap.broken:
            texts = [_named(number) + ("" if places[file] else f" in {file}") for number, file in gap.broken.items()]
            notes.append(f"{pattern} {task}: no index for {name}, which has no number for {listed(texts)}")
    return list(dict.fromkeys(notes))


def corrected_constants(needed: pd.DataFrame) -> list[str]:
    """Where normalisation ``official`` does not use the number of the official script."""
    used = {" ".join(term).lower() for term in needed[PUBLISHED_TERM].itertuples(index=False, name=None)}
    return [
        f"official: {row['column']} of {row['pattern']} {row['task']} {row['metric']} is {row['corrected']}, not "
        f"{row['published']}: {row['reason']}"
        for row in corrections().to_dict("records")
        if " ".join(str(row[name]) for name in PUBLISHED_TERM).lower() in used
    ]


def _by_task(needed: pd.DataFrame) -> dict[tuple[str, str], list[tuple[str, ...]]]:
    """The numbers that each pattern and task needs."""
    found: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for pattern, task, *number in needed[TERM].itertuples(index=False, name=None):
        found.setdefault((pattern, task), []).append(tuple(number))
    return found


def _named(number: Number) -> str:
    dataset, config_variant, backbone, metric = number
    return " ".join(filter(None, (backbone, dataset, config_variant, metric)))
