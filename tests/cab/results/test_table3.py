"""Table 3 with own results: every number is recomputed here from the results alone."""

import itertools
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.results.load import load_results
from cab.results.published import rows as rows_of
from cab.results.table3 import side_by_side
from tests.helpers.made_records import make_record

SERIES = {"ett": ("etth1", "etth2", "ettm1"), "weather": ("weather",), "ecl": ("ecl",)}
PARTS = {name: [*itertools.product(series, "MS")] for name, series in SERIES.items()}
TERM = ("pattern", "task", "backbone", "dataset", "metric")
SETS = {row["task"]: row["dataset"] for row in rows_of("results.csv")}
Key = tuple[str, ...]
Values = dict[Key, list[float]]


def own_rows(seeds: int, *, generated: bool = False) -> list[dict[str, Any]]:
    """A value near the published one of every part and seed; LARA has none in Sum, and an own attention is added."""
    random.seed(7)
    rows = []
    published = rows_of("results.csv")
    mine = [{**row, "attention": "mine"} for row in published if row["attention"] == "vanilla"]
    for row in (*published, *mine):
        if row["attention"] == "lara" and row["task"] == "sum":
            continue
        parts = PARTS.get(row["dataset"], [(row["dataset"], "")])
        parts = list(dict.fromkeys(("synthetic", variant) for _, variant in parts)) if generated else parts
        if generated and row["dataset"] in ("weather", "ecl"):
            continue  # one run on generated data stands for all sets
        for (dataset, variant), seed in itertools.product(parts, range(1, seeds + 1)):
            value = float(row["value"] or 20) * random.uniform(0.9, 1.1)
            preset = {"preset": "smoke" if generated else "paper", "seed": seed, "value": value}
            rows.append({**row, **preset, "dataset": dataset, "config_variant": variant})
    return rows


def shown(folder: Path, rows: list[dict[str, Any]]) -> Any:
    pd.DataFrame(rows).to_csv(folder / "own.csv", index=False)
    return side_by_side(load_results(folder / "own.csv"))


def expected(rows: list[dict[str, Any]], *, generated: bool) -> Values:
    """The values of each seed, by pattern, task, backbone, published data set, metric and attention."""
    found: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        names = [name for name, parts in PARTS.items() if (row["dataset"], row["config_variant"]) in parts]
        if generated:
            names = list(PARTS) if row["task"] == "lstf" else [SETS[row["task"]]]
        for name in names or [row["dataset"]]:
            key = (row["pattern"], row["task"], row["backbone"], name, row["metric"], row["attention"])
            found[key][row["seed"]].append(row["value"])
    return {key: [statistics.fmean(seeds[seed]) for seed in sorted(seeds)] for key, seeds in found.items()}


def sign(metric: str) -> int:
    return 1 if metric in ("psnr", "ssim", "f_score", "rouge1", "rouge2", "rougeL") else -1


@pytest.fixture(scope="module", params=[False, True], ids=["real data", "generated data"])
def made(request, tmp_path_factory):
    """The table, and the values of which it is made: of three seeds, on generated data or not."""
    rows = own_rows(3, generated=request.param)
    return shown(tmp_path_factory.mktemp("own"), rows), expected(rows, generated=request.param), request.param


def test_every_number_follows_from_the_results(made):
    frame, values, generated = made
    published = {(*(row[name] for name in TERM), row["attention"]): row["value"] for row in rows_of("results.csv")}
    scales = {tuple(row[name] for name in TERM): row for row in rows_of("normalization.csv")}
    metrics = frame[frame["metric"] != "index"]
    assert frame.drop(metrics.index)["sd"].isna().all()  # the spread of an index is its interval
    assert set(frame["data"]) == {"rehearsal" if generated else "real"}
    assert len(metrics) == len(published.keys() | values.keys())
    for row in metrics.to_dict("records"):
        key = tuple(row[name] for name in ("pattern", "task", "backbone", "dataset", "metric", "attention"))
        own = values.get(key, [])
        assert row["seeds"] == len(own)
        printed = float(published.get(key) or math.nan)
        assert row["published"] == pytest.approx(printed, nan_ok=True)
        if not own:
            assert row["missing"]
            continue
        assert row["own"] == pytest.approx(statistics.fmean(own), rel=1e-12)
        assert row["sd"] == pytest.approx(statistics.stdev(own), rel=1e-9)
        difference = sign(row["metric"]) * (statistics.fmean(own) - printed) / float(scales[key[:5]]["std_table"])
        expected_difference = math.nan if generated else difference
        assert row["difference"] == pytest.approx(expected_difference, rel=1e-9, nan_ok=True)


