"""The audit of the published tables, and the interval arithmetic that it rests on."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cab.results.audit import Interval, agreement, audit, deviation_of, normalized, range_of

AGREES, ROUNDING, CONTRADICTS, UNKNOWN = "agrees", "explained by rounding", "contradicts", "cannot be recomputed"


def test_every_printed_number_is_compared():
    """Their number in each table, and every contradiction, is in tests/golden."""
    official = audit()
    assert len(official) == 210
    known = official[official["agreement"] != UNKNOWN]
    assert (known["low"] <= known["recomputed"]).all()
    assert (known["recomputed"] <= known["high"]).all()
    assert official.loc[official["agreement"] == UNKNOWN, ["recomputed", "low", "high"]].isna().all().all()


@pytest.mark.parametrize(("text", "low", "high"), [("1.25", 1.245, 1.26), ("-1.25", -1.26, -1.245), ("0", -0.5, 1.0)])
def test_what_a_printed_number_can_have_been(text, low, high):
    assert Interval.printed(text) == pytest.approx((low, high))


def test_agreements():
    wide = Interval(0.9, 1.1)
    assert agreement("1.000", 1.0015, wide, tolerance=0.0016) == AGREES
    assert agreement("1.000", 1.05, wide, tolerance=0.0015) == ROUNDING
    assert agreement("1.105", 1.05, wide, tolerance=0.0015) == CONTRADICTS
    assert agreement("1.100", 1.05, wide, tolerance=0.0015) == ROUNDING


number, width, inside = st.floats(-50, 50), st.floats(0, 2), st.floats(0, 1)


@settings(deadline=None, derandomize=True)
@given(number, width, number, width, st.floats(0.1, 9), width, st.booleans())
def test_normalised_bounds_are_those_of_the_corners(value, dv, mean, dm, std, ds, higher):
    boxes = [Interval(value, value + dv), Interval(mean, mean + dm), Interval(std, std + ds)]
    corners = [(x - m if higher else m - x) / s for x, m, s in itertools.product(*boxes)]
    assert normalized(*boxes, higher_is_better=higher) == pytest.approx((min(corners), max(corners)))


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(number, inside), min_size=2, max_size=9), st.floats(0, 1))
def test_deviations_stay_within_their_bounds(numbers, step):
    intervals = [Interval(value - step / 2, value + step) for value, _ in numbers]
    moved = [box.low + place * (box.high - box.low) for box, (_, place) in zip(intervals, numbers, strict=True)]
    found = deviation_of(intervals)
    assert found.low - 1e-9 <= np.std(moved, ddof=1) <= found.high + 1e-9


def test_range_of_a_function_of_rounded_inputs():
    found = range_of(lambda v: float(v[0] * v[1] - v[2]), np.array([3.0, -2.0, 1.0]), np.array([0.5, 0.1, 0.2]))
    assert found == pytest.approx((-2.1 * 3.5 - 1.2, -1.9 * 2.5 - 0.8))
