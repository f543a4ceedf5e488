"""Correlations between patterns, tasks, benchmarks, sets of results and probes, and the benefit of attention."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cab.records.files import PAPER_DIR
from cab.results.correlation import benchmark_correlation, pattern_correlation, task_correlation
from cab.results.index import benefit_of_attention, index_table
from cab.results.load import load_results

NAMES = ["vanilla", "abc", "local", "linear", "performer", "s4d", "longshort", "cosformer"]


def scores(indices: dict[tuple[str, str], dict[str, float]]) -> pd.DataFrame:
    rows = [(*place, name, index) for place, values in indices.items() for name, index in values.items()]
    table = pd.DataFrame(rows, columns=["pattern", "task", "attention", "index"])
    return table.assign(low=math.nan, high=math.nan, seeds=1)


@pytest.mark.parametrize("size", [4, 5, 6])
def test_correlation_of_patterns_is_pearson_with_fisher_interval(size):
    x, y = np.random.default_rng(size).normal(size=(2, size))
    one, other = (dict(zip(NAMES, values, strict=False)) for values in (x, y))
    one |= {"only_here": 3.0, "none": -50.0}
    other |= {"only_there": 9.0, "none": -70.0, "failed": math.nan}
    [row] = pattern_correlation(scores({("NS", "all"): one, ("CS", "all"): other})).to_dict("records")
    expected = stats.pearsonr(x, y)
    interval = expected.confidence_interval()
    numbers = [row["pearson"], row["p_value"], row["low"], row["high"]]
    np.testing.assert_allclose(numbers, [expected.statistic, expected.pvalue, interval.low, interval.high], rtol=1e-9)
    assert (row["a"], row["b"], row["shared"], row["kind"]) == ("NS", "CS", size, "pattern")
    assert row["note"] == ("" if size >= 5 else "inconclusive: only 4 shared attentions")


@pytest.mark.parametrize(
    ("x", "y", "note"),
    [
        ([1.0, 2.0, 4.0], [1.0, 3.0, 4.0], "inconclusive: only 3 shared attentions"),
        ([1.0, 2.0], [1.0, 2.0], "2 shared attentions, at least 3 required"),
        ([], [], "0 shared attentions, at least 3 required"),
        ([0.5] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "undefined: all attentions have the same score"),
    ],
)
def test_few_or_equal_attentions(x, y, note):
    one, other = (dict(zip(NAMES, values, strict=False)) for values in (x, y))
    values = {("NS", "all"): {**one, "x": 1.0}, ("NC", "all"): {**other, "y": 1.0}}
    [row] = pattern_correlation(scores(values)).to_dict("records")
    assert (row["shared"], row["note"]) == (len(x), note)
    assert math.isnan(row["low"])
    assert math.isnan(row["pearson"]) == (len(x) != 3)


def test_tasks_correlate_within_their_pattern():
    ranks = dict(zip(NAMES, map(float, range(6)), strict=False))
    back = {name: 5 - rank for name, rank in ranks.items()}
    values = {("NS", "a"): ranks, ("NS", "b"): back, ("NS", "all"): ranks, ("CC", "a"): ranks, ("CC", "c"): ranks}
    pairs = task_correlation(scores(values))
    assert pairs[["kind", "pattern", "a", "b"]].to_numpy().tolist() == [
        ["task", "NS", "a", "b"],
        ["task", "CC", "a", "c"],
    ]
    assert pairs["pearson"].tolist() == pytest.approx([-1, 1])
    assert pairs["p_value"].tolist() == pytest.approx([0, 0])
    alone = scores({("NS", "all"): {"abc": 1.0}, ("NS", "a"): {"abc": 1.0}})
    assert pattern_correlation(alone).empty
    assert task_correlation(alone).empty


def test_a_pair_of_tasks_has_the_same_name_in_all_results():
    ranks = dict(zip(NAMES, map(float, range(6)), strict=False))
    for tasks in (("lstf", "pcc", "mine"), ("mine", "pcc", "lstf")):
        pairs = task_correlation(scores({("NC", task): ranks for task in tasks}))
        assert pairs[["a", "b"]].to_numpy().tolist() == [["pcc", "lstf"], ["pcc", "mine"], ["lstf", "mine"]]


def test_patterns_correlate_with_long_range_arena():
    """Figure 3a's fifth column, over the attentions that both have (Flash and S4D are not among LRA's)."""
    pairs = benchmark_correlation(index_table(load_results(PAPER_DIR)))
    assert pairs[["kind", "a", "b"]].to_numpy().tolist() == [
        ["benchmark", pattern, "LRA"] for pattern in ("NS", "CS", "NC", "CC")
    ]
    assert pairs["shared"].tolist() == [6, 1, 3, 2]
    by_hand = scores({("NS", "all"): {"vanilla": 57.368, "performer": 57.996, "cosformer": 62.108}})
    assert benchmark_correlation(by_hand)["pearson"].item() == pytest.approx(1.0)


def test_benefit_picks_the_best_efficient_attention():
    values = {"vanilla": 0.4, "flash": 0.9, "abc": 0.5, "local": 0.7, "none": -2.0}
    tables = {("NS", "a"): values, ("NS", "all"): values, ("NS", "b"): {"eager": 0.1, "abc": math.nan}}
    benefit = benefit_of_attention(scores(tables))
    assert benefit["task"].tolist() == ["a", "b"]
    assert benefit.iloc[0].tolist() == ["NS", "a", "local", 0.7, 0.4, -2.0]
    assert (benefit["best"][1], benefit["vanilla"][1]) == ("", 0.1)
    assert benefit.loc[1, ["efficient", "without"]].isna().all()
