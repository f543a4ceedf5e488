"""The compositional index: hand-computed cases of a task outside Table 3, whole tasks of the table."""

import math
from typing import Any

import pytest

from cab.records.files import REFERENCE_DIRS
from cab.results.index import Scores, score, scores_by_source
from cab.results.load import load_results
from tests.helpers.made_records import index_of, mine, result, table

Rows = list[dict[str, Any]]


def scored(rows: Rows, **options: Any) -> Scores:
    return score(table(*rows), normalization="results", **options)


UNIT = math.sqrt(0.5)
"""Two attentions are this many sample deviations from their mean."""
TWO = {"abc": 1.0, "local": 2.0}
PARTS = [(name, part) for name in ("etth1", "etth2", "ettm1", "weather", "ecl") for part in ("M", "S")]


@pytest.mark.parametrize(
    ("rows", "indices"),
    [
        pytest.param(
            mine({"abc": 3.0, "local": 5.0})
            + mine({"abc": 0.2, "local": 0.6}, "acc")
            + mine({"abc": 10.0, "local": 40.0}, "psnr", backbone="other"),
            {("abc", "mine", "NC"): -UNIT / 3, ("local", "mine", "NC"): UNIT / 3},
            id="a flat mean over metrics, turned so that higher is better",
        ),
        pytest.param(
            mine(TWO) + mine(TWO, "mae") + mine(TWO, "acc", task="yours"),
            {("abc", "mine", "NC"): UNIT, ("abc", "yours", "NC"): -UNIT, ("abc", "all", "NC"): 0.0},
            id="the average is over tasks, not over metrics",
        ),
        pytest.param(
            mine(TWO) + mine({"abc": 7.0, "local": 5.0}, pattern="NS"),
            {("abc", "all", "NS"): -UNIT, ("abc", "all", "NC"): UNIT},
            id="patterns are scored apart",
        ),
        pytest.param(
            mine({"abc": [1.0, 2.0], "local": [1.0, 2.0]}) + mine({"abc": 0.5, "local": [0.6, 0.7]}, "mae"),
            {("abc", "all", "NC"): math.nan},
            id="no mean over the seeds that alone have a metric",
        ),
        pytest.param(
            mine({"vanilla": 1.0, "abc": 2.0, "none": 100.0, "flash": 1.5, "eager": 1.0}),
            {("vanilla", "all", "NC"): UNIT, ("eager", "all", "NC"): UNIT, ("none", "all", "NC"): -197 * UNIT},
            id="none, flash and eager are scored but not part of the scale",
        ),
        pytest.param(
            [
                result(value, name, metric, dataset=dataset, config_variant=part)
                for dataset, part in PARTS
                for name, value in zip(TWO, (1.0, 2.0) if dataset.startswith("ett") else (2.0, 1.0), strict=True)
                for metric in ("mse", "mae")
            ],
            {("abc", "lstf", "NC"): -UNIT / 3},
            id="better in the six parts of ETT and worse in four: sets have equal weights",
        ),
    ],
)
def test_means_of_normalized_metrics(rows, indices):
    scores = scored(rows).table
    assert {key: index_of(scores, *key) for key in indices} == pytest.approx(indices, nan_ok=True)
    assert scores["pattern"].drop_duplicates().tolist() == list(dict.fromkeys(key[2] for key in indices))


def test_an_incomplete_row_has_no_index_and_keeps_its_complete_tasks():
    rows = mine({"abc": 1.0, "local": 2.0, "s4d": 4.0}) + mine({"abc": 1.0, "local": 3.0}, "f_score", task="yours")
    scores = scored(rows + mine({"abc": 0.5, "s4d": 0.75}, "mae")).table  # local lacks a metric, s4d a task
    missing = dict(zip(zip(scores["task"], scores["attention"], strict=True), scores["missing"], strict=True))
    assert {place: text for place, text in missing.items() if text} == {
        ("mine", "local"): "missing: informer etth1 M mae",
        ("yours", "s4d"): "missing: informer etth1 M f_score",
        ("all", "local"): "no index in mine",
        ("all", "s4d"): "no index in yours",
    }
    assert len(missing) == 9
    assert (scores["index"].isna() == (scores["missing"] != "")).all()
    assert index_of(scores, "local", column="seeds") == 0


