"""The cells of Table 3 with their known differences, and own results on its data sets."""

import itertools
import math
import os
from pathlib import Path

import pandas as pd
import pytest

from cab.records.files import PAPER_DIR
from cab.registry.registries import TASKS
from cab.results.load import load_results
from cab.results.published import DIRECTIONS, on_published_sets, published_cells, rows, table3, tasks3, terms3
from tests.helpers.made_records import make_record, result, table

PUBLISHED = pd.read_csv(PAPER_DIR / "results.csv")
PARTS = pd.read_csv(PAPER_DIR / "parts.csv")
ETT = PARTS[PARTS["dataset"] == "ett"]
CELLS = list(published_cells())


def test_a_row_for_every_published_cell():
    keys = ["pattern", "task", "backbone", "dataset", "attention"]
    cells = {*PUBLISHED[keys].itertuples(index=False, name=None)}
    assert {tuple(cell[:5]) for cell in CELLS} == {*map(tuple, table3())} == cells
    assert len(CELLS) == len(cells)
    assert all(cell.differs for cell in CELLS)
    assert {cell.direction for cell in CELLS} == {"either", "better", "worse", "better or worse"}
    assert {(term[0], term[1]) for term in terms3()} == tasks3() == {(cell.pattern, cell.task) for cell in CELLS}


def test_every_difference_is_one_of_a_cell():
    for row in rows("differences.csv"):
        assert row["direction"] in DIRECTIONS
        keys = ("task", "pattern", "backbone", "attention")
        assert any(all(row[key] in ("", getattr(cell, key)) for key in keys) for cell in CELLS), row


@pytest.mark.parametrize("task", sorted(PUBLISHED["task"].unique()))
def test_every_published_set_and_its_parts_are_data_sets_of_the_task(task):
    parts = PARTS[PARTS["task"] == task]
    whole = set(PUBLISHED.loc[PUBLISHED["task"] == task, "dataset"]) - set(parts["dataset"])
    assert whole | set(parts["part"]) <= set(TASKS.get(task).datasets)


def test_a_composite_without_the_score_of_a_part_says_so():
    """It is not missing, and it is no mean over the other parts."""
    parts = ETT[["part", "config_variant"]].to_numpy().tolist()
    runs = [result(1.0, dataset=name, config_variant=variant, seed=seed) for name, variant in parts for seed in (1, 2)]
    runs[4] |= {"value": math.nan, "status": "oom"}
    found = on_published_sets(table(*runs)).set_index("seed")
    assert found["status"].to_dict() == {1: "oom", 2: "finished"}
    assert found["value"].to_dict() == {1: pytest.approx(math.nan, nan_ok=True), 2: 1.0}


def test_own_and_published_means_are_in_one_column_with_deviation_and_seeds(tmp_path, cab):
    row = PUBLISHED.query("dataset == 'ett' and metric == 'mse'").iloc[0]
    cell = {"preset": "paper", **row[["task", "backbone", "pattern"]].to_dict()}
    for attention, (name, variant) in itertools.product(("abc", "vanilla"), ETT[["part", "config_variant"]].to_numpy()):
        names = {"attention": attention, "dataset": name, "config_variant": variant}
        make_record({"mse": 1.0}, **cell, **names).write(tmp_path / "runs")
    for command in ("score", "correlation"):  # of one task, which is no whole pattern
        assert cab(command, tmp_path / "runs", PAPER_DIR).out
    out = tmp_path / "out"
    cab("leaderboard", tmp_path / "runs", PAPER_DIR, "--out", out)
    found = pd.read_csv(out / "leaderboard.csv").query("attention == 'abc' and pattern == 'NC'").set_index("preset")
    column = "lstf/ett/informer.mse"
    expected = PUBLISHED.query("dataset == 'ett' and metric == 'mse' and attention == 'abc'")["value"].item()
    assert found[column].to_dict() == {"paper": 1.0, "published": expected}
    assert found[f"{column}.seeds"].to_dict() == {"paper": 1, "published": pytest.approx(math.nan, nan_ok=True)}
    assert pd.isna(found.loc["paper", f"{column}.sd"])
    written, results = pd.read_csv(out / "records.csv"), load_results([tmp_path / "runs", PAPER_DIR])
    assert sorted(written["value"].dropna()) == pytest.approx(sorted(results["value"].dropna()), rel=1e-12)
    assert len(written) == len(results)
    files = set(written["file"])
    assert not any(map(os.path.isabs, files))
    assert {Path(name).name for name in files} >= {path.name for path in (tmp_path / "runs").iterdir()}
