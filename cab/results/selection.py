"""Selection of results to be scored together, and rejection of results that are not comparable."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cab.errors import EXAMPLE_COMMAND, UserError
from cab.records.identity import distinctions, forward_batch_size
from cab.records.record import CELL, COMPARISON_KEY, Record, Status
from cab.records.results import PLACE
from cab.registry.names import is_generated
from cab.registry.registries import TASKS
from cab.results.cells import data_hash, read_anchors, runs_of

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
    """Return the rows of ``results`` with the given names, ignoring case; None selects all.

    With ``latest``, only the newest version of each task is selected. UserError if no result has a given name.
    """
    chosen = {"preset": preset and [preset], "pattern": patterns, "task": tasks, "dataset": datasets}
    for column, names in chosen.items():
        if not names:
            continue
        lower = results[column].str.lower()
        for name in names:
            if name.lower() not in set(lower):
                available = ", ".join(sorted(results[column].unique())) or "none"
                raise UserError(f"no result has {column} '{name}' (available: {available})")
        results = results[lower.isin([name.lower() for name in names])]
    if latest:
        results = results[results["task_version"] == results.groupby("task")["task_version"].transform("max")]
    return results


def rows_in_index(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``results`` whose tasks are included in the compositional index; unknown tasks are."""
    excluded = {task.name for task in TASKS if not task.in_index}
    return results[~results["task"].isin(excluded)]


def comparable(results: pd.DataFrame) -> pd.DataFrame:
    """Return ``results`` of the index with one row per cell, metric and seed, ready to be scored together.

    Results on generated data have no index, except in a rehearsal, and are left out if there are others. Copies of a
    record and results on other data are dropped, and infinite values become NaN. Raises UserError for results that are
    not comparable, and warns about attentions trained with different settings.
    """
    results = rows_in_index(results)
    if not results["primary"].any():
        raise UserError(f"no results to score; run a cell first: `{EXAMPLE_COMMAND}`")
    results = of_one_kind(results)
    presets = sorted(results["preset"].unique())
    if len(presets) > 1:
        raise UserError(
            f"results of presets {', '.join(presets)} are not comparable and cannot be scored together; "
            f"select one, for example with --preset {presets[0]}"
        )
    refuse_versions(results)
    table = of_one_data(results)
    table = table.assign(value=table["value"].astype(float))
    table["value"] = table["value"].where(table["value"].abs() < float("inf"))
    if (table["hash"] != "").any():  # records are sorted by hash, CSV files by their authors
        table = table.sort_values([*COMPARISON_KEY], kind="stable")
    directions = table.groupby(["task", "metric"])["higher_is_better"].nunique()
    if (directions > 1).any():
        names = " ".join(directions.index[directions > 1][0])
        raise UserError(
            f"'{names}' is higher-is-better in some results and lower-is-better in others; correct the records"
        )
    table = without_copies(table)
    _warn_about_settings(table)
    return table


def _warn_about_settings(table: pd.DataFrame) -> None:
    runs = table[table["value"].notna() & table["record"].notna()].drop_duplicates("file")
    cells = list(zip(*(runs[name] for name in (*COMPARISON_KEY, "pattern")), strict=True))
    settings = distinctions([*zip(cells, map(_settings, runs["record"]), strict=True)])
    compared: dict[tuple[str, ...], dict[str, str]] = {}
    for cell, text, attention in zip(cells, settings, runs["attention"], strict=True):
        compared.setdefault(cell, {}).setdefault(text, f"{attention}: {text}")
    for cell, texts in compared.items():
        if len(texts) > 1:
            place = " ".join(filter(None, cell))
            log.warning("%s: compared attentions have different settings: %s", place, "; ".join(texts.values()))


def _settings(record: Record) -> dict[str, Any]:
    """Return the settings that compared attentions should share."""
    settings = {name: record.config.get(name) for name in ("task", "backbone", "other_attention")}
    return {**settings, "trainer": {**record.config["trainer"], "forward_batch": forward_batch_size(record.config)}}


