"""The families of comparisons, and the results that are compared with references."""

from __future__ import annotations

import dataclasses

import pytest

from cab.scoring.statistics import Verdict
from cab.suite.cells import Anchors
from cab.suite.comparison import (
    against_all,
    against_nearest,
    against_softmax,
    repetition,
    seeds_to_decide,
)
from cab.suite.gain import CellGain, gains_of
from tests.cab.suite.suite_records import CELLS

CELL = CELLS["probe"]
ANCHORS = Anchors("", {"vanilla": [1.0, 0.999, 1.0], "none": [0.0, 0.001, 0.0]}, {})


def gains(**values: list[float]) -> dict[str, CellGain]:
    """K of accuracies in percent."""
    return gains_of(CELL, ANCHORS, {name: [one / 100 for one in own] for name, own in values.items()})


FIELD = {f"a{n}": [8.0 * n, 8.0 * n + 0.5, 8.0 * n + 1] for n in range(1, 11)}


def test_own_results_do_not_change_other_verdicts() -> None:
    known, own = gains(**FIELD), gains(mine=[60.0, 90.0, 94.0], other=[50, 51, 52])
    reference, verdicts = against_softmax(known, {name: own[name] for name in ("mine", "other")})
    assert reference == against_softmax(known, {})[0]
    assert verdicts == {"mine": Verdict.UNDECIDED, "other": Verdict.WORSE}
    assert "vanilla" not in reference


def test_tuned_attentions_are_compared_with_tuned_ones_and_anchors() -> None:
    """Uncorrected, p = 0.005: with five more in the family, the verdict on abc would be undecided."""
    known = {"abc": [84.0, 86.0, 88.0], "linear": [10.0, 11.0, 12.0]}
    many = {f"abc{number}(tuned)": known["abc"] for number in range(5)}
    before, after = (against_softmax(gains(**values), {})[0] for values in (known, known | many))
    assert before["abc"] is Verdict.WORSE
    assert {name: after[name] for name in known} == before
    assert set(against_all("abc", gains(**known, **many))) == {"linear", "vanilla", "none"}
    assert set(against_all("abc0(tuned)", gains(**known, **many))) == {*many, "vanilla", "none"} - {"abc0(tuned)"}


def test_the_nearest_have_several_seeds() -> None:
    known = gains(**FIELD, single=[41.0], mine=[41.0, 41.5, 42.0])
    verdicts = against_nearest("mine", known)
    assert set(verdicts) == {"a3", "a4", "a5", "a6", "a7"}
    assert verdicts["a4"] is Verdict.BETTER
    assert verdicts["a7"] is Verdict.WORSE


def test_seeds_that_would_decide() -> None:
    """95 ± 2.6 with three seeds against 100: four seeds if it is the only test, eight in a family of 30."""
    known = gains(mine=[92.0, 97.0, 96.0], noisy=[50.0, 99.0, 85.0])
    assert [seeds_to_decide(known["mine"], known["vanilla"], family) for family in (1, 30)] == [4, 8]
    assert seeds_to_decide(known["noisy"], known["mine"], 30) is None, "more than 20"
    equal = gains(mine=[97.0, 100.0, 103.0])
    assert seeds_to_decide(equal["mine"], equal["vanilla"], 30) == 9, "equivalent"


@pytest.mark.parametrize(
    ("own", "verdict"),
    [([33.5], "as expected"), ([36.0], "higher than expected"), ([30.0, 30.5], "lower than expected")],
)
def test_results_that_are_trained_again(own: list[float], verdict: str) -> None:
    found = gains(new=own, old=[33.0, 33.3, 33.6])
    assert repetition(found["new"], found["old"]).endswith(f", reference 0.333 ± 0.003: {verdict}")
    single = dataclasses.replace(found["old"], points=(33.3,), values=(0.333,))
    alone = verdict if verdict == "as expected" else "not comparable (a single reference seed)"
    assert repetition(found["new"], single).endswith(f", reference 0.333: {alone}")


def test_the_prediction_interval_narrows_with_more_new_seeds() -> None:
    """33 ± 3 in three reference seeds predicts one new seed within 14.9 points, and a mean of two within 11.8."""
    found = gains(one=[45.1], two=[45.0, 45.2], old=[30.0, 33.0, 36.0])
    verdicts = [repetition(found[name], found["old"]).partition(": ")[2] for name in ("one", "two")]
    assert verdicts == ["as expected", "higher than expected"]