WEATHER = ((0.47575, 0.01057), (0.511, 0.00601))
"""Constants of the official script."""


def forecasts(attention: str = "abc", seed: int = 0) -> Rows:
    """All that the paper's LSTF index averages, as a user's records have it; the parts differ by sixteenths."""
    return [
        result(value + place / 16, attention, metric, seed, dataset=name, config_variant=part, preset="paper")
        for place, (name, part) in enumerate(PARTS)
        for metric, value in (("mse", 1.0), ("mae", 0.5))
    ]


def test_the_deviation_is_over_composites_per_seed():
    """Parts whose deviations cancel within each seed leave none."""
    rows: Rows = []
    for seed, sign in enumerate((1, -1)):
        for row in forecasts(seed=seed):
            shift = {"etth1": sign / 8, "etth2": -sign / 8}.get(row["dataset"], 0.0)
            rows.append({**row, "value": row["value"] + shift})
    scores = score(table(*rows))
    low, high = (index_of(scores.table, "abc", "lstf", column=name) for name in ("low", "high"))
    assert low == pytest.approx(high)
    assert index_of(scores.table, "abc", "lstf", column="seeds") == 2


def test_a_task_of_table_3_that_nobody_ran_leaves_no_average():
    scores = score(table(*forecasts())).table
    assert math.isfinite(index_of(scores, "abc", "lstf"))
    assert math.isnan(index_of(scores, "abc"))
    assert scores.loc[scores["task"] == "all", "missing"].tolist() == ["no index in pcc"]


def test_a_partial_index_has_a_name_of_its_own():
    """Two of ten values, whatever the metrics of each; `all` needs the other tasks as well."""
    rows = [row for row in forecasts() + forecasts("local") if row["dataset"] == "weather"]
    assert score(table(*rows)).table["index"].isna().all()
    partial = score(table(*rows), partial=True).table
    found = partial.set_index(["task", "attention"])["index"]
    shift = 6.5 / 16
    by_hand = [(m - v - shift) / s for v, (m, s) in zip((1.0, 0.5), WEATHER, strict=True)]
    assert found["lstf (partial: 2 of 10 values)", "abc"] == pytest.approx(sum(by_hand) / 2)
    assert set(partial["task"]) == {"lstf (partial: 2 of 10 values)", "all (partial: 2 of 11 values)"}
    whole = score(table(*forecasts()), partial=True).table
    assert "lstf" in set(whole["task"])


def test_the_average_has_the_tasks_of_table_3():
    """Section 3.1: LSTF and PCC are no part of NS, unless they are named or alone; a task of others is."""
    values = {"abc": 1.0, "local": 2.0, "s4d": 4.0}
    lstf, others = mine(values, task="lstf", pattern="NS"), mine(values, "ppl", task="mlm", pattern="CC")
    rows = lstf + others + mine({name: -value for name, value in values.items()}, pattern="NS")
    found = scored(rows)
    index = {task: index_of(found.table, "abc", task, "NS") for task in ("lstf", "mine")}
    assert index_of(found.table, "abc", "all", "NS") == pytest.approx(index["mine"])
    named = scored(rows, tasks=["lstf"])
    assert index_of(named.table, "abc", "all", "NS") == pytest.approx(sum(index.values()) / 2)
    alone = scored(lstf).table
    assert index_of(alone, "abc", "all", "NS") == index_of(alone, "abc", "lstf", "NS") == pytest.approx(index["lstf"])


def test_results_of_the_suite_and_of_tasks_outside_the_index_have_none():
    assert scores_by_source(load_results(REFERENCE_DIRS[1])) == {}
    assert scores_by_source(table(*mine(TWO, "acc", task="lra", dataset="text", pattern="NS"))) == {}
