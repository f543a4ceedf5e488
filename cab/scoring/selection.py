"""Which results are scored together, and what must not be mixed."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.record import CELL, PLACE, Record
from cab.results import EXAMPLE_COMMAND, SYNTHETIC
from cab.runner.trainer_config import MACHINE_KEYS

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


def comparable(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` with one row a cell, metric and seed, ready to be scored together.

    Names that differ in case alone are spelt as the first of them, copies of a record are dropped, and values that are
    infinite are NaN. Attentions that were not trained under the same settings are warned about.

    Raises:
        ValueError: nothing to score; more than one preset; real and synthetic data; two versions of a task; two
            results for one cell and seed; a metric that is to go up in one result and down in another.
    """
    if not results["primary"].any():
        raise UserError(f"no results to score: run a cell first, as in `{EXAMPLE_COMMAND}`")
    _refuse_mixtures(results)
    spelt = {name: _spelt_alike(results[name]) for name in (*PLACE, "metric")}
    table = results.assign(**spelt, value=results["value"].astype(float))
    table["value"] = table["value"].where(table["value"].abs() < float("inf"))
    if (table["hash"] != "").any():  # records come in the order of their hashes, CSV files in their author's
        table = table.sort_values([*PLACE], kind="stable")
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
    for names, rows in runs.groupby([*PLACE, "pattern"]):
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
    shared: dict[str, Any] = {name: record.config.get(name) for name in ("task", "backbone", "trainer", "elsewhere")}
    if isinstance(shared["trainer"], Mapping):
        shared["trainer"] = {name: value for name, value in shared["trainer"].items() if name not in MACHINE_KEYS}
    return json.dumps({**shared, "data": record.data}, sort_keys=True)


def is_synthetic(results: pd.DataFrame) -> pd.Series:
    """Which of the results are of generated data."""
    return results["dataset"].str.lower() == SYNTHETIC


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
    for task, versions in results.groupby(results["task"].str.lower())["task_version"]:
        if versions.nunique() > 1:
            files = results.loc[versions.index].groupby("task_version")["file"].first()
            found = ", ".join(f"{version} ({file})" for version, file in files.items())
            raise UserError(
                f"results of task '{task}' are of different versions, which measure different things: {found}. "
                "Keep the newest with --latest, and run the other cells again"
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
