"""The compositional index: hand-computed cases, and the published numbers."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from cab.records.results import PAPER_DIR, load_results
from cab.results.index import score, score_table, scores_by_source
from cab.results.selection import comparable
from tests.helpers.made_records import make_record
from tests.helpers.made_results import index_of, result, table

COLUMNS = ["pattern", "task", "attention", "index", "low", "high", "seeds"]


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load_results(PAPER_DIR)


def test_own_normalisation_is_the_sample_deviation_over_the_attentions() -> None:
    scores = score_table(table(result(1.0, "abc"), result(2.0, "local"), result(4.5, "s4d")))
    assert list(scores.columns) == COLUMNS
    deviation = math.sqrt(((1.5) ** 2 + 0.5**2 + 2.0**2) / 2)  # around the mean 2.5, over n - 1
    assert index_of(scores, "abc") == pytest.approx(1.5 / deviation)
    assert index_of(scores, "local") == pytest.approx(0.5 / deviation)
    assert index_of(scores, "s4d", "lstf") == pytest.approx(-2.0 / deviation)
    assert scores[scores["task"] == "all"]["attention"].tolist() == ["abc", "local", "s4d"]
    assert scores[["low", "high"]].isna().all().all()
    assert (scores["seeds"] == 1).all()


def test_metrics_are_averaged_flat_and_turned_so_that_higher_is_better() -> None:
    values = {"abc": (3.0, 0.2, 10.0), "local": (5.0, 0.6, 40.0)}
    rows = []
    for name, (mse, acc, psnr) in values.items():
        rows += [result(mse, name), result(acc, name, "acc"), result(psnr, name, "psnr", backbone="other")]
    scores = score_table(table(*rows))
    unit = 1 / math.sqrt(2)  # two attentions are this many sample deviations from their mean
    assert index_of(scores, "abc", "lstf") == pytest.approx((unit - unit - unit) / 3)
    assert index_of(scores, "local", "lstf") == pytest.approx((-unit + unit + unit) / 3)


def test_average_is_over_tasks_not_over_metrics() -> None:
    rows = []
    for name, value in (("abc", 1.0), ("local", 2.0)):
        rows += [result(value, name), result(value, name, "mae"), result(value, name, "acc", task="pcc")]
    scores = score_table(table(*rows))
    assert index_of(scores, "abc", "lstf") == pytest.approx(math.sqrt(0.5))
    assert index_of(scores, "abc", "pcc") == pytest.approx(-math.sqrt(0.5))
    assert index_of(scores, "abc") == pytest.approx(0)


def test_an_incomplete_row_has_no_index_and_keeps_its_complete_tasks() -> None:
    rows = [result(value, name) for value, name in ((1.0, "abc"), (2.0, "local"), (4.0, "s4d"))]
    rows += [result(value, name, "f_score", task="pcc") for value, name in ((1.0, "abc"), (3.0, "local"))]
    rows += [result(0.5, name, "mae") for name in ("abc", "s4d")]  # local lacks a metric, s4d a task
    rows[-1]["value"] = 0.75
    made = score(table(*rows))
    scores = made.table
    assert math.isnan(index_of(scores, "local"))
    assert math.isnan(index_of(scores, "local", "lstf"))
    assert math.isfinite(index_of(scores, "local", "pcc"))
    assert math.isnan(index_of(scores, "s4d"))
    assert math.isnan(index_of(scores, "s4d", "pcc"))
    assert math.isfinite(index_of(scores, "s4d", "lstf"))
    assert math.isfinite(index_of(scores, "abc"))
    assert index_of(scores, "local", column="seeds") == 0
    assert any("local" in note and "mae" in note for note in made.notes)
    assert any("s4d" in note and "f_score" in note for note in made.notes)


def test_a_metric_of_one_seed_alone_makes_no_mean_over_the_seeds_that_have_it() -> None:
    rows = [result(1.0 + seed, name, seed=seed) for name in ("abc", "local") for seed in (0, 1)]
    rows += [result(0.5, "abc", "mae"), result(0.6, "local", "mae"), result(0.7, "local", "mae", seed=1)]
    scores = score_table(table(*rows))
    assert math.isnan(index_of(scores, "abc"))


def test_none_flash_and_eager_are_scored_but_not_part_of_the_scale() -> None:
    values = {"vanilla": 1.0, "abc": 2.0, "local": 4.0}
    alone = score_table(table(*(result(value, name) for name, value in values.items())))
    more = values | {"none": 100.0, "flash": 1.5, "eager": 1.0}
    scores = score_table(table(*(result(value, name) for name, value in more.items())))
    for name in values:
        assert index_of(scores, name) == pytest.approx(index_of(alone, name))
    assert index_of(scores, "eager") == pytest.approx(index_of(alone, "vanilla"))
    assert index_of(scores, "none") < -10


def test_flash_is_softmax_attention_where_vanilla_was_not_run() -> None:
    scores = score_table(table(result(1.0, "flash"), result(2.0, "abc")))
    assert index_of(scores, "flash") == pytest.approx(math.sqrt(0.5))


def test_patterns_are_scored_apart() -> None:
    rows = [result(1.0, "abc"), result(2.0, "local")]
    rows += [result(7.0, "abc", pattern="NS"), result(5.0, "local", pattern="NS")]
    scores = score_table(table(*rows))
    assert scores["pattern"].drop_duplicates().tolist() == ["NS", "NC"]
    assert index_of(scores, "abc", pattern="NS") == pytest.approx(-math.sqrt(0.5))
    assert index_of(scores, "abc", pattern="NC") == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(("normalization", "tasks", "averages"), [("official", 57, 14), ("paper", 39, 5)])
def test_published_indices_within_0_0015(
    published: pd.DataFrame, normalization: str, tasks: int, averages: int
) -> None:
    """57 of the 74 indices of tasks, 14 of the 22 averages; Table 3 has too few digits for the others."""
    scores = score_table(published, normalization=normalization)
    printed = pd.read_csv(PAPER_DIR / "compositional_index.csv")
    both = printed.merge(scores, on=["pattern", "task", "attention"], suffixes=("", "_found"))
    assert len(both) == len(printed) == 96
    same = (both["index"] - both["index_found"]).abs() <= 0.0015
    assert same[both["task"] != "all"].sum() == tasks
    assert same[both["task"] == "all"].sum() == averages


PARTS = [(name, part) for name in ("etth1", "etth2", "ettm1", "weather", "ecl") for part in ("M", "S")]


def forecasts(attention: str = "abc", leave_out: tuple[str, str] | None = None) -> list[dict[str, object]]:
    """All that the paper's LSTF index averages, as a user's records have it."""
    return [
        result(value + place / 16, attention, metric, dataset=name, config_variant=part, preset="paper", task="lstf")
        for place, (name, part) in enumerate(PARTS)
        for metric, value in (("mse", 1.0), ("mae", 0.5))
        if (name, part) != leave_out
    ]


def test_own_records_of_lstf_are_averaged_as_the_paper_did() -> None:
    scores = score_table(table(*forecasts()), normalization="official")
    ett, weather, ecl = 2.5 / 16, 6.5 / 16, 8.5 / 16  # mean places of the six, two and two parts
    constants = [
        (1 + ett, 1.18933, 0.05615),
        (0.5 + ett, 0.80625, 0.02193),
        (1 + weather, 0.47575, 0.01057),
        (0.5 + weather, 0.511, 0.00601),
        (1 + ecl, 0.62025, 0.18948),
        (0.5 + ecl, 0.58075, 0.10312),
    ]
    by_hand = sum((mean - value) / std for value, mean, std in constants) / 6
    assert index_of(scores, "abc", "lstf") == pytest.approx(by_hand)
    assert math.isnan(index_of(scores, "abc"))  # the pattern also needs PCC


@pytest.mark.parametrize("missing", PARTS[::4])
def test_no_part_may_be_missing(missing: tuple[str, str]) -> None:
    made = score(table(*forecasts("abc", missing), *forecasts("local")), normalization="paper")
    assert math.isnan(index_of(made.table, "abc", "lstf"))
    assert math.isfinite(index_of(made.table, "local", "lstf"))
    assert any("abc" in note and missing[0] in note for note in made.notes)


def test_attentions_trained_differently_are_named(caplog: pytest.LogCaptureFixture) -> None:
    short, long, elsewhere = (
        make_record({}, config={"trainer": {"max_steps": steps, "num_workers": steps}, "other_attention": filler})
        for steps, filler in ((200, "vanilla"), (2000, "vanilla"), (200, "probsparse"))
    )
    alike = [result(0.4, record=short), result(0.5, attention="abc", record=short)]
    comparable(table(*alike))
    assert not caplog.text
    comparable(table(*alike, result(math.nan, attention="s4d", record=long)))
    assert not caplog.text, "a run without a score is compared with none"
    comparable(table(*alike, result(0.3, attention="local", record=long)))
    assert "lstf etth1 M informer NC" in caplog.text
    assert "vanilla: trainer.max_steps=200; local: trainer.max_steps=2000" in caplog.text
    comparable(table(*alike, result(0.3, attention="lara", record=elsewhere)))
    assert "lara: other_attention=probsparse" in caplog.text


def test_the_average_has_the_tasks_of_table_3() -> None:
    """Section 3.1: LSTF and PCC are no part of NS, unless they are named or alone; a task of others is."""
    rows = []
    for name, value in (("abc", 1.0), ("local", 2.0), ("s4d", 4.0)):
        rows += [result(value, name, pattern="NS"), result(value, name, "ppl", task="mlm", pattern="NS")]
        rows += [result(-value, name, task="mine", pattern="NS")]
    of_tasks = score_table(table(*rows))
    index = {task: index_of(of_tasks, "abc", task, "NS") for task in ("lstf", "mlm", "mine")}
    assert index_of(of_tasks, "abc", "all", "NS") == pytest.approx((index["mlm"] + index["mine"]) / 2)
    named = score(table(*rows), tasks=["lstf"])
    assert index_of(named.table, "abc", "all", "NS") == pytest.approx(sum(index.values()) / 3)
    assert not any("Section 3.1" in note for note in named.notes)
    assert "NS: all excludes lstf (Section 3.1); --task lstf includes it" in score(table(*rows)).notes
    alone = score_table(table(*(row for row in rows if row["task"] == "lstf")))
    assert index_of(alone, "abc", "all", "NS") == index_of(alone, "abc", "lstf", "NS") == pytest.approx(index["lstf"])


def test_own_and_published_results_are_scored_with_the_same_constants(published: pd.DataFrame) -> None:
    of_pcc = published[(published["task"] == "pcc") & published["attention"].isin(["abc", "vanilla"])]
    own = of_pcc.assign(preset="paper", value=of_pcc["value"] * 1.1, seed=1, hash=of_pcc["attention"])
    scored = scores_by_source(pd.concat([own, published]))
    assert list(scored) == ["own", "published"]
    for source, rows in (("own", own), ("published", published)):
        expected = score_table(rows, normalization="official")
        pd.testing.assert_frame_equal(scored[source].table, expected)
    pd.testing.assert_frame_equal(scores_by_source(published)["published"].table, score_table(published))
