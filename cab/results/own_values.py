"""Own values of the published tables from results, costs and norms of gradients.

Each function adds them to the published values of a table.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cab.errors import UserError
from cab.files.disk import listed
from cab.files.text_table import csv_rows, parse_number
from cab.records.record import Record
from cab.records.results import VERDICTS
from cab.registry.names import SYNTHETIC
from cab.results.changed_settings import changed_settings
from cab.results.correlation import benchmark_correlation, pattern_correlation, task_correlation
from cab.results.costs import load_costs
from cab.results.efficiency_length import efficiency_length
from cab.results.index import AVERAGE, benefit_of_attention
from cab.results.normalization import PUBLISHED_TERM, population
from cab.results.paper_tables import PaperTable
from cab.results.selection import REAL, kinds_of_data, of_one_data, of_one_kind, refuse_versions, without_copies
from cab.results.table3 import INDEX, side_by_side

# --- from Table 3 -----------------------------------------------------------------------------------------------------


def indices(_table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return the index of each task; that of other attentions is not published."""
    frame = side_by_side(results)
    frame = frame[(frame["metric"] == INDEX) & (frame["task"] != AVERAGE)].rename(columns={"seeds": "runs"})
    columns = ["pattern", "task", "attention", "own", "sd", "runs", "difference", "verified", "data"]
    return frame[columns].merge(published, how="left").fillna({"published": ""})


