"""What a person must know beside a table of indices: what is missing, what was left out, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from cab.scoring.normalization import ABLATION, PLACE, TERM, corrections, population

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = [*PLACE, "metric"]
_SHOWN = 3


def not_scored(results: pd.DataFrame, needed: pd.DataFrame, normalization: str) -> list[str]:
    """Metrics of the results that no index is made of."""
    wanted = set(needed[TERM].itertuples(index=False, name=None))
    left: dict[str, list[str]] = {}
    for term in results[TERM].drop_duplicates().itertuples(index=False, name=None):
        if term not in wanted:
            pattern, task, *number = term
            left.setdefault(f"{pattern} {task}", []).append(_named(number))
    reason = f"only '{ABLATION}' has" if normalization == "own" else "the paper has no constants for"
    notes = [f"{where}: not scored, {reason} {_listed(names)}" for where, names in left.items()]
    if normalization != "own" and not {"paper", "published"} & set(results["preset"]):
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
                notes.append(f"{pattern} {task}: no index; {_listed(names)} have the same {numbers}")
    return notes


def _by_population(
    wanted: Iterable[tuple[str, ...]], known: Mapping[tuple[str, ...], set[str]], pattern: str, task: str
) -> dict[tuple[str, ...], str]:
    """Which of the wanted numbers each set of attentions has."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for number in wanted:
        names = population(known.get((pattern, task, *number), ()))
        groups.setdefault(tuple(names), []).append(_named(number))
    return {names: _listed(numbers) for names, numbers in groups.items()}


def missing_numbers(results: pd.DataFrame, needed: pd.DataFrame) -> list[str]:
    """Attentions that have no index in a task, with the numbers that they lack."""
    have: dict[tuple[str, str, str], set[tuple[str, ...]]] = {}
    broken: dict[tuple[str, str, str], dict[str, str]] = {}
    attentions: dict[str, dict[str, None]] = {}
    columns = results[["pattern", "task", "attention", "value", "file", "preset", *_NUMBER]]
    for pattern, task, name, value, file, preset, *number in columns.itertuples(index=False, name=None):
        attentions.setdefault(pattern, {})[name] = None
        have.setdefault((pattern, task, name), set()).add(tuple(number))
        if value != value:
            where = "" if preset == "published" else f" in {file}"
            broken.setdefault((pattern, task, name), {})[_named(number)] = where
    measured = {(pattern, task) for pattern, task, _ in have}
    notes = []
    for (pattern, task), wanted in _by_task(needed).items():
        if (pattern, task) not in measured:
            if pattern in attentions:
                notes.append(f"{pattern}: no average over tasks, as there is no result for {task}")
            continue
        for name in attentions[pattern]:
            lacking = [_named(number) for number in wanted if number not in have.get((pattern, task, name), set())]
            if lacking:
                notes.append(f"{pattern} {task}: no index for {name}, which lacks {_listed(lacking)}")
            if found := broken.get((pattern, task, name)):
                texts = _listed([number + where for number, where in found.items()])
                notes.append(f"{pattern} {task}: no index for {name}, which has no number for {texts}")
    return notes


def corrected_constants(needed: pd.DataFrame) -> list[str]:
    """Where normalisation ``official`` does not use the number of the official script."""
    used = {tuple(name.lower() for name in term) for term in needed[TERM].itertuples(index=False, name=None)}
    return [
        f"official: {row['column']} of {row['pattern']} {row['task']} {row['metric']} is {row['corrected']}, not "
        f"{row['published']}: {row['reason']}"
        for row in corrections().to_dict("records")
        if (
            row["pattern"].lower(),
            *(str(row[name]).lower() for name in ("task", "dataset")),
            "",
            *(str(row[name]).lower() for name in ("backbone", "metric")),
        )
        in used
    ]


def _by_task(needed: pd.DataFrame) -> dict[tuple[str, str], list[tuple[str, ...]]]:
    """The numbers that each pattern and task needs."""
    found: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for pattern, task, *number in needed[["pattern", "task", *_NUMBER]].itertuples(index=False, name=None):
        found.setdefault((pattern, task), []).append(tuple(number))
    return found


def _named(number: Sequence[str]) -> str:
    dataset, variant, backbone, metric = number
    return " ".join(filter(None, (backbone, dataset, variant, metric)))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