def of_one_data(results: pd.DataFrame) -> pd.DataFrame:
    """Return the results without those on other data than most runs of their place, and warn about each such place.

    In a cell of the suite, the data of its anchors take precedence. Runs without a score and rows of a CSV file do not
    record their data, and stay.
    """
    places: dict[tuple[str, ...], dict[str, list[tuple[str, bool]]]] = {}
    of_anchors = {anchors.data for anchors in read_anchors().values()}
    for *place, file, record in runs_of(results)[[*PLACE, "file", "record"]].itertuples(index=False, name=None):
        if record.status is Status.FINISHED:
            runs = places.setdefault(tuple(place), {}).setdefault(json.dumps(record.data, sort_keys=True), [])
            runs.append((file, data_hash(record) in of_anchors))
    excluded: set[str] = set()
    for key, of_data in places.items():
        usual, *others = sorted(of_data.values(), key=lambda runs: (runs[0][1], len(runs)), reverse=True)
        for runs in others:
            text = "%s: %s and %s are on different data; the results on the data of the latter are excluded: %d"
            log.warning(text, " ".join(filter(None, key)), usual[0][0], runs[0][0], len(runs))
            excluded.update(file for file, _ in runs)
    return results[~results["file"].isin(excluded)] if excluded else results


REAL, GENERATED, REHEARSAL = "real", "synthetic", "rehearsal"
"""Kinds of data. The index of a rehearsal shows that the way to it works, and says nothing about attentions."""
REHEARSAL_NOTE = "rehearsal: preset smoke on generated data; these numbers say nothing about attentions"


def kinds_of_data(results: pd.DataFrame) -> pd.Series:
    """Return for each result whether its data are real, generated, or generated for a rehearsal: in preset `smoke`."""
    kinds = results["dataset"].map(
        {name: GENERATED if is_generated(name) else REAL for name in set(results["dataset"])}
    )
    return kinds.mask((kinds == GENERATED) & (results["preset"] == "smoke"), REHEARSAL).astype(str)


def stamped(table: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a column ``data`` in front if it is made from the results of a rehearsal."""
    is_rehearsal = (kinds_of_data(results) == REHEARSAL).any()
    return table.assign(data=REHEARSAL)[["data", *table.columns]] if is_rehearsal else table


def of_one_kind(results: pd.DataFrame) -> pd.DataFrame:
    """Return the results on real data; without them, those of a rehearsal; without both, all on generated data."""
    kinds = kinds_of_data(results)
    kind = next((kind for kind in (REAL, REHEARSAL) if (kinds == kind).any()), GENERATED)
    return results[kinds == kind]


def refuse_versions(results: pd.DataFrame) -> None:
    """Raise UserError if results of a preset are of different versions of a task; published results have none."""
    for (_, task), versions in results.groupby(["preset", "task"])["task_version"]:
        if versions.nunique() > 1:
            files = results.loc[versions.index].groupby("task_version")["file"].first()
            examples = ", ".join(f"{version} ({file})" for version, file in files.items())
            raise UserError(
                f"results of task '{task}' are from different versions and not comparable: {examples}. "
                "Select the newest with --latest-version, and rerun the other cells"
            )


def without_copies(table: pd.DataFrame, others: Sequence[str] = ()) -> pd.DataFrame:
    """Drop copies of a record; raises UserError for different results of the same cell, seed and ``others``."""
    key = [*CELL, *others, "metric"]
    is_copy = table.duplicated([*key, "hash", "value"]) & (table["hash"] != "")
    table = table[~is_copy]
    repeated = table[table.duplicated(key, keep=False)]
    if repeated.empty:
        return table
    one, other = repeated[(repeated[key] == repeated.iloc[0][key]).all(axis=1)].head(2).to_dict("records")
    cell = " ".join(f"{name}={one[name]}" for name in CELL if one[name] != "")
    files = " and ".join(dict.fromkeys([one["file"], other["file"]]))
    records = [each["record"] for each in (one, other) if each["record"] is not None]
    settings = " and ".join(filter(None, distinctions([((), record.config) for record in records])))
    raise UserError(
        f"two results for one cell ({cell}, metric {one['metric']}): {files}{settings and f' ({settings})'}. "
        "Remove one, or score them separately"
    )
