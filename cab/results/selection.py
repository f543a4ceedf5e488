"""Selection of results to be scored together, and rejection of results that are not comparable."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cab.errors import EXAMPLE_COMMAND, UserError
from cab.records.identity import distinctions, forward_batch_size
from cab.records.record import CELL, COMPARISON_KEY, Record, Status
from cab.registry.registries import SYNTHETIC, TASKS, is_generated

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
    return results[~results["task"].str.lower().isin(excluded)]


def comparable(results: pd.DataFrame) -> pd.DataFrame:
    """Return ``results`` of the index with one row per cell, metric and seed, ready to be scored together.

    Names that differ only in case are unified, copies of a record are dropped, and infinite values become NaN. Raises
    UserError for results that are not comparable, and warns about attentions trained with different settings.
    """
    results = rows_in_index(results)
    if not results["primary"].any():
        raise UserError(f"no results to score; run a cell first: `{EXAMPLE_COMMAND}`")
    _refuse_mixtures(results)
    spelt = {name: _unify_case(results[name]) for name in (*COMPARISON_KEY, "metric")}
    table = results.assign(**spelt, value=results["value"].astype(float))
    table["value"] = table["value"].where(table["value"].abs() < float("inf"))
    if (table["hash"] != "").any():  # records are sorted by hash, CSV files by their authors
        table = table.sort_values([*COMPARISON_KEY], kind="stable")
    directions = table.groupby(["task", "metric"])["higher_is_better"].nunique()
    if (directions > 1).any():
        names = " ".join(directions.index[directions > 1][0])
        raise UserError(
            f"'{names}' is higher-is-better in some results and lower-is-better in others; correct the records"
        )
    table = _without_duplicates(table)
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


def data_ranks(results: pd.DataFrame) -> pd.Series:
    """Rank the data sets under one name: 0 for the data of most runs of a place, 1 for the next, and so on.

    Runs without a score and rows of a CSV file do not record their data and have rank 0.
    """
    import pandas as pd

    of_record = {id(record): _data(record) for record in results["record"]}
    data = [of_record[id(record)] for record in results["record"]]
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
    """Return a place with data of ``rank``, and an example file with these data and with those of most runs."""
    example = results[ranks == rank].iloc[0]
    places = results[[*COMPARISON_KEY]].apply(lambda names: names.str.lower())
    same_place = (places == [example[name].lower() for name in COMPARISON_KEY]).all(axis=1)
    usual = next(row for _, row in results[same_place & (ranks == 0)].iterrows() if _data(row["record"]))
    place = " ".join(example[name] for name in COMPARISON_KEY if example[name])
    return f"{place} in {usual['file']} and {example['file']}"


def _data(record: Any) -> str:
    """Return the identity of the data of a run with a score as JSON, or an empty string."""
    has_score = isinstance(record, Record) and record.status is Status.FINISHED
    return json.dumps(record.data, sort_keys=True) if has_score else ""


def is_synthetic(results: pd.DataFrame) -> pd.Series:
    """Return which results are on generated data."""
    return results["dataset"].map(is_generated).astype(bool)


def _unify_case(names: pd.Series) -> pd.Series:
    spelling: dict[str, str] = {}
    return names.map({name: spelling.setdefault(name.lower(), name) for name in names.unique()})


def _refuse_mixtures(results: pd.DataFrame) -> None:
    presets = sorted(results["preset"].unique())
    if len(presets) > 1:
        raise UserError(
            f"results of presets {', '.join(presets)} are not comparable and cannot be scored together; "
            f"select one, for example with --preset {presets[0]}"
        )
    synthetic = is_synthetic(results)
    if synthetic.any() and not synthetic.all():
        real = sorted(results.loc[~synthetic, "dataset"].unique())
        raise UserError(
            f"results on synthetic and on real data ({', '.join(real)}) cannot be scored together; "
            f"select with --dataset {SYNTHETIC} or --dataset {' '.join(real)}"
        )
    ranks = data_ranks(results)
    if ranks.any():
        raise UserError(
            f"results on different data under one name cannot be scored together: {other_data(results, ranks, 1)}. "
            "Pass only the records on one of them, or rerun the others on its data with force=true"
        )
    for task, versions in results.groupby(results["task"].str.lower())["task_version"]:
        if versions.nunique() > 1:
            files = results.loc[versions.index].groupby("task_version")["file"].first()
            examples = ", ".join(f"{version} ({file})" for version, file in files.items())
            raise UserError(
                f"results of task '{task}' are from different versions and not comparable: {examples}. "
                "Select the newest with --latest-version, and rerun the other cells"
            )


def _without_duplicates(table: pd.DataFrame) -> pd.DataFrame:
    """Drop copies of a record; raises UserError for different results of the same cell and seed."""
    key = [*CELL, "metric"]
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
