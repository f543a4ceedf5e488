"""The simulated error rates and power of verdicts, with few draws."""

from __future__ import annotations

import numpy as np

from tools.validity import simulate_statistics as simulation

KNOWN = [simulation.Truth(mean, deviation) for mean, deviation in ((5, 1), (30, 3), (60, 6), (90, 3), (99.5, 0.1))]


def test_the_interval_covers_the_truth() -> None:
    random = np.random.default_rng(3)
    for situation in simulation.SITUATIONS:
        assert 0.89 < simulation.coverage(situation, 150, random) <= 0.99, situation.label


def test_verdicts_keep_their_error_rate_and_gain_power_with_seeds() -> None:
    few, many = (
        simulation.cell_rates(KNOWN * 2, seeds=seeds, draws=40, random=np.random.default_rng(3)) for seeds in (3, 5)
    )
    assert max(few.error, many.error) <= 0.15, "of 40 families"
    assert few.power < many.power
    assert many.power > 0.8
