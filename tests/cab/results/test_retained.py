"""K of a cell: its verdicts, one family of tests per cell, and its marks.

test_suite_board_columns.py recomputes it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cab.results.load import load_results
from cab.results.retained import GAINS, MIN_SEEDS, Judged, gains_of, gains_table, judged, suite_runs
from cab.results.statistics import Verdict
from tests.cab.results.conftest import frame_of
from tests.helpers.suite_records import made_suite as made_suite, seeds, suite_record
from tools.validity import simulate_statistics as simulation

ANCHORS = {"vanilla": [100.0, 99.9, 100.1], "none": [0.0, 0.1, -0.1]}
SOLVED = [100.0, 99.0, 100.0]


def verdicts(**points: list[float]) -> dict[str, Judged]:
    return judged({**ANCHORS, **points})


def test_anchors_have_their_k_by_definition() -> None:
    found = verdicts(abc=SOLVED)
    assert [(found[name].total.value, found[name].total.variance) for name in ANCHORS] == [(100.0, 0.0), (0.0, 0.0)]


@pytest.mark.parametrize(
    ("points", "verdict"),
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
def test_a_verdict_agrees_with_its_bound(points: list[float], verdict: Verdict) -> None:
    found = verdicts(mine=points)["mine"]
    assert found.verdict is verdict
    assert (found.bound < 98) == (verdict is Verdict.WORSE)
    assert math.isnan(found.bound) == (verdict is Verdict.ONE_SEED)


def test_the_bound_is_adjusted_over_the_attentions_of_the_cell() -> None:
    points = [80.0, 95.0, 99.0]
    alone, many = (verdicts(**others)["mine"] for others in ({"mine": points}, {"mine": points, "abc": points}))
    assert alone.interval == many.interval
    assert alone.bound < many.bound


def test_an_anchor_has_neither_interval_nor_verdict() -> None:
    found = verdicts(mine=SOLVED)["vanilla"]
    assert (found.total.value, found.verdict) == (100, None)
    assert all(map(math.isnan, (*found.interval, found.bound)))


def test_tuned_attentions_are_a_family_of_their_own() -> None:
    known = {"abc": [84.0, 86.0, 88.0], "linear": [10.0, 11.0, 12.0]}
    many = {f"abc{number}(tuned)": known["abc"] for number in range(5)}
    before, after = (verdicts(**points) for points in (known, known | many))
    assert {name: after[name] for name in known} == {name: before[name] for name in known}
    assert after["abc0(tuned)"].bound > after["abc"].bound


def test_own_results_do_not_change_other_verdicts() -> None:
    """Each own attention joins the family of the reference alone, instead of a reference of its name."""

    def rows(source: str, points: dict[str, list[float]]) -> list[dict[str, Any]]:
        about = {"task": "probe", "backbone": "mixer", "pattern": "CS", "source": source, "reason": "", "program": ""}
        about |= {"value": 0.5, "steps": math.nan, "unfinished": False, "diverged": False, "slots": ""}
        return [
            {**about, "status": "", "verified": "yes", "attention": name, "label": name, "seed": seed, "K": k}
            for name, own in points.items()
            for seed, k in enumerate(own)
        ]

    known = {f"a{n}": [8.0 * n, 8.0 * n + 0.5, 8.0 * n + 1] for n in range(1, 11)}
    mine = {"mine": [60.0, 90.0, 94.0], "a1": [50.0, 51.0, 52.0]}
    found = gains_of(pd.DataFrame(rows("reference", ANCHORS | known) + rows("own", mine)))
    found = found.set_index(["source", "attention"])
    own, alone = found.loc["own"], verdicts(**known)
    assert own["verdict"].to_dict() == {"mine": Verdict.UNDECIDED, "a1": Verdict.WORSE}
    assert own.loc["a1", "bound"] == verdicts(**known | {"a1": mine["a1"]})["a1"].bound
    assert own.loc["mine", "bound"] == verdicts(**known, mine=mine["mine"])["mine"].bound
    assert {name: found.loc[("reference", name), "bound"] for name in known} == {n: alone[n].bound for n in known}


def test_columns(made_suite: Path) -> None:
    """A seed reaches 90; K may be negative; a result without K has the reason."""
    mixed = [suite_record("lstf", "mixed", k, seed) for seed, k in ((1, 100), (2, 99), (3, 30))]
    other = suite_record("lstf", "other", 80, data={"rows": 3})
    frame = pd.concat([frame_of(mixed + seeds("lstf", "worse", -15), made_suite), frame_of([other])])
    table = gains_table(frame)
    assert list(table.columns) == GAINS
    found = table.set_index("attention")
    names = ["seeds", "reached_90", "source", "ability"]
    assert found.loc["mixed", names].tolist() == [3, 2, "reference", "periodic copy"]
    assert found.loc["worse", "K"] == pytest.approx(-15)
    assert found.loc["other", ["seeds", "source", "verdict"]].tolist() == [0, "own", ""]
    assert found.loc["other", "note"].startswith("seed 1 has data")


def test_the_steps_are_those_of_every_seed(made_suite: Path) -> None:
    found = gains_table(load_results(made_suite)).query("task == 'lstf'").set_index("attention")
    assert found.loc["vanilla", "steps"] == 120
    assert math.isnan(found.loc["none", "steps"]), "one of five seeds"


@pytest.mark.usefixtures("made_suite")
@pytest.mark.parametrize(
    ("k", "changes", "note"),
    [
        (90, {"unfinished": True}, "unfinished"),
        (90, {"unfinished": True, "diverged": True}, "diverged"),
        (99, {"unfinished": True}, ""),
        (90, {"slots": "4 slots for 64 facts"}, "few slots"),
    ],
)
def test_a_lower_bound_is_below_the_ceiling_and_did_not_diverge(k: float, changes: dict[str, Any], note: str) -> None:
    runs = suite_runs(frame_of(seeds("lstf", "abc", k)))
    [found] = gains_of(runs.assign(**changes)).query("attention == 'abc'")["note"]
    assert found == note


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
    assert rates["recall CS"].power > 0.7
    assert rates["recall NS"].power > 0.85


@pytest.mark.parametrize(("seeds", "most"), [(3, 0.0), (MIN_SEEDS - 1, 0.0), (14, 0.07)])
def test_a_learner_that_solves_by_chance_is_not_equivalent(seeds: int, most: float) -> None:
    """If all of 14 seeds solve a cell, the one-sided 95% bound of the chance to solve it is above 0.8."""
    random = np.random.default_rng(2)
    assert simulation.equivalent_share(0.8, seeds, 200, random) <= most
