"""Own values of the published tables: from results, costs, norms of gradients, the registry and preset `paper`.

Each function adds them to the published values of a table. ``agrees`` compares values that do not vary.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cab.errors import UserError
from cab.files.disk import listed
from cab.files.text_table import csv_rows, parse_number, read_csv
from cab.patterns import Pattern
from cab.records.verified import COMMITTED, read_rows
from cab.registry.names import SYNTHETIC
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import CONFIGS, read_table, tuned_options
from cab.results.audit import Interval
from cab.results.cells import NO_ATTENTION
from cab.results.changed_settings import with_changed
from cab.results.correlation import benchmark_correlation, pattern_correlation
from cab.results.costs import load_costs
from cab.results.efficiency_length import efficiency_length
from cab.results.guards import of_one_data, of_one_kind, refuse_versions, without_copies
from cab.results.index import benefit_of_attention
from cab.results.load import AVERAGE, GENERATED, INDEX, OWN, REAL, runs_of
from cab.results.normalization import scales as scales_of
from cab.results.published import PUBLISHED_TERM, PaperTable, published_values, rows as printed, table3, tasks3
from cab.results.summarize import summarize
from cab.results.table3 import side_by_side

# --- from Table 3 -----------------------------------------------------------------------------------------------------


def indices(_table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return the index of each task; that of other attentions is not published."""
    frame = side_by_side(results)
    frame = frame[(frame["metric"] == INDEX) & (frame["task"] != AVERAGE)].rename(columns={"seeds": "runs"})
    frame = frame.drop(columns=["published", "settings", *PUBLISHED_TERM[2:], "higher_is_better"])
    return frame.merge(published, how="left").fillna({"published": "", "normalization": ""})


