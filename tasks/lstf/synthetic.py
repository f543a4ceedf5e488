"""The embedded series: what makes forecasting long, with nothing to download."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tasks.lstf.data import Series, calendar_features

ROWS = 8_000
CHANNELS = 7
STEPS_PER_DAY = 24


def synthetic_series() -> Series:
    """An hourly series of 7 channels, the same in every run whatever its seed.

    Each channel mixes a daily, a weekly and an eleven-day season with its own phases and a slow trend; a
    hidden regime lasting days to weeks changes amplitudes and level; and every channel but the first follows
    channel 0 with a lag of one to six days, so that looking far back and across channels pays. The last
    channel is the target. Rows are split 70 / 10 / 20 percent.
    """
    rng = np.random.default_rng(20230723)
    t = np.arange(ROWS)
    regime = _regime(rng)
    amplitude = np.where(regime, 1.6, 0.8)
    driver = 0.7 * _autoregression(rng, 0.98)
    channels = []
    for index in range(CHANNELS):
        phase = rng.uniform(0, 2 * np.pi, size=3)
        season = (
            amplitude * np.sin(2 * np.pi * t / 24 + phase[0])
            + 0.6 * np.sin(2 * np.pi * t / 168 + phase[1])
            + 0.4 * np.sin(2 * np.pi * t / 264 + phase[2])
        )
        lag = 24 * index
        follows = np.concatenate([np.zeros(lag), driver[: ROWS - lag]])
        trend = rng.normal(0, 0.3) * t / ROWS
        level = rng.normal(0, 0.5) * regime
        channels.append(season + follows + trend + level + rng.normal(0, 0.25, ROWS))
    train, test = int(ROWS * 0.7), int(ROWS * 0.2)
    return Series(
        values=np.stack(channels, axis=1),
        calendar=calendar_features(pd.date_range("2020-01-01", periods=ROWS, freq="h")),
        split=(train, ROWS - train - test, test),
        steps_per_day=STEPS_PER_DAY,
        fingerprint={"generator": "tasks.lstf.synthetic", "rows": ROWS, "version": 1},
    )


def _regime(rng: np.random.Generator) -> np.ndarray:
    lengths = rng.integers(72, 480, size=ROWS // 72)
    return np.repeat(np.arange(len(lengths)) % 2, lengths)[:ROWS].astype(bool)


def _autoregression(rng: np.random.Generator, memory: float) -> np.ndarray:
    noise = rng.normal(0, np.sqrt(1 - memory**2), ROWS)
    series = np.empty(ROWS)
    value = 0.0
    for i in range(ROWS):
        value = memory * value + noise[i]
        series[i] = value
    return series
