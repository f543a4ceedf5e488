"""Own results can be joined with the published ones."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
import pytest

import cab
from cab.cli.main import main
from cab.records.results import PAPER_DIR
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from tests.helpers.made_records import make_metric, make_record

NAMES = ["task", "dataset", "backbone", "pattern", "attention", "metric"]
PUBLISHED = pd.read_csv(PAPER_DIR / "results.csv")
PARTS = pd.read_csv(PAPER_DIR / "parts.csv")
ETT = PARTS[PARTS["dataset"] == "ett"]


def write_run(
    folder: Path, published: pd.Series, *, dataset: str, config_variant: str = "", value: float = 1.0
) -> None:
    """Write a record whose names are those of a row of results.csv, and whose cell is one that can be run."""
    cell = {name: published[name] for name in ("task", "backbone", "pattern", "attention")}
    metric = make_metric(published["metric"], value)
    make_record([metric], dataset=dataset, config_variant=config_variant, preset="paper", **cell).write(folder)


@pytest.mark.parametrize("task", sorted(PUBLISHED["task"].unique()))
def test_own_rows_of_every_task_join_the_published_ones(task: str, tmp_path: Path) -> None:
    published = PUBLISHED[PUBLISHED["task"] == task].iloc[0]
    parts = PARTS[(PARTS["task"] == task) & (PARTS["dataset"] == published["dataset"])]
    runs = zip(parts["part"], parts["config_variant"], strict=True) if len(parts) else [(published["dataset"], "")]
    for dataset, variant in runs:
        assert dataset in TASKS.get(task).datasets
        write_run(tmp_path, published, dataset=dataset, config_variant=variant)
    own = cab.with_composites(cab.load_results(tmp_path))
    paper = pd.read_csv(PAPER_DIR / "results.csv")
    joined = own[own["config_variant"] == ""].merge(paper, on=NAMES, suffixes=("", "_paper"))
    assert list(joined["dataset"]) == [published["dataset"]]
    assert list(joined["value"]) == [1.0]


def test_published_names_are_registered() -> None:
    composites = set(PARTS["dataset"])
    for file in ("results.csv", "normalization.csv", "corrections.csv", "parts.csv"):
        table = pd.read_csv(PAPER_DIR / file)
        for task, of_task in table.groupby("task"):
            datasets = {*TASKS.get(str(task)).datasets, *composites}
            assert set(of_task["dataset"]) <= datasets
    assert set(PUBLISHED["backbone"]) <= set(BACKBONES.names())
    assert set(PUBLISHED["attention"]) <= set(ATTENTIONS.names())
    for file in ("compositional_index.csv", "benefit_of_attention.csv", "differences.csv"):
        assert set(pd.read_csv(PAPER_DIR / file)["task"].dropna()) <= {*TASKS.names(), "all"}


def test_a_composite_is_the_mean_over_its_parts_per_seed(tmp_path: Path) -> None:
    row = PUBLISHED.query("dataset == 'ett'").iloc[0]
    for number, (name, variant) in enumerate(zip(ETT["part"], ETT["config_variant"], strict=True)):
        write_run(tmp_path, row, dataset=name, config_variant=variant, value=float(number))
    results = cab.load_results(tmp_path)
    composites = cab.with_composites(results)[len(results) :]
    assert composites[["dataset", "config_variant", "value"]].to_numpy().tolist() == [["ett", "", 2.5]]
    assert len(cab.with_composites(results[1:])) == 5  # a part is missing


def test_own_and_published_means_are_in_one_column_with_deviation_and_seeds(tmp_path: Path) -> None:
    row = PUBLISHED.query("dataset == 'ett' and metric == 'mse'").iloc[0]
    for attention, (name, variant) in itertools.product(("abc", "vanilla"), ETT[["part", "config_variant"]].to_numpy()):
        named = row.copy()
        named["attention"] = attention
        write_run(tmp_path / "runs", named, dataset=name, config_variant=variant)
    out = tmp_path / "out"
    assert main(["leaderboard", str(tmp_path / "runs"), str(PAPER_DIR), "--out", str(out)]) == 0
    table = pd.read_csv(out / "leaderboard.csv").query("attention == 'abc' and pattern == 'NC'").set_index("preset")
    column = "lstf/ett/informer.mse"
    expected = PUBLISHED.query("dataset == 'ett' and metric == 'mse' and attention == 'abc'")["value"].item()
    assert table[column].to_dict() == {"paper": 1.0, "published": expected}
    assert table.loc["paper", f"{column}.seeds"] == 1
    assert pd.isna(table.loc["paper", f"{column}.sd"])
    files = pd.read_csv(out / "records.csv")["file"]
    assert not files.map(lambda name: Path(name).is_absolute()).any()
    assert all((tmp_path / name).exists() for name in files[files.str.startswith("runs/")])
