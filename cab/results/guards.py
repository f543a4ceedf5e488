"""Guards: which results of a frame may be compared. Each returns the rows that may, or raises UserError."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from cab.errors import EXAMPLE_COMMAND, UserError
from cab.records.identity import distinctions, forward_batch_size
from cab.records.names import PLACE
from cab.records.record import CELL, COMPARISON_KEY
from cab.registry.registries import TASKS
from cab.results import cells
from cab.results.load import REAL, REFERENCE_SOURCE, REHEARSAL, metrics_of, runs_of
from cab.results.published import better3

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

REHEARSAL_NOTE = "rehearsal: preset smoke on generated data; these numbers say nothing about attentions"


def select(
    frame: pd.DataFrame,
    *,
    preset: str | None = None,
    patterns: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    latest: bool = False,
) -> pd.DataFrame:
    """Return the rows with the given names, ignoring case; None selects all.

    A printed index has no data set: it is selected by its task. With ``latest``, only the newest version of each task
    is selected. UserError if no result has a given name.
    """
    chosen = {"preset": preset and [preset], "pattern": patterns, "task": tasks, "dataset": datasets}
    for column, names in chosen.items():
        if not names:
            continue
        lower = frame[column].str.lower()
        for name in names:
            if name.lower() not in set(lower):
                available = ", ".join(sorted(set(frame[column]) - {""})) or "none"
                raise UserError(f"no result has {column} '{name}' (available: {available})")
        frame = frame[lower.isin([name.lower() for name in names])]
    if latest:
        newest = frame.groupby("task")["task_version"].transform("max")
        frame = frame[frame["task_version"].isin([0]) | (frame["task_version"] == newest)]
    return frame


def in_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose tasks are included in the compositional index; unknown tasks are."""
    return frame[~frame["task"].isin({task.name for task in TASKS if not task.in_index})]


def comparable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the metrics of one source with one row per cell, metric and seed, ready to be scored together.

    Results on generated data are left out if there are others, except for a rehearsal without real data. Copies of a
    record and results on other data are dropped. Raises UserError for results that are not comparable, and warns about
    attentions trained with different settings.
    """
    rows = of_one_kind(metrics_of(frame))
    if not rows["primary"].any():
        raise UserError(f"no results to score; run a cell first: `{EXAMPLE_COMMAND}`")
    presets = sorted(rows["preset"].unique())
    if len(presets) > 1:
        raise UserError(
            f"results of presets {', '.join(presets)} are not comparable and cannot be scored together; "
            f"select one, for example with --preset {presets[0]}"
        )
    refuse_versions(rows)
    rows = of_one_data(rows)
    if (rows["hash"] != "").any():  # records are sorted by hash, CSV files by their authors
        rows = rows.sort_values([*COMPARISON_KEY], kind="stable")
    directions: Any = rows.groupby(["task", "metric"])["higher_is_better"].agg(set).items()
    for (task, metric), found in directions:
        if len(found | {better3().get((task, metric), next(iter(found)))}) > 1:
            raise UserError(
                f"'{task} {metric}' is higher-is-better in some results and lower-is-better in others or in the paper; "
                "correct the results"
            )
    rows = without_copies(rows)
    _warn_about_settings(rows)
    return rows


def _warn_about_settings(rows: pd.DataFrame) -> None:
    """Warn about places whose attentions do not share the settings of task, backbone and trainer."""
    runs = runs_of(rows[rows["value"].notna()])
    place: Any
    for place, of in runs.groupby([*COMPARISON_KEY, "pattern"], sort=False):
        found: dict[str, tuple[str, dict[str, Any], Collection[str]]] = {}  # the first attention with each setting
        for name, config, changed in zip(of["attention"], of["config"], of["changed_options"], strict=True):
            trainer = {**config["trainer"], "forward_batch": forward_batch_size(config)}
            settings = {key: config.get(key) for key in ("task", "backbone", "other_attention")} | {"trainer": trainer}
            found.setdefault(json.dumps(settings, sort_keys=True), (name, settings, changed))
        texts = distinctions([((), settings, changed) for _, settings, changed in found.values()])
        shown = {text: f"{name}: {text}" for (name, *_), text in zip(found.values(), texts, strict=True)}
        if len(shown) > 1:
            where = " ".join(filter(None, map(str, place)))
            listed = "; ".join(shown.values())
            log.warning("%s: compared attentions have different settings: %s", where, listed)


def of_one_kind(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the results on real data; without them, those of a rehearsal; without both, all on generated data."""
    kind = next((kind for kind in (REAL, REHEARSAL) if (frame["data"] == kind).any()), None)
    return frame if kind is None else frame[frame["data"] == kind]


