"""Generated series that attention can forecast: future values repeat a past day, identified by an announced color.

An episode is a window of its own: a legend, six days of six hours, and five days to forecast. Values are noise, so
neighboring rows and other episodes carry no information. A forecast hour repeats the values of the same hour of one of
the six days, plus the level of that day; the calendar identifies the day by its color. Two channels of the past show
the color of each day in all its rows; the legend gives the level of each day, but not its color.

* ``direct``, the first 6 rows to forecast: the calendar gives hour and color. One lookup in the past (NC) finds the
values; their level must have been added by the encoder (NS), since the one-layer decoder reads the past once.
* ``lookup`` and ``long_lookup``, 12 rows each: the calendar gives the hour only. The color is given by the ``direct``
row of the same hour, 6 to 29 rows before, and not by the past: this needs another lookup among the decoder's own rows
(CS).
"""

from __future__ import annotations

import numpy as np

from tasks.lstf.data import Series

NUM_EPISODES = (4_000, 128, 256)
"""Episodes of training, validation and test."""
DAYS, HOURS, LEGEND_REPEATS = 6, 6, 2
CHANNELS = 7
"""Two color channels, five value channels."""
LEGEND_LENGTH = LEGEND_REPEATS * DAYS
PAST, HORIZON = LEGEND_LENGTH + DAYS * HOURS, 5 * HOURS
LEVELS = {"direct": slice(0, 6), "lookup": slice(6, 18), "long_lookup": slice(18, 30)}
NOISE = 0.1
RADIUS = 3.0
"""Radius of the circles of hours, days and colors, relative to a network's positions."""


def synthetic_series() -> Series:
    """Generate episodes of 48 rows of past and 30 to forecast, deterministically."""
    rng = np.random.default_rng(20230723)
    count = sum(NUM_EPISODES)
    values = rng.normal(size=(count, PAST + HORIZON, CHANNELS))
    values[..., :2] = 0.0
    calendar = np.zeros((count, PAST + HORIZON, 4), dtype=np.float32)
    episode = np.arange(count)[:, None]
    days, hours = np.repeat(np.arange(DAYS), HOURS), np.tile(np.arange(HOURS), DAYS)

    colors = shuffled(DAYS, count, rng)  # per day
    levels = rng.normal(size=(count, DAYS, CHANNELS - 2))
    legend = np.concatenate([shuffled(DAYS, count, rng) for _ in range(LEGEND_REPEATS)], axis=1)
    values[:, :LEGEND_LENGTH, 2:] = levels[episode, legend]
    values[:, LEGEND_LENGTH:PAST, :2] = _angle(colors[:, days], DAYS)
    calendar[:, :LEGEND_LENGTH, 2:] = _angle(legend, DAYS)
    calendar[:, LEGEND_LENGTH:PAST] = np.concatenate([_angle(hours, HOURS), _angle(days, DAYS)], axis=-1)

    asked = np.tile(rng.integers(DAYS, size=(count, HOURS)), 5)
    hour = np.tile(shuffled(HOURS, count, rng), 5)
    calendar[:, PAST:, :2] = _angle(hour, HOURS)
    calendar[:, PAST : PAST + HOURS, 2:] = _angle(colors[episode, asked[:, :HOURS]], DAYS)
    values[:, PAST:, 2:] = values[episode, LEGEND_LENGTH + asked * HOURS + hour, 2:] + levels[episode, asked]
    values[:, PAST:, 2:] += rng.normal(0, NOISE, size=(count, HORIZON, CHANNELS - 2))
    train, validation, test = (episodes * (PAST + HORIZON) for episodes in NUM_EPISODES)
    return Series(
        values=values.reshape(-1, CHANNELS),
        calendar=calendar.reshape(-1, 4),
        split=(train, validation, test),
        steps_per_day=HOURS,
        fingerprint={"generator": "tasks.lstf.synthetic", "rows": count * (PAST + HORIZON), "version": 2},
        episode=PAST + HORIZON,
    )


def shuffled(numbers: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``count`` random permutations of 0 .. ``numbers`` - 1."""
    return rng.permuted(np.tile(np.arange(numbers), (count, 1)), axis=1)


def _angle(number: np.ndarray, around: int) -> np.ndarray:
    """Return the coordinates of step ``number`` of ``around`` on a circle, [..., 2]."""
    turn = 2 * np.pi * number / around
    return RADIUS * np.stack([np.cos(turn), np.sin(turn)], axis=-1)
