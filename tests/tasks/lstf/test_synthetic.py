"""The embedded series: one and the same everywhere, with the seasons, regimes and lags that it claims."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from tasks.lstf.synthetic import synthetic_series
from tasks.lstf.task import LSTF

FIRST_VERSION = [0.7742794, 1.7390308, 2.2663563]  # rows 0, 4,001, 7,999 of channels 0, 3, 6


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return synthetic_series().values


def seasons(rows: int) -> np.ndarray:
    """Level, trend, day, week and eleven days; [rows, 8]."""
    t = np.arange(rows)
    waves = [wave(2 * np.pi * t / period) for period in (24, 168, 264) for wave in (np.sin, np.cos)]
    return np.stack([np.ones(rows), t / rows, *waves], axis=1)


def test_no_seed_changes_it(values: np.ndarray) -> None:
    for seed in (1, 99):
        np.random.seed(seed)
        torch.manual_seed(seed)
        again = synthetic_series()
        assert np.array_equal(again.values, values)
    assert again.split == (5_600, 800, 1_600)
    assert again.values.shape == (8_000, 7)
    assert again.calendar.shape == (8_000, 4)
    # 1 January 2020 is a Wednesday
    np.testing.assert_allclose(again.calendar[25], [1 / 23 - 0.5, 3 / 6 - 0.5, 1 / 30 - 0.5, 1 / 365 - 0.5], atol=1e-6)


def test_another_process_makes_the_same_numbers(values: np.ndarray) -> None:
    code = "import hashlib; from tasks.lstf.synthetic import synthetic_series as s; "
    code += "print(hashlib.sha256(s().values.tobytes()).hexdigest())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == hashlib.sha256(values.tobytes()).hexdigest()


def test_a_change_of_the_numbers_needs_a_new_version(values: np.ndarray) -> None:
    assert synthetic_series().fingerprint == {"generator": "tasks.lstf.synthetic", "rows": 8_000, "version": 1}
    np.testing.assert_allclose(values[[0, 4_001, 7_999], [0, 3, 6]], FIRST_VERSION, atol=1e-6)


def test_the_three_seasons_stand_out_of_the_spectrum(values: np.ndarray) -> None:
    rows = 7_392  # whole periods of 24, 168 and 264
    power = np.abs(np.fft.rfft(values[:rows] - values[:rows].mean(axis=0), axis=0)) ** 2
    for period in (24, 168):
        line = rows // period
        around = np.r_[line - 6 : line - 1, line + 2 : line + 7]
        assert (power[line] > 4 * power[around].mean(axis=0)).all(), period
    line = rows // 264
    around = np.r_[line - 6 : line - 1, line + 2 : line + 7]
    assert (power[line] > 2 * power[around].mean(axis=0)).mean() > 0.5  # fainter, in slower noise


def test_a_hidden_regime_doubles_the_daily_swing_of_all_channels_at_once(values: np.ndarray) -> None:
    t = np.arange(len(values))
    wave = np.exp(-2j * np.pi * t / 24)
    days = len(values) // 24
    swing = 2 * np.abs((values * wave[:, None])[: days * 24].reshape(days, 24, 7).mean(axis=1))
    shared = np.median(swing, axis=1)  # [days]
    strong = shared > 1.2
    assert 0.25 < strong.mean() < 0.75
    assert np.median(shared[strong]) == pytest.approx(1.6, abs=0.1)
    assert np.median(shared[~strong]) == pytest.approx(0.8, abs=0.1)
    together = np.corrcoef(swing.T)
    assert together[~np.eye(7, dtype=bool)].min() > 0.5
    lengths = np.diff(np.flatnonzero(np.diff(strong.astype(int))))
    assert 3 <= np.median(lengths) <= 20  # days to weeks


def test_each_channel_follows_the_first_by_as_many_days_as_its_index(values: np.ndarray) -> None:
    known = seasons(len(values))
    rest = values - known @ np.linalg.lstsq(known, values, rcond=None)[0]
    daily = np.stack([np.convolve(column, np.ones(24) / 24, "valid") for column in rest.T])
    span = daily.shape[1] - 8 * 24
    for index in range(1, 7):
        likeness = [np.corrcoef(daily[0, :span], daily[index, lag : lag + span])[0, 1] for lag in range(0, 8 * 24, 24)]
        assert int(np.argmax(likeness)) == index
        assert likeness[index] > 0.5


def test_the_target_is_the_last_channel_and_a_user_needs_no_files() -> None:
    many, one = LSTF(dataset="synthetic", seq_len=19, pred_len=5, label_len=3), LSTF(dataset="synthetic", features="S")
    for task in (many, one):
        task.setup(None)
    assert torch.equal(one.training_set.values[:, 0], many.training_set.values[:, 6])
