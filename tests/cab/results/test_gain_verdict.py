"""Verdicts on K: one family of tests per cell, and the bound that decides each."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from cab.results.cells import Anchors, CellResults
from cab.results.gain import CellGain, cell_gains, gains_of
from cab.results.statistics import Verdict
from tests.cab.results.suite_records import CELLS, value_record
from tools.validity import simulate_statistics as simulation

CELL = CELLS["probe"]
ANCHORS = Anchors("", {"vanilla": [1.0, 0.999, 1.0], "none": [0.0, 0.001, 0.0]}, {})
SOLVED = [100.0, 99.0, 100.0]


def gains(**values: list[float]) -> dict[str, CellGain]:
    """K of accuracies in percent."""
    return gains_of(CELL, ANCHORS, {name: [one / 100 for one in own] for name, own in values.items()})


FIELD = {f"a{n}": [8.0 * n, 8.0 * n + 0.5, 8.0 * n + 1] for n in range(1, 11)}


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([60.0, 61.0, 62.0], Verdict.WORSE),
        ([97.0, 97.1, 97.2], Verdict.WORSE),
        ([98.1, 98.2, 98.3], Verdict.SOLVED),
        ([60.0, 90.0, 94.0], Verdict.UNDECIDED),
        ([97.0, 100.0, 100.0], Verdict.UNDECIDED),
        ([110.0, 111.0, 112.0], Verdict.BETTER),
        ([103.0, 100.0, 112.0], Verdict.SOLVED),
        (SOLVED, Verdict.SOLVED),
        ([100.0] * 5, Verdict.SOLVED),
        ([*SOLVED, 99.5, 99.0], Verdict.EQUIVALENT),
        ([*SOLVED, 99.5], Verdict.SOLVED),
        ([99.0], Verdict.ONE_SEED),
    ],
)
def test_a_verdict_agrees_with_its_bound(values: list[float], verdict: Verdict) -> None:
    found = gains(mine=values)["mine"]
    assert found.verdict is verdict
    assert (found.bound < 98) == (verdict is Verdict.WORSE)
    assert math.isnan(found.bound) == (verdict is Verdict.ONE_SEED)


def test_the_bound_is_adjusted_over_the_attentions_of_the_cell() -> None:
    values = [80.0, 95.0, 99.0]
    alone, many = (gains(**others)["mine"] for others in ({"mine": values}, {"mine": values, "abc": values}))
    assert alone.interval == many.interval
    assert alone.bound < many.bound


def test_own_results_do_not_change_other_verdicts() -> None:
    def results(names: dict[str, list[float]]) -> CellResults:
        runs = {
            name: {seed: value_record(CELL, name, value / 100, seed) for seed, value in enumerate(own)}
            for name, own in names.items()
        }
        return CellResults(CELL, ANCHORS, runs)

    reference = results(FIELD)
    mine = {"mine": [60.0, 90.0, 94.0], "a1": [50.0, 51.0, 52.0]}
    own = cell_gains(results(mine), reference)
    assert {name: own[name].verdict for name in mine} == {"mine": Verdict.UNDECIDED, "a1": Verdict.WORSE}
    assert own["a1"].bound == cell_gains(results({**FIELD, "a1": mine["a1"]}))["a1"].bound, "without the reference a1"
    assert own["mine"].bound == cell_gains(results({**FIELD, "mine": mine["mine"]}))["mine"].bound
    assert own["vanilla"].verdict is None


def test_tuned_attentions_are_a_family_of_their_own() -> None:
    known = {"abc": [84.0, 86.0, 88.0], "linear": [10.0, 11.0, 12.0]}
    many = {f"abc{number}(tuned)": known["abc"] for number in range(5)}
    before, after = (gains(**values) for values in (known, known | many))
    assert {name: after[name].bound for name in known} == {name: before[name].bound for name in known}
    assert after["abc0(tuned)"].bound > after["abc"].bound


def test_only_verified_code_is_best() -> None:
    found = gains(mine=SOLVED)["mine"]
    assert found.is_best
    assert not dataclasses.replace(found, verified="no").is_best
    assert not gains(mine=[97.0, 97.1, 97.2])["mine"].is_best


def test_a_single_seed_is_not_best() -> None:
    assert not gains(mine=[100.0])["mine"].is_best


@pytest.mark.slow
def test_error_rate_and_power_at_the_sizes_of_the_cells() -> None:
    """The rates of 200 draws per cell; the error has a standard deviation of 1.5 points."""
    random = np.random.default_rng(5)
    rates = {
        name: simulation.cell_rates(truths, seeds=3, draws=200, random=random)
        for name, truths in simulation.reference_truths().items()
    }
    assert max(rate.error for rate in rates.values()) <= 0.05 + 2 * 0.0154
    assert np.mean([rate.error for rate in rates.values()]) <= 0.05
    assert rates["recall CS"].power > 0.8
    assert rates["recall NS"].power > 0.85


@pytest.mark.parametrize(("seeds", "most"), [(3, 0.0), (4, 0.0), (5, 0.45)])
def test_a_learner_that_solves_by_chance_is_not_equivalent(seeds: int, most: float) -> None:
    random = np.random.default_rng(2)
    assert simulation.equivalent_share(0.8, seeds, 100, random) <= most
