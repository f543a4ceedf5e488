"""Generated series that attention can forecast: future values repeat a past day, identified by an announced color.

An episode is a window of its own: a legend with the level of each color, six days of ``hours`` hours, and five days to
forecast. A forecast hour repeats the same hour of one of the six days, plus the level of that day. The calendar gives
the color of the day (``direct``), or it is that of the ``direct`` row of the same hour (``lookup``, ``long_lookup``).
docs/reference/tasks.md explains what each level requires.
"""

from __future__ import annotations

import numpy as np

from tasks.lstf.data import Series

NUM_EPISODES = (4_000, 128, 256)
"""Episodes of training, validation and test."""
DAYS, DAYS_TO_FORECAST, LEGEND_REPEATS = 6, 5, 2
CHANNELS = 7
"""Two color channels, five value channels."""
HOURS = 6
"""Usual number of hours per day."""
LEGEND_LENGTH = LEGEND_REPEATS * DAYS
NOISE = 0.1
RADIUS = 3.0
"""Radius of the circles of hours, days and colors, relative to a network's positions."""


def past_length(hours: int) -> int:
    """Return the number of rows of an episode's past: 48 with 6 hours per day."""
    return LEGEND_LENGTH + DAYS * hours


def horizon(hours: int) -> int:
    """Return the number of rows of an episode to forecast: 30 with 6 hours per day."""
    return DAYS_TO_FORECAST * hours


def levels_of(hours: int) -> dict[str, slice]:
    """Return the rows to forecast that need each kind of lookup."""
    return {
        "direct": slice(0, hours),
        "lookup": slice(hours, 3 * hours),
        "long_lookup": slice(3 * hours, 5 * hours),
    }


def synthetic_series(hours: int) -> Series:
    """Generate episodes with ``hours`` hours per day, deterministically."""
    past, length = past_length(hours), past_length(hours) + horizon(hours)
    rng = np.random.default_rng(20230723)
    count = sum(NUM_EPISODES)
    values = rng.normal(size=(count, length, CHANNELS))
    values[..., :2] = 0.0
    calendar = np.zeros((count, length, 4), dtype=np.float32)
    episode = np.arange(count)[:, None]
    days, hour_of_row = np.repeat(np.arange(DAYS), hours), np.tile(np.arange(hours), DAYS)

    colors = shuffled(DAYS, count, rng)  # per day
    levels = rng.normal(size=(count, DAYS, CHANNELS - 2))
    legend = np.concatenate([shuffled(DAYS, count, rng) for _ in range(LEGEND_REPEATS)], axis=1)
    values[:, :LEGEND_LENGTH, 2:] = levels[episode, legend]
    values[:, LEGEND_LENGTH:past, :2] = _angle(colors[:, days], DAYS)
    calendar[:, :LEGEND_LENGTH, 2:] = _angle(legend, DAYS)
    calendar[:, LEGEND_LENGTH:past] = np.concatenate([_angle(hour_of_row, hours), _angle(days, DAYS)], axis=-1)

    asked = np.tile(rng.integers(DAYS, size=(count, hours)), 5)
    hour = np.tile(shuffled(hours, count, rng), 5)
    calendar[:, past:, :2] = _angle(hour, hours)
    calendar[:, past : past + hours, 2:] = _angle(colors[episode, asked[:, :hours]], DAYS)
    values[:, past:, 2:] = values[episode, LEGEND_LENGTH + asked * hours + hour, 2:] + levels[episode, asked]
    values[:, past:, 2:] += rng.normal(0, NOISE, size=(count, horizon(hours), CHANNELS - 2))
    train, validation, test = (episodes * length for episodes in NUM_EPISODES)
    return Series(
        values=values.reshape(-1, CHANNELS),
        calendar=calendar.reshape(-1, 4),
        split=(train, validation, test),
        steps_per_day=hours,
        fingerprint={"generator": "tasks.lstf.synthetic", "rows": count * length, "version": 2},
        episode=length,
    )


def shuffled(numbers: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``count`` random permutations of 0 .. ``numbers`` - 1."""
    return rng.permuted(np.tile(np.arange(numbers), (count, 1)), axis=1)


def _angle(number: np.ndarray, around: int) -> np.ndarray:
    """Return the coordinates of step ``number`` of ``around`` on a circle, [..., 2]."""
    turn = 2 * np.pi * number / around
    return RADIUS * np.stack([np.cos(turn), np.sin(turn)], axis=-1)