def scales(_table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and sample standard deviation of each metric over the attentions with own values."""
    frame = side_by_side(results)
    own = frame[frame["own"].notna() & (frame["metric"] != INDEX) & frame["pattern"].isin(published["pattern"])]
    own = own[own["attention"].isin(population(own["attention"]))]
    scales = own.groupby(PUBLISHED_TERM)["own"].agg(["mean", "std"]).reset_index()
    long = scales.melt(PUBLISHED_TERM, var_name="quantity", value_name="own")
    return published.merge(long, how="left").assign(data=frame["data"].iloc[0])


def benefit(_table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return the index of the best efficient attention, chosen after the fact, of softmax and of no attention in NS."""
    frame = side_by_side(results)
    indices = frame[(frame["metric"] == INDEX) & (frame["pattern"] == "NS")]
    benefit = benefit_of_attention(indices.drop(columns="published").rename(columns={"own": "index"}))
    long = benefit.melt(["task", "best"], ["efficient", "vanilla", "without"], "quantity", "own")
    long["best"] = long["best"].where(long["quantity"] == "efficient", "")
    return published.merge(long, how="left").fillna({"best": ""}).assign(data=frame["data"].iloc[0])


CORRELATIONS = {
    "pattern": pattern_correlation,
    "benchmark": benchmark_correlation,
    "task": task_correlation,
}


def correlations(table: PaperTable, _published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return Pearson correlations of the own indices and of the published ones, which the figures show as colors."""
    frame = side_by_side(results)
    frame = frame[frame["metric"] == INDEX]
    key = ["kind", "pattern", "a", "b"]
    parts = []
    for column in ("published", "own"):
        scores = frame[["pattern", "task", "attention"]].assign(index=frame[column].astype(float)).dropna()
        made = [CORRELATIONS[kind](scores) for kind in table.select.split()] if len(scores) else []
        pairs = pd.concat(made) if made else pd.DataFrame(columns=[*key, "pearson"])
        parts.append(pairs[[*key, "pearson"]].rename(columns={"pearson": column}))
    texts = ["" if math.isnan(value) else f"{value:.3f}" for value in parts[0]["published"].astype(float)]
    return _with_others(parts[0].assign(published=texts), parts[1]).assign(data=frame["data"].iloc[0])


def _with_others(published: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Return the published values with the own ones, and then own values that are not published."""
    keys = [name for name in published if name != "published"]
    is_other = own[keys].merge(published[keys], how="left", indicator=True)["_merge"] == "left_only"
    others = own[is_other.to_numpy()].assign(published="")
    return pd.concat([published.merge(own, how="left"), *([others] if len(others) else [])], ignore_index=True)


# --- from records -----------------------------------------------------------------------------------------------------


def records(table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation of the runs that the table selects for each value, and other attentions."""
    if results.empty:
        return published.assign(own=math.nan)
    rows = published.to_dict("records")
    results = results[results["task"].isin({_selected(table, row)["task"] for row in rows})]
    refuse_versions(results)
    results = _with_costs(of_one_data(of_one_kind(results)))
    if "attention={attention}" in table.select.split():
        others = sorted(set(results["attention"]) - set(published["attention"]))
        places = published.drop(columns=["attention", "published"]).drop_duplicates().to_dict("records")
        rows += [{**place, "attention": name, "published": ""} for name in others for place in places]
    made = [{**row, **_own(results, table, _selected(table, row))} for row in rows]
    frame = pd.DataFrame([*made[: len(published)], *(row for row in made[len(published) :] if row["runs"])])
    data = kinds_of_data(results)
    return frame.assign(data=data.iloc[0] if len(data) else REAL)


def _with_costs(results: pd.DataFrame) -> pd.DataFrame:
    """Return results with the training time of each run and its parameters as further metrics."""
    runs = results[results["record"].notna()].drop_duplicates("file")
    processes = [record.cost.processes or 1 for record in runs["record"]]
    hours = runs["train_seconds"].astype(float) * processes / 3600
    costs = {"hours": hours, "params_millions": runs["params"].astype(float) / 1e6}
    return pd.concat([results, *(runs.assign(metric=name, value=values) for name, values in costs.items())])


def _selected(table: PaperTable, row: Mapping[Any, str]) -> dict[str, str]:
    """Return what the runs of a value have: values of columns of results, and of settings."""
    texts = ((template, template.format_map(dict(row))) for template in table.select.split())
    words = (word for template, text in texts for word in ([text] if "=" in template else _settings(text)))
    pairs = (word.partition("=")[::2] for word in words)
    return {name: value for name, value in pairs if value}


def _settings(options: str) -> list[str]:
    """Return the settings of overrides, in which an attention is its name: ``attention=[gla,vanilla]``."""
    return [re.sub(r"^attention=\[?([^\]]*)\]?$", r"attention.name=\1", word) for word in options.split()]


def _own(results: pd.DataFrame, table: PaperTable, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Return mean, standard deviation and number of the results that have the wanted values."""
    for name, value in wanted.items():
        if name in results:
            names = {value}
            if name == "dataset" and not (kinds_of_data(results) == REAL).any():
                names = {value, SYNTHETIC, f"{value}_{SYNTHETIC}"}  # generated data replace the published ones
            results = results[results[name].isin(names)]
        else:
            has_value = [record is not None and _setting(record, name) == value for record in results["record"]]
            results = results.loc[has_value]
    rows = without_copies(results[results["value"].notna()])
    if len(presets := sorted(rows["preset"].unique())) > 1:
        raise UserError(f"results of presets {', '.join(presets)} are not comparable; select one with --preset")
    if "config_variant=" not in table.select and len(variants := sorted(rows["config_variant"].unique())) > 1:
        raise UserError(f"results of variants {variants} of a task are not comparable; keep those of one in a folder")
    values = rows["value"].astype(float) * float(table.scale or 1)
    settings = {text: None for record in rows["record"] if record is not None for text in _changed(record, table)}
    verified = min(rows["verified"], key=VERDICTS.index, default="")
    numbers = {"own": values.mean(), "sd": values.std(), "runs": len(values)}
    return {**numbers, "verified": verified, "settings": " ".join(settings)}


def _setting(record: Record, path: str) -> str | None:
    """Return the value of a dotted setting as a text; None if the run has no such setting."""
    value: Any = record.config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return None if value is None else str(value)


def _changed(record: Record, table: PaperTable) -> list[str]:
    """Return the settings of a run that are not those of preset `paper`, except those that the table selects."""
    if record.cell["preset"] != "paper":
        return [f"preset={record.cell['preset']}"]
    selected = {pair.partition("=")[0] for pair in table.select.split()}
    return [text for text in changed_settings(record) if text.partition("=")[0] not in selected]


# --- from files of costs and of gradients -----------------------------------------------------------------------------


def _costs_as_published(files: Sequence[Path], protocol: str = "paper") -> pd.DataFrame:
    """Return costs in pattern NS, with those of `eager`, if measured, as `vanilla`, as in the paper."""
    if len(files) > 1:
        raise UserError(f"this table reads one file of costs, got {len(files)}; name one")
    costs = load_costs(files[0], protocol=protocol)
    if costs["setting"].nunique() > 1:
        settings = listed(sorted(set(costs["setting"])))
        raise UserError(f"{files[0]} mixes costs of different settings ({settings}); keep the rows of one")
    if "eager" in set(costs["attention"]):
        costs = costs[costs["attention"] != "vanilla"].replace({"attention": {"eager": "vanilla"}})
    return costs[costs["pattern"] == "NS"]


def costs(table: PaperTable, published: pd.DataFrame, files: Sequence[Path]) -> pd.DataFrame:
    """Return the costs of the published attentions at the published lengths."""
    if not files:
        return published.assign(own=math.nan)
    selected = _selected(table, {})
    costs = _costs_as_published(files, selected.pop("protocol", "paper"))
    costs = costs.assign(time_ms=1e3 * costs["seconds"], memory_mib=costs["bytes"] / 2**20)
    costs = costs.assign(steps_per_second=1 / costs["seconds"], length=costs["length"].astype(int).astype(str))
    for name, value in selected.items():
        costs = costs[costs[name] == value]
    keys = table.keys.split()
    own = costs.rename(columns={table.values: "own"})[[*keys, "own"]].drop_duplicates(keys)
    return published.merge(own, how="left")


def lengths(_table: PaperTable, published: pd.DataFrame, files: Sequence[Path]) -> pd.DataFrame:
    """Return efficiency lengths by the paper's protocol; those of other attentions follow."""
    if not files:
        return published.assign(own=math.nan)
    lengths = efficiency_length(_costs_as_published(files), protocol="paper")
    lengths = lengths[lengths["phase"] == "forward"]
    long = lengths.melt(["attention", "resource"], ["length", "r2"], "kind", "own")
    long = long.assign(quantity=long["resource"] + "_" + long["kind"])[["attention", "quantity", "own"]]
    long = long[long["quantity"].isin(published["quantity"].unique())]
    return _with_others(published, long)


def gradients(table: PaperTable, published: pd.DataFrame, files: Sequence[Path]) -> pd.DataFrame:
    """Return the relative standard deviation of the norms that `cab paper gradients --out` writes."""
    found: dict[str, float] = {}
    for file in files:
        norms: dict[str, list[float]] = {}
        for line, row in csv_rows(file, ("attention", "all")):
            norm = parse_number(row["all"])
            if not row["attention"] or norm is None or norm < 0:
                raise UserError(
                    f"{file}, line {line}: {table.name} needs an attention and a finite norm of at least 0, got "
                    f"'{row['attention']:.40}' and '{row['all']:.40}'; it reads norms.csv of `cab paper gradients`"
                )
            norms.setdefault(row["attention"], []).append(norm)
        if not norms:
            raise UserError(f"{file} contains no norms; {table.name} reads norms.csv of `cab paper gradients`")
        if repeated := norms.keys() & found.keys():
            raise UserError(f"{file} has norms of {min(repeated)} again; name one file per attention")
        for attention, values in norms.items():
            mean = statistics.fmean(values)
            found[attention] = statistics.pstdev(values, mean) / mean if mean else math.nan
    return published.assign(own=published["attention"].map(found))
