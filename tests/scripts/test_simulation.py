"""The simulated error rates and power of the families of verdicts, with few draws."""

from __future__ import annotations

import numpy as np

from scripts import simulate_statistics as simulation

KNOWN = [simulation.Truth(mean, deviation) for mean, deviation in ((5, 1), (30, 3), (60, 6), (90, 3), (99.5, 0.1))]


def test_the_interval_covers_the_truth() -> None:
    random = np.random.default_rng(3)
    for situation in simulation.SITUATIONS:
        assert 0.89 < simulation.coverage(situation, 150, random) <= 0.99, situation.label


def test_families_keep_their_error_rates_and_gain_power_with_seeds() -> None:
    few, many = (
        simulation.family_rates(KNOWN, size=10, seeds=seeds, draws=20, random=np.random.default_rng(3))
        for seeds in (3, 5)
    )
    for rates in (few, many):
        assert rates["vanilla"].error <= 0.15, "of 20 families"
        assert rates["nearest"].error <= 0.05
        assert rates["all"].error <= 0.05
    for family, rate in many.items():
        assert few[family].power < rate.power
    assert many["vanilla"].power > 0.8