def of_one_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the results without those on other data than most runs of their place, and warn about each such place.

    In a cell of the suite, the data of its anchors take precedence. Runs without a score and rows of a CSV file do not
    record their data, and stay.
    """
    runs = runs_of(frame)
    runs = runs[runs["data_id"] != ""]
    if not (runs.groupby(PLACE)["data_id"].nunique() > 1).any():
        return frame
    anchored = {anchors.data for anchors in cells.read_anchors().values()}
    excluded: set[str] = set()
    place: Any
    for place, group in runs.groupby(PLACE, sort=False):
        files = [(data, list(of)) for data, of in group.groupby("data_id", sort=False)["file"]]
        (_, usual), *others = sorted(files, key=lambda pair: (pair[0] in anchored, len(pair[1])), reverse=True)
        for _, found in others:
            text = "%s: %s and %s are on different data; the results on the data of the latter are excluded: %d"
            log.warning(text, " ".join(filter(None, map(str, place))), usual[0], found[0], len(found))
            excluded.update(found)
    return frame[~frame["file"].isin(excluded)]


def refuse_versions(frame: pd.DataFrame) -> None:
    """Raise UserError if results of a preset are of different versions of a task; published results have none."""
    known = frame[frame["task_version"] != 0]
    versions = known.groupby(["preset", "task"])["task_version"].nunique()
    for preset, task in versions.index[versions > 1]:
        rows = known[(known["preset"] == preset) & (known["task"] == task)]
        files = rows.groupby("task_version")["file"].first()
        examples = ", ".join(f"{version} ({file})" for version, file in files.items())
        raise UserError(
            f"results of task '{task}' are from different versions and not comparable: {examples}. "
            "Keep those of one version (`cab score --latest-version` selects the newest), and rerun the other cells"
        )


def without_copies(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop copies of a record; raises UserError for different results of the same source, cell and seed."""
    key = ["source", *CELL, "metric"]
    rows = frame[~(frame.duplicated([*key, "hash", "value"]) & (frame["hash"] != ""))]
    repeated = rows[rows.duplicated(key, keep=False)]
    if repeated.empty:
        return rows
    one, other = repeated[(repeated[key] == repeated.iloc[0][key]).all(axis=1)].head(2).to_dict("records")
    cell = " ".join(f"{name}={one[name]}" for name in CELL if one[name] != "")
    files = " and ".join(dict.fromkeys([one["file"], other["file"]]))
    configs = [((), each["config"], each["changed_options"]) for each in (one, other) if each["hash"] != ""]
    settings = " and ".join(filter(None, distinctions(configs)))
    raise UserError(
        f"two results for one cell ({cell}, metric {one['metric']}): {files}{settings and f' ({settings})'}. "
        "Remove one, or score them separately"
    )


def first_reference(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the results with those of one reference folder per place: the first one.

    The others may have been trained with other settings. K compares settings, and uses all folders.
    """
    reference = frame[frame["source"] == REFERENCE_SOURCE]
    folders = reference["file"].str.replace(r"/[^/]*$", "", regex=True)
    first = folders.groupby([reference[name] for name in PLACE], sort=False).transform("first")
    return frame.drop(index=reference.index[folders != first])