def scales(_table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation of each metric as normalization ``results`` has them."""
    frame = side_by_side(results)
    is_own = frame["own"].notna() & (frame["metric"] != INDEX) & (frame["missing"] == "")
    own = frame[is_own & frame["pattern"].isin(published["pattern"]) & (frame["attention"] != NO_ATTENTION)]
    published = published.assign(data=frame["data"].iloc[0])
    if own.empty:
        return published.assign(own=math.nan)
    values = scales_of(own.assign(value=own["own"], config_variant="", source=OWN, status=""))
    return published.merge(values.melt(PUBLISHED_TERM, ["mean", "std"], "quantity", "own"), how="left")


def benefit(_table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return the index of the best efficient attention, chosen after the fact, of softmax and of no attention in NS."""
    frame = side_by_side(results)
    indices = frame[(frame["metric"] == INDEX) & (frame["pattern"] == "NS")]
    benefit = benefit_of_attention(indices.drop(columns="published").rename(columns={"own": "index"}))
    long = benefit.melt(["task", "best"], ["efficient", "vanilla", "without"], "quantity", "own")
    long["best"] = long["best"].where(long["quantity"] == "efficient", "")
    return published.merge(long, how="left").fillna({"best": ""}).assign(**_facts(frame))


def correlations(table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return Pearson correlations of own indices, for the pairs whose color was read off a figure."""
    frame = side_by_side(results)
    indices = frame[frame["metric"] == INDEX]
    scores = indices[["pattern", "task", "attention"]].assign(index=indices["own"].astype(float)).dropna()
    made: dict[frozenset[str], float] = {}
    for kind in table.select.split() if len(scores) else ():
        pairs = CORRELATIONS[kind](scores)[["a", "b", "pearson"]]
        made |= {frozenset((a, b)): pearson for a, b, pearson in pairs.itertuples(index=False)}
    own = [made.get(frozenset(pair), math.nan) for pair in published[["a", "b"]].itertuples(index=False, name=None)]
    return published.assign(own=own, **_facts(frame))


def _task_correlation(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the correlation of every two tasks, also of two patterns; a name is pattern and task."""
    of_tasks = scores[scores["task"] != AVERAGE]
    return pattern_correlation(of_tasks.assign(pattern=of_tasks["pattern"] + " " + of_tasks["task"], task=AVERAGE))


CORRELATIONS = {"pattern": pattern_correlation, "benchmark": benchmark_correlation, "task": _task_correlation}


def _facts(frame: pd.DataFrame) -> dict[str, str]:
    """Return the kind of the own data, and the normalization of the own indices."""
    names = frame.loc[(frame["metric"] == INDEX) & frame["own"].notna(), "normalization"]
    return {"data": frame["data"].iloc[0], "normalization": next(iter(names), "")}


def _with_others(published: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Return the published values with the own ones, and then own values that are not published."""
    keys = [name for name in published if name != "published"]
    is_other = own[keys].merge(published[keys], how="left", indicator=True)["_merge"] == "left_only"
    others = own[is_other.to_numpy()].assign(published="")
    return pd.concat([published.merge(own, how="left"), *([others] if len(others) else [])], ignore_index=True)


# --- from records -----------------------------------------------------------------------------------------------------


def records(table: PaperTable, published: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation of the runs that the table selects for each value, and other attentions."""
    results = results[(results["source"] == OWN) & (results["data"] != GENERATED)]
    if results.empty:
        return published.assign(own=math.nan)
    rows = published.to_dict("records")
    results = results[results["task"].isin(tasks_of(table))]
    refuse_versions(results)
    results = _with_costs(of_one_data(of_one_kind(results)))
    if "attention={attention}" in table.select.split():
        others = sorted(set(results["attention"]) - set(published["attention"]))
        places = published.drop(columns=["attention", "published"]).drop_duplicates().to_dict("records")
        rows += [{**place, "attention": name, "published": ""} for name in others for place in places]
    made = [{**row, **_own(results, table, _selected(table, row))} for row in rows]
    frame = pd.DataFrame([*made[: len(published)], *(row for row in made[len(published) :] if row["runs"])])
    return frame.assign(data=next(iter(results["data"]), REAL))


def tasks_of(table: PaperTable) -> set[str]:
    """Return the tasks whose results a table reads."""
    if table.source != "records":
        return {task for _, task in tasks3()}
    return {_selected(table, row)["task"] for row in published_values(table).to_dict("records")}


def _with_costs(results: pd.DataFrame) -> pd.DataFrame:
    """Return results with the training time of each run and its parameters as further metrics."""
    runs = runs_of(results)
    hours = runs["train_seconds"].astype(float) * runs["processes"].astype(float).fillna(1) / 3600
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
            if name == "dataset" and not (results["data"] == REAL).any():
                names = {value, SYNTHETIC, f"{value}_{SYNTHETIC}"}  # generated data replace the published ones
            results = results[results[name].isin(names)]
        else:
            results = results.loc[[_setting(config, name) == value for config in results["config"]]]
    runs = without_copies(results)
    if runs.empty:
        return {"own": math.nan, "sd": math.nan, "runs": 0, "verified": "", "missing": "", "settings": ""}
    if len(presets := sorted(runs["preset"].unique())) > 1:
        raise UserError(f"results of presets {', '.join(presets)} are not comparable; select one with --preset")
    if "config_variant=" not in table.select and len(variants := sorted(runs["config_variant"].unique())) > 1:
        raise UserError(f"results of variants {variants} of a task are not comparable; keep those of one in a folder")
    values = runs.assign(value=runs["value"].astype(float) * float(table.scale or 1))
    [found] = summarize(values, ["metric"]).to_dict("records")
    numbers = {"own": found["mean"], "sd": found["sd"], "runs": int(found["seeds"])}
    return {**numbers, "verified": found["verified"], "missing": found["missing"], "settings": _changed(runs, table)}


def _setting(config: Any, path: str) -> str | None:
    """Return the value of a dotted setting as a text; None if the run has no such setting."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return None if config is None else str(config)


def _changed(runs: pd.DataFrame, table: PaperTable) -> str:
    """Return the settings of runs that are not those of preset `paper`, except those that the table selects."""
    selected = {pair.partition("=")[0] for pair in table.select.split()}
    pairs = with_changed(runs)[["preset", "changed"]].itertuples(index=False, name=None)
    changes = (changed if preset == "paper" else [f"preset={preset}"] for preset, changed in pairs)
    settings = dict.fromkeys(itertools.chain.from_iterable(changes))
    return " ".join(setting for setting in settings if setting.partition("=")[0] not in selected)


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


# --- from the registry and preset `paper` -----------------------------------------------------------------------------

EQUAL, TRUNCATED, NO = "yes", "yes, truncated in print", "no"
"""Whether an own value agrees with the published one."""


def settings(published: pd.DataFrame) -> pd.DataFrame:
    """Return the options of preset `paper`, and patterns, complexities and metrics of the registry."""
    rows = published.to_dict("records")
    own = [_text(_resolved(row)) for row in rows]
    pairs = zip(own, published["published"], strict=True)
    agrees = ["" if not one else EQUAL if _words(one) == _words(other) else NO for one, other in pairs]
    return published.assign(own=own, agrees=agrees)


def _resolved(row: Mapping[Any, str]) -> Any:
    """Return the own value of an option: a fact of the registry, or a product of settings; None without one."""
    option, attention = row["option"], row.get("attention", "")
    if option == "supported":
        registered = TASKS.get(row["task"]).backbones[row["backbone"]] if "task" in row else ATTENTIONS.get(attention)
        patterns = registered if isinstance(registered, tuple) else registered.patterns
        return "yes" if row["pattern"] in map(str, patterns) else "no"
    if option == "complexity":
        return ATTENTIONS.get(attention).complexity
    if option == "repeats":
        lines = (line for line in read_table("lstf") if (line["dataset"], line["features"]) == (row["dataset"], "M"))
        [repeats] = [line["repeats"] for line in lines]
        return int(repeats)
    names = ("task", "pattern", "backbone")
    cell = next(c for c in table3() if all(row.get(name) in (None, "", getattr(c, name)) for name in names))
    dataset = row.get("dataset") or cell.parts[0][0]
    config = _paper_config(cell.task, dataset, cell.backbone, cell.pattern, attention or "vanilla")
    if option == "metrics":
        options = {name: value for name, value in config["task"].items() if name != "name"}
        metrics = TASKS.get(cell.task).build(dataset=dataset, **options).metrics
        return [metric.name for metric in metrics if metric.primary]
    values = [_option(config, path) for path in option.split("*")]
    if len(values) == 1:
        return values[0]
    return math.prod(values) if None not in values else None


def _option(config: Mapping[str, Any], path: str) -> Any:
    group, _, name = path.partition(".")
    options = config.get(group)
    return options.get(name) if isinstance(options, Mapping) else None


@functools.cache
def _paper_config(task: str, dataset: str, backbone: str, pattern: str, attention: str) -> dict[str, Any]:
    from cab.config.compose import compose  # imports Hydra

    cell = {"task": task, "dataset": dataset, "backbone": backbone, "pattern": pattern, "attention": attention}
    return compose([*(f"{key}={name}" for key, name in cell.items()), "preset=paper"])


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return "" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)


def _words(text: str) -> list[float | str]:
    """Return the words of a text, numbers as their value."""
    return [word if (value := parse_number(word)) is None else value for word in text.split()]


def parameters(published: pd.DataFrame) -> pd.DataFrame:
    """Return the parameters of the networks of preset `paper`; those that are not registered have none."""
    cells = published[["pattern", "backbone", "attention"]].itertuples(index=False, name=None)
    own = [count / 1e6 if (count := count_parameters(*cell)) else math.nan for cell in cells]
    agrees = [_rounded(value, text) for value, text in zip(own, published["published"], strict=True)]
    return published.assign(own=own, agrees=agrees)


@functools.cache
def count_parameters(pattern: str, key: str, attention: str) -> int | None:
    """Count the parameters of a network of Tables 16-19 without allocating memory; None if it is not registered.

    The keys of backbones are those of the tables: ``informer_ett`` is the backbone ``informer`` in the size for one
    data set (configs/paper/networks.csv).
    """
    import torch

    from cab.config.groups import paper_value
    from cab.registry.build import build_backbone

    table = [row for row in read_table("networks") if row["key"] == key]
    name, task = table[0]["backbone"], table[0]["task"]
    if name not in BACKBONES or attention not in ATTENTIONS:
        return None
    columns = [row["option"] for row in table if row["option"]]
    options = {option: paper_value("networks", "value", "key", key, "option", option) for option in columns}
    other_attention = {str(p): {"name": "vanilla", **tuned_options(task, name, str(p), "vanilla")} for p in Pattern}
    spec = {"name": attention, **tuned_options(task, name, pattern, attention)}
    with torch.device("meta"):
        backbone = build_backbone(name, attention=spec, pattern=pattern, other_attention=other_attention, **options)
    return sum(parameter.numel() for parameter in backbone.parameters())


def _rounded(own: float, published: str) -> str:
    """Return whether a number has the printed digits, rounded or truncated."""
    if math.isnan(own):
        return ""
    if f"{own:.{len(published.partition('.')[2])}f}" == published:
        return EQUAL
    low, high = Interval.printed(published)
    return TRUNCATED if low <= own < high else NO


# --- Table 13 ---------------------------------------------------------------------------------------------------------

REPAIRED = "unsound as published"
"""A published form that violates the pattern, implemented in a corrected form."""
NOTE = "note"


class TaxonomyRow(NamedTuple):
    """One model of Table 13 in one pattern: the claim of the paper, and what implements it here.

    Attributes:
        attention: its registered name, empty if it is not registered.
        claimed: ``yes`` or ``no``, as in Table 13.
        implementation: ``verified`` (passed `cab verify`), ``built`` (not verified), ``unsound as published`` (verified
            in a corrected form), ``unsound``, ``undefined``, ``left out``, ``not built``; empty without a claim. A
            pattern without a claim has the suffix ``, not claimed``.
        complexity_claimed: complexity in Table 13.
        complexity: complexity in the registry.
        reason: explanation of the implementation.
    """

    model: str
    attention: str
    pattern: str
    claimed: str
    implementation: str
    complexity_claimed: str
    complexity: str
    reason: str


def taxonomy() -> Iterator[TaxonomyRow]:
    """Yield every model of Table 13 in every pattern, in the order of the table.

    configs/taxonomy.csv maps each model to an attention and explains claims that do not hold; everything else follows
    from the registry and results/verified.csv.
    """
    known = read_csv(CONFIGS / "taxonomy.csv")
    names = {row["model"]: row["attention"] for row in known}
    reasons = {
        (row["model"], row["pattern"]): (row["implementation"], row["reason"]) for row in known if row["pattern"]
    }
    verified = {(row.attention, row.pattern) for row in read_rows(COMMITTED)}
    for row in printed("taxonomy.csv"):
        model, name = row["model"], names[row["model"]]
        entry = ATTENTIONS.get(name) if name in ATTENTIONS else None
        built = {str(pattern) for pattern in entry.patterns} if entry else set()
        for pattern in map(str, Pattern):
            found, reason = reasons.get((model, pattern), ("", ""))
            claimed = row[pattern] == "1"
            if pattern in built:
                passed = "verified" if (name, pattern) in verified else "built"
                found = REPAIRED if found == REPAIRED and passed == "verified" else passed
                found += "" if claimed else ", not claimed"
            elif found in ("", NOTE, REPAIRED):
                found = "not built" if claimed else ""
            yield TaxonomyRow(
                *(model, name if entry else "", pattern, "yes" if claimed else "no", found),
                *(row["complexity"], entry.complexity if entry else "", reason),
            )
