"""Correlations between patterns and tasks, and the benefit of attention."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cab.records.results import PAPER_DIR, load_results
from cab.scoring import benchmark_correlation, benefit_of_attention, pattern_correlation, score_table, task_correlation
from tests.cab.scoring.made_results import result, table

NAMES = ["vanilla", "abc", "local", "lara", "s4d", "performer"]


def scores(indices: dict[tuple[str, str], dict[str, float]]) -> pd.DataFrame:
    rows = [
        (pattern, task, name, ci, math.nan, math.nan, 1)
        for (pattern, task), values in indices.items()
        for name, ci in values.items()
    ]
    return pd.DataFrame(rows, columns=["pattern", "task", "attention", "index", "low", "high", "seeds"])


def pair(found: pd.DataFrame, a: str, b: str) -> pd.Series:
    rows = found[(found["a"] == a) & (found["b"] == b)]
    assert len(rows) == 1
    return rows.iloc[0]


@pytest.mark.parametrize("size", [4, 5, 6])
def test_correlation_of_patterns_is_pearson_with_fisher_interval(size: int) -> None:
    random = np.random.default_rng(size)
    x, y = random.normal(size=(2, size))
    shared = NAMES[:size]
    values = {("NS", "all"): dict(zip(shared, x, strict=True)), ("CS", "all"): dict(zip(shared, y, strict=True))}
    values[("NS", "all")] |= {"only_here": 3.0, "none": -50.0}
    values[("CS", "all")] |= {"only_there": 9.0, "none": -70.0, "failed": math.nan}
    row = pair(pattern_correlation(scores(values)), "NS", "CS")
    expected = stats.pearsonr(x, y)
    interval = expected.confidence_interval()
    found = [row["pearson"], row["p_value"], row["low"], row["high"]]
    np.testing.assert_allclose(found, [expected.statistic, expected.pvalue, interval.low, interval.high], rtol=1e-9)
    assert row["shared"] == size
    assert row["kind"] == "pattern"
    assert row["note"] == ("" if size >= 5 else "inconclusive: only 4 shared attentions")


def test_three_attentions_have_a_correlation_and_no_interval() -> None:
    values = {
        ("NS", "all"): {"abc": 1.0, "local": 2.0, "lara": 4.0},
        ("NC", "all"): {"abc": 1.0, "local": 3.0, "lara": 4.0},
    }
    row = pair(pattern_correlation(scores(values)), "NS", "NC")
    expected = stats.pearsonr([1, 2, 4], [1, 3, 4])
    assert row["pearson"] == pytest.approx(expected.statistic)
    assert row["p_value"] == pytest.approx(expected.pvalue)
    assert math.isnan(row["low"])
    assert row["note"] == "inconclusive: only 3 shared attentions"


@pytest.mark.parametrize("size", [0, 1, 2])
def test_too_few_attentions_have_no_correlation(size: int) -> None:
    names = dict(zip(NAMES[:size], (1.0, 2.0), strict=False))
    values = {("NS", "all"): names | {"x": 1.0}, ("NC", "all"): names | {"y": 1.0}}
    row = pair(pattern_correlation(scores(values)), "NS", "NC")
    assert math.isnan(row["pearson"])
    assert row["shared"] == size
    assert row["note"] == f"{size} shared attentions, at least 3 required"


def test_attentions_that_do_not_differ_have_no_correlation() -> None:
    values = {("NS", "all"): dict.fromkeys(NAMES, 0.5), ("NC", "all"): dict(zip(NAMES, range(6), strict=True))}
    row = pair(pattern_correlation(scores(values)), "NS", "NC")
    assert math.isnan(row["pearson"])
    assert "all attentions have the same score" in row["note"]


def test_tasks_correlate_within_their_pattern() -> None:
    ranks = dict(zip(NAMES, (0.0, 1.0, 2.0, 3.0, 4.0, 5.0), strict=True))
    back = {name: 5 - rank for name, rank in ranks.items()}
    values = {("NS", "a"): ranks, ("NS", "b"): back, ("NS", "all"): ranks, ("CC", "a"): ranks, ("CC", "c"): ranks}
    found = task_correlation(scores(values))
    assert found[["kind", "pattern", "a", "b"]].to_numpy().tolist() == [
        ["task", "NS", "a", "b"],
        ["task", "CC", "a", "c"],
    ]
    assert found["pearson"].tolist() == pytest.approx([-1, 1])
    assert found["p_value"].tolist() == pytest.approx([0, 0])


def test_published_correlations_share_the_attentions_of_the_paper() -> None:
    """FlashAttention is left out, as in the paper's own order of attentions."""
    table_ = score_table(load_results(PAPER_DIR), normalization="official")
    found = pattern_correlation(table_)
    assert found.set_index(["a", "b"])["shared"].to_dict() == {
        ("NS", "CS"): 3,
        ("NS", "NC"): 4,
        ("NS", "CC"): 3,
        ("CS", "NC"): 1,
        ("CS", "CC"): 1,
        ("NC", "CC"): 3,
    }
    tasks = task_correlation(table_)
    assert tasks[tasks["pattern"] == "NS"]["shared"].tolist() == [9, 10, 10, 9, 9, 10]
    assert tasks[tasks["pattern"] == "CC"]["pearson"].item() > 0.9  # "except the causal cross pattern" (appendix I)


