"""Estimates over seeds, families of verdicts, and the intervals and orders of indices made from them."""

import math

import numpy as np
import pytest
from scipy import stats

from cab.results.guards import comparable
from cab.results.index import Scores, order_table, score
from cab.results.statistics import Estimate, Verdict, difference, holm, judge_pairs, upper_bounds, weighted_sum
from tests.helpers.made_records import index_of, mine, table


def scored(rows: list[dict[str, object]]) -> Scores:
    return score(comparable(table(*rows)), normalization="results")


def test_an_estimate_is_students():
    values = [1.0, 1.3, 0.9, 1.6]
    found = stats.ttest_1samp(values, 0.0)
    estimate = Estimate.of(values)
    np.testing.assert_allclose(estimate.interval(), found.confidence_interval(0.95))
    assert estimate.p_value == pytest.approx(found.pvalue)


def test_a_difference_is_welchs():
    one, other = [1.0, 1.3, 0.9], [2.0, 2.9, 1.1, 2.4]
    found = stats.ttest_ind(one, other, equal_var=False)
    gap = difference(Estimate.of(one), Estimate.of(other))
    assert gap.p_value == pytest.approx(found.pvalue)
    assert gap.degrees == pytest.approx(found.df)


def test_a_single_seed_has_neither_interval_nor_test():
    mixed = weighted_sum([(0.5, Estimate.of([1.0])), (0.5, Estimate.of([2.0, 2.2]))])
    assert (mixed.value, mixed.is_known) == (pytest.approx(1.55), False)
    assert all(map(math.isnan, mixed.interval()))
    assert judge_pairs({"pair": mixed}) == {"pair": Verdict.ONE_SEED}


def test_equal_seeds_have_an_interval_without_width():
    exact = Estimate.of([2.0, 2.0, 2.0])
    assert exact.interval() == (2.0, 2.0)
    assert (exact.p_value, difference(exact, exact).p_value) == (0.0, 1.0)


def test_holm_multiplies_the_smallest_by_their_number():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


@pytest.mark.parametrize(
    ("value", "deviation", "size", "verdict"),
    [
        (5.0, 0.1, 1, Verdict.BETTER),
        (-5.0, 0.1, 1, Verdict.WORSE),
        (0.0, 3.0, 1, Verdict.UNDECIDED),
        (5.0, 1.5, 1, Verdict.BETTER),
        (5.0, 1.5, 5, Verdict.UNDECIDED),  # a larger family is more cautious
    ],
)
def test_a_verdict_on_a_pair_requires_significance(value, deviation, size, verdict):
    family = dict.fromkeys(range(size), Estimate(value, deviation**2, 4))
    assert judge_pairs(family) == dict.fromkeys(family, verdict)


def test_bounds_below_the_limit_are_rejections_of_holm():
    random = np.random.default_rng(1)
    for _ in range(200):
        values = zip(random.normal(-2, 2, 6), random.gamma(1, 1, 6), random.integers(2, 9, 6), strict=True)
        family = {n: Estimate(float(value), float(v), float(df)) for n, (value, v, df) in enumerate(values)}
        p_values = [stats.t.cdf(each.value / math.sqrt(each.variance), each.degrees) for each in family.values()]
        rejected = [p < 0.05 for p in holm(p_values)]
        bounds = upper_bounds(family, 0.0)
        assert [bounds[n] < 0 for n in family] == rejected
        least = [each.interval(0.9)[1] for each in family.values()]
        assert all(bounds[n] >= least[n] - 1e-9 for n in family), "not adjusted"


def test_the_interval_of_an_index_ignores_the_seeds_of_others():
    own = {"abc": [1.0, 1.2, 1.4], "s4d": [3.0, 3.1, 3.2]}
    calm, wild = ({**own, "local": seeds} for seeds in ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]))
    found = [scored(mine(values)).estimates["NC", "all", "abc"] for values in (calm, wild)]
    assert found[0] == found[1]
    deviation = np.std([1.2, 2.0, 3.1], ddof=1)
    reach = stats.t.ppf(0.975, 2) * 0.2 / math.sqrt(3) / deviation
    np.testing.assert_allclose(found[0].interval(), (found[0].value - reach, found[0].value + reach))


def test_variances_add_up_over_cells_and_tasks():
    values = {"abc": [1.0, 1.2, 1.4], "local": [2.0, 2.2, 2.4]}
    cells = mine(values, dataset="etth2") + mine(values, dataset="ettm1")
    scores = [scored(mine(values) + others) for others in ([], cells, mine(values, task="yours"))]
    alone, of_cells, of_tasks = (each.estimates["NC", "all", "abc"].variance for each in scores)
    assert (of_cells, of_tasks) == (pytest.approx(alone / 3), pytest.approx(alone / 2))


def test_one_seed_in_one_cell_leaves_the_index_without_interval():
    rows = mine({"abc": [1.0, 1.1], "local": [2.0, 2.2]}) + mine({"abc": 1.0, "local": [2.0, 2.3]}, dataset="etth2")
    scores = scored(rows).table
    assert math.isnan(index_of(scores, "abc", column="low"))
    assert math.isfinite(index_of(scores, "local", column="low"))
    assert index_of(scores, "abc", column="seeds") == 1


def test_orders_of_indices():
    """A difference has no smallest relevant size."""
    values = {"abc": [1.0, 1.2, 1.1], "local": [1.05, 1.15, 1.25], "s4d": [9.0, 9.2, 9.1], "lara": [2.0]}
    orders = order_table(scored(mine(values)))
    found = {(row.better, row.worse): row.verdict for row in orders.itertuples() if row.task == "all"}
    decided = {("abc", "local"): "undecided", ("abc", "s4d"): "better", ("local", "s4d"): "better"}
    assert found == {pair: decided.get(pair, "one seed") for pair in found}
    assert len(found) == 6
    both = scored(mine(values, pattern="NS") + mine(values))
    assert list(order_table(both)["pattern"].unique()) == list(both.table["pattern"].unique()) == ["NS", "NC"]
