"""Seeds: standard errors, confidence intervals, and orders that are resolved or not."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cab.scoring import compare, order_table, score, score_table
from cab.scoring.intervals import Spread
from tests.cab.scoring.made_results import index_of, result, table


def runs(values: dict[str, list[float]], **changes: object) -> list[dict[str, object]]:
    return [result(v, name, seed=seed, **changes) for name, seeds in values.items() for seed, v in enumerate(seeds)]


def test_index_is_that_of_the_means_over_seeds() -> None:
    values = {"abc": [1.0, 1.1, 1.3], "local": [2.0, 2.2], "s4d": [4.0, 3.0, 5.0, 4.4]}
    scores = score_table(table(*runs(values)))
    means = [float(np.mean(seeds)) for seeds in values.values()]
    expected = (np.mean(means) - np.array(means)) / np.std(means, ddof=1)
    np.testing.assert_allclose([index_of(scores, name) for name in values], expected)
    assert [index_of(scores, name, column="seeds") for name in values] == [3, 2, 4]


def test_standard_error_pools_the_attentions_of_a_cell() -> None:
    values = {"abc": [1.0, 1.2, 1.4], "local": [2.0, 2.3, 1.7]}
    made = score(table(*runs(values)))
    deviation = np.std([1.2, 2.0], ddof=1)
    pooled = math.sqrt((0.2**2 + 0.2**2 + 0.3**2 + 0.3**2) / 4)  # residuals over degrees of freedom
    assert index_of(made.table, "abc", column="standard_error") == pytest.approx(pooled / deviation / math.sqrt(3))
    own = 0.3  # local scatters more than the pool, and gets its own deviation
    assert index_of(made.table, "local", column="standard_error") == pytest.approx(own / deviation / math.sqrt(3))


def test_standard_errors_add_up_over_cells_and_tasks() -> None:
    values = {"abc": [1.0, 1.2, 1.4], "local": [2.0, 2.2, 2.4]}
    one = score(table(*runs(values)))
    alone = index_of(one.table, "abc", column="standard_error")
    cells = score(table(*runs(values), *runs(values, dataset="etth2"), *runs(values, dataset="ettm1")))
    assert index_of(cells.table, "abc", column="standard_error") == pytest.approx(alone / math.sqrt(3))
    tasks = score(table(*runs(values), *runs(values, task="pcc")))
    assert index_of(tasks.table, "abc", column="standard_error") == pytest.approx(alone / math.sqrt(2))


def test_one_seed_has_no_interval_and_several_have_one() -> None:
    scores = score_table(table(*runs({"abc": [1.0], "local": [2.0, 2.2], "s4d": [3.0, 3.5]})))
    assert math.isnan(index_of(scores, "abc", column="low"))
    for name in ("local", "s4d"):
        low, ci, high = (index_of(scores, name, column=column) for column in ("low", "index", "high"))
        assert low < ci < high


def test_one_seed_in_one_cell_leaves_the_index_without_interval() -> None:
    several = {"abc": [1.0, 1.1], "local": [2.0, 2.2]}
    single = {"abc": [1.0], "local": [2.0, 2.3]}
    scores = score_table(table(*runs(several), *runs(single, dataset="etth2")))
    assert math.isnan(index_of(scores, "abc", column="low"))
    assert math.isfinite(index_of(scores, "local", column="low"))
    assert index_of(scores, "abc", column="seeds") == 1


def test_seeds_that_do_not_scatter_give_an_interval_of_no_width() -> None:
    scores = score_table(table(*runs({"abc": [1.0, 1.0], "local": [2.0, 2.0]})))
    assert index_of(scores, "abc", column="low") == index_of(scores, "abc") == index_of(scores, "abc", column="high")


def test_the_same_results_give_the_same_interval_whoever_else_is_there() -> None:
    values = {"abc": [1.0, 1.2, 1.4], "local": [2.0, 2.2, 2.4]}
    first = score_table(table(*runs(values)), normalization="results")
    again = score_table(table(*reversed(runs(values))), normalization="results")
    pd.testing.assert_frame_equal(first, again)


def test_intervals_cover_the_truth_at_the_nominal_rate() -> None:
    """Three seeds, four attentions, two cells: 95% intervals from normal residuals, 300 times."""
    random = np.random.default_rng(5)
    inside = []
    for _ in range(300):
        shares = random.normal(size=(4, 2, 3)) * np.array([1.0, 3.0])[:, None]
        rows = [
            ("NS", "t", f"c{cell}", f"a{who}", shares[who, cell, seed])
            for who in range(4)
            for cell in range(2)
            for seed in range(3)
        ]
        spread = Spread(pd.DataFrame(rows, columns=["pattern", "task", "place", "attention", "share"]))
        error = spread.error("NS", "t", "a1")
        assert error is not None
        low, high = error.interval(float(shares[1].mean(axis=1).sum()))
        inside.append(low <= 0 <= high)
    assert 0.93 <= np.mean(inside) <= 0.995


def test_an_interval_is_that_of_student_where_residuals_are_many_and_normal() -> None:
    residuals = stats.norm.ppf((np.arange(200) + 0.5) / 200)
    rows = [("NS", "t", "c", "abc", value) for value in residuals]
    spread = Spread(pd.DataFrame(rows, columns=["pattern", "task", "place", "attention", "share"]))
    error = spread.error("NS", "t", "abc")
    assert error is not None
    reach = stats.t.ppf(0.975, 199) * np.std(residuals, ddof=1) / math.sqrt(200)
    np.testing.assert_allclose(error.interval(7.0), (7 - reach, 7 + reach), atol=0.1 * reach)


def test_orders_are_resolved_or_not() -> None:
    values = {"abc": [1.0, 1.2, 1.1], "local": [1.05, 1.15, 1.25], "s4d": [3.0, 3.2, 3.1], "lara": [2.0]}
    made = score(table(*runs(values)))
    orders = order_table(made)
    found = {(row.better, row.worse): row.resolved for row in orders.itertuples() if row.task == "all"}
    assert found == {
        ("abc", "local"): "no",
        ("abc", "lara"): "unknown",
        ("abc", "s4d"): "yes",
        ("local", "lara"): "unknown",
        ("local", "s4d"): "yes",
        ("lara", "s4d"): "unknown",
    }
    both = compare(made, "NC", "all", "abc", "s4d")
    row = orders[(orders["better"] == "abc") & (orders["worse"] == "s4d") & (orders["task"] == "all")].iloc[0]
    assert tuple(row[["difference", "low", "high", "resolved"]]) == both
    assert both.low < both.difference < both.high


def test_the_interval_of_a_difference_is_wider_than_either() -> None:
    made = score(table(*runs({"abc": [1.0, 1.2, 1.4], "local": [2.0, 2.2, 2.4]})))
    both = compare(made, "NC", "all", "abc", "local")
    widths = [
        index_of(made.table, name, column="high") - index_of(made.table, name, column="low")
        for name in ("abc", "local")
    ]
    assert max(widths) < both.high - both.low < sum(widths)


def test_attentions_without_an_index_have_no_order() -> None:
    rows = [*runs({"abc": [1.0, 1.1], "local": [2.0, 2.1]}), result(math.nan, "s4d")]
    assert set(order_table(score(table(*rows)))["worse"]) == {"local"}
