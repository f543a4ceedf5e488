"""The compositional index: hand-computed cases of a task outside Table 3, whole tasks of the table, printed indices."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from cab.records.files import PAPER_DIR, REFERENCE_DIRS
from cab.results.index import INDEX_COLUMNS, INDEX_KEY, Scores, index_table, score, scores_by_source
from cab.results.load import load_results
from cab.results.published import rows as printed
from tests.helpers.made_records import index_of, mine, result, table

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load_results(PAPER_DIR)


def scored(*rows: dict[str, Any], **options: Any) -> Scores:
    return score(table(*rows), normalization="results", **options)


def test_own_normalization_is_the_sample_deviation_over_the_attentions() -> None:
    scores = scored(mine(1.0, "abc"), mine(2.0, "local"), mine(4.5, "s4d")).table
    assert list(scores.columns) == INDEX_COLUMNS
    deviation = math.sqrt(((1.5) ** 2 + 0.5**2 + 2.0**2) / 2)  # around the mean 2.5, over n - 1
    for task in ("mine", "all"):
        assert index_of(scores, "abc", task) == pytest.approx(1.5 / deviation)
        assert index_of(scores, "local", task) == pytest.approx(0.5 / deviation)
        assert index_of(scores, "s4d", task) == pytest.approx(-2.0 / deviation)
    assert scores[scores["task"] == "all"]["attention"].tolist() == ["abc", "local", "s4d"]
    assert scores[["low", "high"]].isna().all().all()
    assert (scores["seeds"] == 1).all()
    assert set(zip(scores["source"], scores["normalization"], strict=True)) == {("own", "results")}


UNIT = math.sqrt(0.5)
"""Two attentions are this many sample deviations from their mean."""
METRICS = {"abc": (3.0, 0.2, 10.0), "local": (5.0, 0.6, 40.0)}


@pytest.mark.parametrize(
    ("rows", "indices"),
    [
        pytest.param(
            [
                row
                for name, (mse, acc, psnr) in METRICS.items()
                for row in (mine(mse, name), mine(acc, name, "acc"), mine(psnr, name, "psnr", backbone="other"))
            ],
            {("abc", "mine", "NC"): -UNIT / 3, ("local", "mine", "NC"): UNIT / 3},
            id="a flat mean over metrics, turned so that higher is better",
        ),
        pytest.param(
            [
                row
                for name, value in (("abc", 1.0), ("local", 2.0))
                for row in (mine(value, name), mine(value, name, "mae"), mine(value, name, "acc", task="yours"))
            ],
            {("abc", "mine", "NC"): UNIT, ("abc", "yours", "NC"): -UNIT, ("abc", "all", "NC"): 0.0},
            id="the average is over tasks, not over metrics",
        ),
        pytest.param(
            [mine(1.0, "abc"), mine(2.0, "local")]
            + [mine(value, name, pattern="NS") for value, name in ((7.0, "abc"), (5.0, "local"))],
            {("abc", "all", "NS"): -UNIT, ("abc", "all", "NC"): UNIT},
            id="patterns are scored apart",
        ),
    ],
)
def test_means_of_normalized_metrics(rows: Rows, indices: dict[tuple[str, str, str], float]) -> None:
    scores = scored(*rows).table
    assert {key: index_of(scores, *key) for key in indices} == pytest.approx(indices)
    assert scores["pattern"].drop_duplicates().tolist() == list(dict.fromkeys(key[2] for key in indices))


def test_an_incomplete_row_has_no_index_and_keeps_its_complete_tasks() -> None:
    rows = [mine(value, name) for value, name in ((1.0, "abc"), (2.0, "local"), (4.0, "s4d"))]
    rows += [mine(value, name, "f_score", task="yours") for value, name in ((1.0, "abc"), (3.0, "local"))]
    rows += [mine(0.5, "abc", "mae"), mine(0.75, "s4d", "mae")]  # local lacks a metric, s4d a task
    scores = scored(*rows).table
    found = {
        (row.task, row.attention): (math.isfinite(row.index_), row.missing)
        for row in scores.rename(columns={"index": "index_"}).itertuples()
    }
    assert found == {
        ("mine", "abc"): (True, ""),
        ("mine", "local"): (False, "missing: informer etth1 M mae"),
        ("mine", "s4d"): (True, ""),
        ("yours", "abc"): (True, ""),
        ("yours", "local"): (True, ""),
        ("yours", "s4d"): (False, "missing: informer etth1 M f_score"),
        ("all", "abc"): (True, ""),
        ("all", "local"): (False, "no index in mine"),
        ("all", "s4d"): (False, "no index in yours"),
    }
    assert index_of(scores, "local", column="seeds") == 0


def test_a_metric_of_one_seed_alone_makes_no_mean_over_the_seeds_that_have_it() -> None:
    rows = [mine(1.0 + seed, name, seed=seed) for name in ("abc", "local") for seed in (0, 1)]
    rows += [mine(0.5, "abc", "mae"), mine(0.6, "local", "mae"), mine(0.7, "local", "mae", seed=1)]
    assert math.isnan(index_of(scored(*rows).table, "abc"))


def test_none_flash_and_eager_are_scored_but_not_part_of_the_scale() -> None:
    values = {"vanilla": 1.0, "abc": 2.0, "local": 4.0}
    alone = scored(*(mine(value, name) for name, value in values.items())).table
    more = values | {"none": 100.0, "flash": 1.5, "eager": 1.0}
    scores = scored(*(mine(value, name) for name, value in more.items())).table
    for name in values:
        assert index_of(scores, name) == pytest.approx(index_of(alone, name))
    assert index_of(scores, "eager") == pytest.approx(index_of(alone, "vanilla"))
    assert index_of(scores, "none") < -10


# --- tasks of Table 3 -------------------------------------------------------------------------------------------------

PARTS = [(name, part) for name in ("etth1", "etth2", "ettm1", "weather", "ecl") for part in ("M", "S")]
CONSTANTS = {  # of the official script
    "ett": ((1.18933, 0.05615), (0.80625, 0.02193)),
    "weather": ((0.47575, 0.01057), (0.511, 0.00601)),
    "ecl": ((0.62025, 0.18948), (0.58075, 0.10312)),
}


def forecasts(attention: str = "abc", leave_out: tuple[str, str] | None = None, shift: float = 0, **more: Any) -> Rows:
    """All that the paper's LSTF index averages, as a user's records have it; the parts differ by sixteenths."""
    return [
        result(value + place / 16 + shift, attention, metric, **more, dataset=name, config_variant=part, preset="paper")
        for place, (name, part) in enumerate(PARTS)
        for metric, value in (("mse", 1.0), ("mae", 0.5))
        if (name, part) != leave_out
    ]


def test_the_sets_have_equal_weights_under_the_results_own_normalization() -> None:
    """ABC is better in the six parts of ETT, worse in the four others: -1/3, and not 2/10."""
    rows = []
    for dataset, part in PARTS:
        sign = 1 if dataset.startswith("ett") else -1
        for attention, value in (("abc", 1.0 - sign / 10), ("local", 1.0 + sign / 10)):
            for metric in ("mse", "mae"):
                rows.append(result(value, attention, metric, dataset=dataset, config_variant=part))
    assert index_of(scored(*rows).table, "abc", "lstf") == pytest.approx(-math.sqrt(0.5) / 3)


def test_the_deviation_is_over_composites_per_seed() -> None:
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


def test_a_partial_index_has_a_name_of_its_own() -> None:
    """Two of ten values, whatever the metrics of each; `all` needs the other tasks as well."""
    rows = [row for row in forecasts() + forecasts("local", shift=1) if row["dataset"] == "weather"]
    assert score(table(*rows)).table["index"].isna().all()
    partial = score(table(*rows), partial=True).table
    found = partial.set_index(["task", "attention"])["index"]
    shift = 6.5 / 16
    by_hand = [(m - v - shift) / s for v, (m, s) in zip((1.0, 0.5), CONSTANTS["weather"], strict=True)]
    assert found["lstf (partial: 2 of 10 values)", "abc"] == pytest.approx(sum(by_hand) / 2)
    assert set(partial["task"]) == {"lstf (partial: 2 of 10 values)", "all (partial: 2 of 11 values)"}
    whole = score(table(*forecasts()), partial=True).table
    assert "lstf" in set(whole["task"])


def test_the_average_has_the_tasks_of_table_3() -> None:
    """Section 3.1: LSTF and PCC are no part of NS, unless they are named or alone; a task of others is."""
    rows = []
    for name, value in (("abc", 1.0), ("local", 2.0), ("s4d", 4.0)):
        rows += [result(value, name, pattern="NS"), mine(value, name, "ppl", task="mlm", pattern="CC")]
        rows += [mine(-value, name, pattern="NS")]
    found = scored(*rows)
    index = {task: index_of(found.table, "abc", task, "NS") for task in ("lstf", "mine")}
    assert index_of(found.table, "abc", "all", "NS") == pytest.approx(index["mine"])
    named = scored(*rows, tasks=["lstf"])
    assert index_of(named.table, "abc", "all", "NS") == pytest.approx(sum(index.values()) / 2)
    alone = scored(*(row for row in rows if row["task"] == "lstf")).table
    assert index_of(alone, "abc", "all", "NS") == index_of(alone, "abc", "lstf", "NS") == pytest.approx(index["lstf"])


def test_a_published_index_is_the_printed_digit(published: pd.DataFrame) -> None:
    """With unknown seeds; nothing is recomputed unless a normalization is named."""
    found = index_table(published)
    assert set(found["source"]) == {"published"}
    texts = {
        (row["pattern"], row["task"], row["attention"]): row["index"] for row in printed("compositional_index.csv")
    }
    for row in found.to_dict("records"):
        text = texts.pop((row["pattern"], row["task"], row["attention"]))
        assert row["index"] == pytest.approx(float(text or math.nan), abs=0, nan_ok=True)
        assert row["missing"] == ("" if text else "not given in the paper")
    assert not texts
    assert found[["seeds", "low", "high"]].isna().all().all()


@pytest.mark.parametrize(("normalization", "tasks", "averages"), [("official", 58, 15), ("paper", 40, 5)])
def test_recomputed_indices_within_0_0015(
    published: pd.DataFrame, normalization: str, tasks: int, averages: int
) -> None:
    """58 of the 74 indices of tasks, 15 of the 22 averages; Table 3 has too few digits for the others."""
    found = index_table(published, normalization=normalization)
    groups = dict(iter(found.groupby("source")))
    assert groups["recomputed"]["seeds"].isna().all()
    both = groups["published"].merge(groups["recomputed"], on=INDEX_KEY, suffixes=("", "_found"))
    assert len(both) == len(groups["published"]) == 96
    same = (both["index"] - both["index_found"]).abs() <= 0.0015
    assert same[both["task"] != "all"].sum() == tasks
    assert same[both["task"] == "all"].sum() == averages


def test_results_of_the_suite_and_of_tasks_outside_the_index_have_none() -> None:
    assert scores_by_source(load_results(REFERENCE_DIRS[1])) == {}
    arena = [
        result(value, name, "acc", task="lra", dataset="text", pattern="NS")
        for value, name in ((1.0, "abc"), (2.0, "local"))
    ]
    assert scores_by_source(table(*arena)) == {}


def test_own_records_of_lstf_are_averaged_as_the_paper_did() -> None:
    """ETT, Weather and ECL are one third each."""
    scores = score(table(*forecasts())).table
    places = {"ett": 2.5 / 16, "weather": 6.5 / 16, "ecl": 8.5 / 16}  # mean places of the six, two and two parts
    by_hand = [
        (mean - value - places[name]) / std
        for name, of in CONSTANTS.items()
        for value, (mean, std) in zip((1.0, 0.5), of, strict=True)
    ]
    assert index_of(scores, "abc", "lstf") == pytest.approx(sum(by_hand) / 6)
    assert set(scores["normalization"]) == {"official"}
    assert math.isnan(index_of(scores, "abc"))
    assert scores.loc[scores["task"] == "all", "missing"].tolist() == ["no index in pcc"]