def test_patterns_correlate_with_long_range_arena() -> None:
    """Figure 3a's fifth column, over the attentions that both have (Flash and S4D are not among LRA's)."""
    found = benchmark_correlation(score_table(load_results(PAPER_DIR), normalization="official"))
    assert found["kind"].unique().tolist() == ["benchmark"]
    assert found[["a", "b"]].to_numpy().tolist() == [[pattern, "LRA"] for pattern in ("NS", "CS", "NC", "CC")]
    assert found["shared"].tolist() == [6, 1, 3, 2]
    assert found["note"].str.contains("shared attentions").tolist() == [False, True, True, True]
    by_hand = scores({("NS", "all"): {"vanilla": 57.368, "performer": 57.996, "cosformer": 62.108}})
    assert benchmark_correlation(by_hand)["pearson"].item() == pytest.approx(1.0)


def test_one_pattern_and_one_task_correlate_with_nothing() -> None:
    alone = scores({("NS", "all"): {"abc": 1.0}, ("NS", "a"): {"abc": 1.0}})
    assert pattern_correlation(alone).empty
    assert task_correlation(alone).empty


def test_benefit_picks_the_best_efficient_attention() -> None:
    values = {"vanilla": 0.4, "flash": 0.9, "abc": 0.5, "local": 0.7, "none": -2.0}
    found = benefit_of_attention(
        scores({("NS", "a"): values, ("NS", "all"): values, ("NS", "b"): {"eager": 0.1, "abc": math.nan}})
    )
    assert found["task"].tolist() == ["a", "b"]
    assert found.iloc[0].tolist() == ["NS", "a", "local", 0.7, 0.4, -2.0]
    last = found.iloc[1]
    assert (last["best"], last["vanilla"]) == ("", 0.1)
    assert math.isnan(last["efficient"])
    assert math.isnan(last["without"])


def test_benefit_from_results_with_the_ablation() -> None:
    rows = [result(value, name) for name, value in (("vanilla", 2.0), ("abc", 1.0), ("local", 3.0), ("none", 9.0))]
    found = benefit_of_attention(score_table(table(*rows))).iloc[0]
    assert found["best"] == "abc"
    assert (found["efficient"], found["vanilla"], found["without"]) == pytest.approx((1, 0, -7))


def test_published_benefit_is_that_of_table_12_but_for_summarisation() -> None:
    table_ = score_table(load_results(PAPER_DIR), normalization="official")
    found = benefit_of_attention(table_[table_["pattern"] == "NS"]).set_index("task")
    assert found["best"].to_dict() == {"TTS": "s4d", "Sum": "local", "SR": "cosformer", "MLM": "longshort"}
    assert found.loc["SR", "efficient"] == pytest.approx(1.041, abs=0.001)
    assert found.loc["MLM", "vanilla"] == pytest.approx(0.527, abs=0.001)