def test_the_index_is_recomputed(made):
    """By the corrected constants of the official script; in a rehearsal by the own results, flash as vanilla once."""
    frame, seeds, generated = made
    values = {key: statistics.fmean(of) for key, of in seeds.items()}
    scales: dict[Key, tuple[float, float]] = {}
    if generated:
        for term in {key[:5] for key in values}:
            members = [value for key, value in values.items() if key[:5] == term and key[5] not in ("none", "flash")]
            scales[term] = statistics.fmean(members), statistics.stdev(members)
    else:
        for row in rows_of("normalization.csv"):
            scales[tuple(row[name] for name in TERM)] = float(row["mean"]), float(row["std"])
        for row in (row for row in rows_of("corrections.csv") if row["table"] == "normalization.csv"):
            term, correct = tuple(row[name] for name in TERM), float(row["corrected"])
            mean, std = scales[term]
            scales[term] = (correct, std) if row["column"] == "mean" else (mean, correct)
    indices = frame[frame["metric"] == "index"].set_index(["pattern", "task", "attention"])["own"].to_dict()
    assert set(frame["normalization"].dropna()) == {"results" if generated else "official"}
    for pattern, attention in {(key[0], key[5]) for key in values}:
        of_tasks = []
        for task in {term[1] for term in scales if term[0] == pattern}:
            terms = [term for term in scales if term[:2] == (pattern, task)]
            if not all((*term, attention) in values for term in terms):
                assert math.isnan(indices.get((pattern, task, attention), math.nan))
                of_tasks.append(math.nan)
                continue
            shares = [sign(term[4]) * (values[*term, attention] - scales[term][0]) / scales[term][1] for term in terms]
            of_tasks.append(statistics.fmean(shares))
            assert indices[pattern, task, attention] == pytest.approx(of_tasks[-1], rel=1e-9)
        average = indices.get((pattern, "all", attention), math.nan)
        assert average == pytest.approx(statistics.fmean(of_tasks), rel=1e-9, nan_ok=True)


def test_a_value_needs_all_its_parts_and_names_the_missing_ones(tmp_path):
    rows = [row for row in own_rows(2) if (row["dataset"], row["config_variant"], row["seed"]) != ("etth2", "S", 2)]
    rows = [row for row in rows if not (row["dataset"] == "ecl" and row["config_variant"] == "S")]
    frame = shown(tmp_path, rows)
    chosen = frame[(frame["attention"] == "abc") & (frame["metric"] == "mse")].set_index("dataset")
    assert list(chosen.loc[["ett", "ecl", "weather"], "seeds"]) == [1, 0, 2]
    assert list(chosen.loc[["ett", "ecl", "weather"], "missing"]) == ["", "ecl S", ""]


def test_copies_other_data_and_generated_data_change_no_value(tmp_path, cab):
    """A folder that is named twice, a run on other data, and runs on generated data alongside those on real data."""
    once, other = tmp_path / "once", tmp_path / "other"

    def write(folder: Path, value: float, dataset: str, variant: str, seed: int, **changes: Any) -> None:
        cell = {"dataset": dataset, "config_variant": variant, "seed": seed, "preset": "paper"}
        make_record({"mse": value}, **cell, **changes).write(folder)

    for part, seed in itertools.product(PARTS["ett"], (1, 2)):
        write(once, 0.3 + seed / 100, *part, seed)
    write(other, 9.0, "ettm1", "S", 3, data={"fingerprint": "other"})
    for variant in ("M", "S"):
        write(other, 9.0, "synthetic", variant, 1)
    for folders in ([once], [once, once, other]):
        value = r"NC,lstf,ett,informer,mse,vanilla,False,real,0.315000,0.007071,2,"
        assert value in cab("paper", "table3", *folders, "--format", "csv").out
