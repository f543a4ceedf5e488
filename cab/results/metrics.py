"""Metrics of results as mean and standard deviation over seeds, and the kind of score that each result has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cab.records.identity import distinctions
from cab.records.results import PLACE, VERDICTS
from cab.registry.names import is_generated
from cab.results.cells import PRESET, suite_cells
from cab.results.selection import GENERATED, kinds_of_data, of_one_data, refuse_versions, rows_in_index, without_copies

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    *("preset", "task", "dataset", "config_variant", "backbone", "pattern", "attention", "settings", "metric", "unit"),
    *("higher_is_better", "primary", "mean", "sd", "seeds", "missing", "verified"),
]


def metrics_frame(results: pd.DataFrame) -> pd.DataFrame:
    """Return every metric of a table of :func:`cab.load_results` as mean and standard deviation over seeds.

    Returns:
        Columns preset, task, dataset, config_variant, backbone, pattern, attention, settings (those that differ among
        the runs of the attention in the place), metric, unit, higher_is_better, primary, mean, sd (NaN for one seed),
        seeds (number of seeds with a value), missing (number of those without), verified (the worst of its runs).

    Raises:
        UserError: different results for one cell and seed, or versions of the task.
    """
    refuse_versions(results)
    results = of_one_data(results)
    settings = _settings(results)
    table = results.assign(settings=[settings.get(file, "") for file in results["file"]])
    table = without_copies(table, ["settings"])
    table = table.assign(value=table["value"].astype(float))
    table["value"] = table["value"].where(table["value"].abs() < float("inf"))
    groups = table.groupby([*PLACE, "attention", "settings", "metric"], sort=False)
    frame = groups.agg(
        unit=("unit", "first"),
        higher_is_better=("higher_is_better", "first"),
        primary=("primary", "first"),
        mean=("value", "mean"),
        sd=("value", "std"),
        seeds=("value", "count"),
        missing=("value", lambda values: int(values.isna().sum())),
        verified=("verified", lambda verdicts: min(verdicts, key=VERDICTS.index)),
    )
    return frame.reset_index()[COLUMNS]


def _settings(results: pd.DataFrame) -> dict[str, str]:
    """Return the settings of each file that differ among the runs of its attention in a place."""
    runs = results[results["record"].notna()].drop_duplicates("file")
    groups: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    places = runs[[*PLACE, "attention"]].itertuples(index=False, name=None)
    for place, file, record in zip(places, runs["file"], runs["record"], strict=True):
        groups.setdefault(place, []).append((file, {**record.config, "seed": 0}))
    settings: dict[str, str] = {}
    for group in groups.values():
        files, configs = zip(*group, strict=True)
        if any(config != configs[0] for config in configs):  # rare, and the comparison by name is slow
            settings |= dict(zip(files, distinctions([((), config) for config in configs]), strict=True))
    return settings


def score_kinds(results: pd.DataFrame) -> pd.Series:
    """Return the score that each row of results has: ``K``, ``index``, or an empty string; see :func:`no_score`."""
    import pandas as pd

    cells = {(PRESET, cell.dataset, *cell.key) for cell in suite_cells()}
    columns = (results[name] for name in ("preset", "dataset", "task", "backbone", "pattern"))
    is_of_suite = pd.Series([place in cells for place in zip(*columns, strict=True)], index=results.index, dtype=bool)
    is_real = (kinds_of_data(results) != GENERATED) & results.index.isin(rows_in_index(results).index)
    return pd.Series("", index=results.index).mask(is_real, "index").mask(is_of_suite, "K")


def no_score(results: pd.DataFrame, kinds: pd.Series) -> list[str]:
    """Return one sentence per place whose results have metrics only, with the reason."""
    lines = []
    for place in results.loc[kinds == "", PLACE].drop_duplicates().to_dict("records"):
        if is_generated(place["dataset"]):
            reason = "generated data outside the cells of the suite (`cab list cells`)"
        else:
            reason = f"the paper's index does not include task {place['task']}"
        lines.append(f"{' '.join(filter(None, place.values()))}: no score: {reason}")
    return lines
