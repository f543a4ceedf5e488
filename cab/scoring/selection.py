"""Which results are scored together, and what must not be mixed."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cab.config.trainer_config import measured
from cab.errors import UserError
from cab.records.record import CELL, COMPARISON_KEY, Record, Status
from cab.records.results import EXAMPLE_COMMAND, SYNTHETIC, is_generated
from cab.registry.registries import TASKS

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


def select(
    results: pd.DataFrame,
    *,
    preset: str | None = None,
    patterns: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    latest: bool = False,
) -> pd.DataFrame:
    """The rows of ``results`` with these names, whatever their case; None keeps all.

    Args:
        latest: of each task, keep only what its newest version measured.

    Raises:
        ValueError: a name that no result has; says which there are.
    """
    chosen = {"preset": preset and [preset], "pattern": patterns, "task": tasks, "dataset": datasets}
    for column, names in chosen.items():
        if not names:
            continue
        present = results[column].str.lower()
        for name in names:
            if not (present == name.lower()).any():
                there = ", ".join(sorted(results[column].unique())) or "none"
                raise UserError(f"no result has {column} '{name}'; there is {there}")
        results = results[present.isin([name.lower() for name in names])]
    if latest:
        results = results[results["task_version"] == results.groupby("task")["task_version"].transform("max")]
    return results


def rows_in_index(results: pd.DataFrame) -> pd.DataFrame:
    """Those of ``results`` whose tasks are part of the compositional index; unknown tasks are."""
    beside = {task.name for task in TASKS if not task.in_index}
    return results[~results["task"].str.lower().isin(beside)]


def comparable(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` of the index with one row a cell, metric and seed, ready to be scored together.

    Names that differ in case alone are spelt as the first of them, copies of a record are dropped, and values that are
    infinite are NaN. Attentions that were not trained under the same settings are warned about.

    Raises:
        ValueError: nothing to score; more than one preset; real and synthetic data; different data under one name;
            two versions of a task; two results for one cell and seed; a metric that is to go up in one result and down
            in another.
    """
    results = rows_in_index(results)
    if not results["primary"].any():
        raise UserError(f"no results to score: run a cell first, as in `{EXAMPLE_COMMAND}`")
    _refuse_mixtures(results)
    spelt = {name: _spelt_alike(results[name]) for name in (*COMPARISON_KEY, "metric")}
    table = results.assign(**spelt, value=results["value"].astype(float))
    table["value"] = table["value"].where(table["value"].abs() < float("inf"))
    if (table["hash"] != "").any():  # records come in the order of their hashes, CSV files in their author's
        table = table.sort_values([*COMPARISON_KEY], kind="stable")
    directions = table.groupby(["task", "metric"])["higher_is_better"].nunique()
    if (directions > 1).any():
        names = " ".join(directions.index[directions > 1][0])
        raise UserError(f"'{names}' is better high in some results and better low in others: correct the records")
    table = _without_duplicates(table)
    _tell_of_settings(table)
    return table


def _tell_of_settings(table: pd.DataFrame) -> None:
    """Say so when attentions that are compared differ in more than the attention."""
    runs = table[table["value"].notna() & table["record"].notna()].drop_duplicates("file")
    runs = runs.assign(settings=[_settings(record) for record in runs["record"]])
    for names, rows in runs.groupby([*COMPARISON_KEY, "pattern"]):
        different = rows.drop_duplicates("settings")
        if len(different) > 1:
            configs = [_flat(json.loads(text)) for text in different["settings"]]
            differing = [name for name in configs[0] if any(c.get(name) != configs[0][name] for c in configs)]
            shown = "; ".join(
                f"{attention}: {', '.join(f'{name}={config.get(name)}' for name in differing[:4])}"
                for attention, config in zip(different["attention"], configs, strict=True)
            )
            where = " ".join(str(name) for name in names if name)
            log.warning("%s: compared under different settings, %s", where, shown)


def _settings(record: Record) -> str:
    """What attentions that are compared should have in common, as JSON."""
    shared: dict[str, Any] = {
        name: record.config.get(name) for name in ("task", "backbone", "trainer", "other_attention")
    }
    if isinstance(shared["trainer"], Mapping):
        shared["trainer"] = measured(shared["trainer"])
    return json.dumps(shared, sort_keys=True)


def data_ranks(results: pd.DataFrame) -> pd.Series:
    """Which of the data under one name each row was measured on: 0 those of most runs of its place, 1 the next, ...

    A run without a score, or of a CSV file, says nothing of its data and has 0.
    """
    import pandas as pd

    known = {id(record): _data(record) for record in results["record"]}
    data = [known[id(record)] for record in results["record"]]
    places = [tuple(map(str.lower, place)) for place in zip(*(results[name] for name in COMPARISON_KEY), strict=True)]
    runs: dict[tuple[str, ...], Counter[str]] = {}
    for place, text, _ in set(zip(places, data, results["file"], strict=True)):
        runs.setdefault(place, Counter()).update([text] if text else [])
    rank = {
        (place, text): number
        for place, counts in runs.items()
        for number, text in enumerate(sorted(counts, key=lambda text: (-counts[text], text)))
    }
    return pd.Series([rank.get(key, 0) for key in zip(places, data, strict=True)], index=results.index, dtype=int)


def other_data(results: pd.DataFrame, ranks: pd.Series, rank: int) -> str:
    """Where the data of ``rank`` differ from those of most runs, in words, with a file of each."""
    first = results[ranks == rank].iloc[0]
    same_place = results[[*COMPARISON_KEY]].apply(lambda names: names.str.lower())
    here = (same_place == [first[name].lower() for name in COMPARISON_KEY]).all(axis=1)
    usual = next(row for _, row in results[here & (ranks == 0)].iterrows() if _data(row["record"]))
    one, other = _flat(usual["record"].data), _flat(first["record"].data)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    shown = ", ".join(f"{name} is {one.get(name)!s:.40} and {other.get(name)!s:.40}" for name in names[:2])
    place = " ".join(first[name] for name in COMPARISON_KEY if first[name])
    return f"{place}: {shown} ({usual['file']} and {first['file']})"


def _data(record: Any) -> str:
    """What identifies the data of a run with a score, as JSON; empty where there is none."""
    known = isinstance(record, Record) and record.status is Status.FINISHED
    return json.dumps(record.data, sort_keys=True) if known else ""


def is_synthetic(results: pd.DataFrame) -> pd.Series:
    """Which of the results are of generated data."""
    return results["dataset"].map(is_generated).astype(bool)


def _spelt_alike(names: pd.Series) -> pd.Series:
    first: dict[str, str] = {}
    return names.map({name: first.setdefault(name.lower(), name) for name in names.unique()})


def _refuse_mixtures(results: pd.DataFrame) -> None:
    presets = sorted(results["preset"].unique())
    if len(presets) > 1:
        raise UserError(
            f"results of presets {', '.join(presets)} measure different things and are not scored together: "
            f"choose one with --preset, as in --preset {presets[0]}"
        )
    synthetic = is_synthetic(results)
    if synthetic.any() and not synthetic.all():
        real = sorted(results.loc[~synthetic, "dataset"].unique())
        raise UserError(
            f"results on synthetic and on real data ({', '.join(real)}) are not scored together: "
            f"choose with --dataset {SYNTHETIC} or --dataset {' '.join(real)}"
        )
    ranks = data_ranks(results)
    if ranks.any():
        raise UserError(
            f"results of different data under one name are not scored together: {other_data(results, ranks, 1)}. "
            "Name the records of one, or run the others again on its data, with force=true"
        )
    for task, versions in results.groupby(results["task"].str.lower())["task_version"]:
        if versions.nunique() > 1:
            files = results.loc[versions.index].groupby("task_version")["file"].first()
            found = ", ".join(f"{version} ({file})" for version, file in files.items())
            raise UserError(
                f"results of task '{task}' are of different versions, which measure different things: {found}. "
                "Keep the newest with --latest-version, and run the other cells again"
            )


def _without_duplicates(table: pd.DataFrame) -> pd.DataFrame:
    """The table with copies of one record dropped; different results for the same cell and seed are an error."""
    key = [*CELL, "metric"]
    twice = table.duplicated(key, keep=False)
    if not twice.any():
        return table
    copy = table.duplicated([*key, "hash", "value"]) & (table["hash"] != "")
    table = table[~copy]
    again = table[table.duplicated(key, keep=False)]
    if again.empty:
        return table
    first, second = again[(again[key] == again.iloc[0][key]).all(axis=1)].head(2).to_dict("records")
    cell = " ".join(f"{name}={first[name]}" for name in CELL if first[name] != "")
    files = first["file"] if first["file"] == second["file"] else f"{first['file']} and {second['file']}"
    raise UserError(
        f"two results for one cell ({cell}, metric {first['metric']}): {files}{_difference(first, second)}. "
        "Remove one, or score them apart"
    )


def _difference(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> str:
    """What differs between the configurations of two records, to tell the user where the second came from."""
    if not (first["record"] and second["record"]):
        return ""
    one, other = _flat(first["record"].config), _flat(second["record"].config)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    shown = ", ".join(f"{name} is {one.get(name)} and {other.get(name)}" for name in names[:4])
    return f"; {shown}" if shown else ""


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
