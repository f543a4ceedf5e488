"""Generated series that attention forecasts: what comes has been seen once, on a day of a colour that is announced.

An episode is a window of its own: a legend, six days of six hours, and five days to forecast. Values are noise, so
nothing follows from what is near or from other episodes: an hour to forecast repeats the values of the same hour of
one of the six days, plus the level of that day, and the calendar says of which, by its colour. Two channels of the
past show the colour of each day, all its rows; the legend says the level of each day, and not its colour.

* ``direct``, the first 6 rows to forecast: the calendar names hour and colour. One look-up in the past (NC) finds the
  values; their level must have been brought to them before (NS), for the decoder, of one layer, reads the past once.
* ``lookup`` and ``long_lookup``, 12 rows each: the calendar names the hour alone. The ``direct`` row of the same hour
  said
  the colour, 6 to 29 rows before, and nothing in the past knows it: one look-up among the decoder's own rows (CS)
  more.
"""

from __future__ import annotations

import numpy as np

from tasks.lstf.data import Series

EPISODES = (4_000, 128, 256)
"""Of training, validation and test."""
DAYS, HOURS, TOLD = 6, 6, 2
CHANNELS = 7
"""Two of colour, five of values."""
LEGEND = TOLD * DAYS
PAST, HORIZON = LEGEND + DAYS * HOURS, 5 * HOURS
LEVELS = {"direct": slice(0, 6), "lookup": slice(6, 18), "long_lookup": slice(18, 30)}
NOISE = 0.1
RADIUS = 3.0
"""Of the circles of hours, days and colours, in units of a network's positions."""


def synthetic_series() -> Series:
    """Episodes of 48 rows of past and 30 to forecast, one after the other; the same in every run."""
    rng = np.random.default_rng(20230723)
    count = sum(EPISODES)
    values = rng.normal(size=(count, PAST + HORIZON, CHANNELS))
    values[..., :2] = 0.0
    calendar = np.zeros((count, PAST + HORIZON, 4), dtype=np.float32)
    episode = np.arange(count)[:, None]
    days, hours = np.repeat(np.arange(DAYS), HOURS), np.tile(np.arange(HOURS), DAYS)

    colours = shuffled(DAYS, count, rng)  # of each day
    levels = rng.normal(size=(count, DAYS, CHANNELS - 2))
    legend = np.concatenate([shuffled(DAYS, count, rng) for _ in range(TOLD)], axis=1)
    values[:, :LEGEND, 2:] = levels[episode, legend]
    values[:, LEGEND:PAST, :2] = _angle(colours[:, days], DAYS)
    calendar[:, :LEGEND, 2:] = _angle(legend, DAYS)
    calendar[:, LEGEND:PAST] = np.concatenate([_angle(hours, HOURS), _angle(days, DAYS)], axis=-1)

    asked = np.tile(rng.integers(DAYS, size=(count, HOURS)), 5)
    hour = np.tile(shuffled(HOURS, count, rng), 5)
    calendar[:, PAST:, :2] = _angle(hour, HOURS)
    calendar[:, PAST : PAST + HOURS, 2:] = _angle(colours[episode, asked[:, :HOURS]], DAYS)
    values[:, PAST:, 2:] = values[episode, LEGEND + asked * HOURS + hour, 2:] + levels[episode, asked]
    values[:, PAST:, 2:] += rng.normal(0, NOISE, size=(count, HORIZON, CHANNELS - 2))
    train, validation, test = (episodes * (PAST + HORIZON) for episodes in EPISODES)
    return Series(
        values=values.reshape(-1, CHANNELS),
        calendar=calendar.reshape(-1, 4),
        split=(train, validation, test),
        steps_per_day=HOURS,
        fingerprint={"generator": "tasks.lstf.synthetic", "rows": count * (PAST + HORIZON), "version": 2},
        episode=PAST + HORIZON,
    )


def shuffled(numbers: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` random orders of 0 .. ``numbers`` - 1."""
    return rng.permuted(np.tile(np.arange(numbers), (count, 1)), axis=1)


def _angle(number: np.ndarray, around: int) -> np.ndarray:
    """Where ``number`` of ``around`` steps of the circle is, [..., 2]."""
    turn = 2 * np.pi * number / around
    return RADIUS * np.stack([np.cos(turn), np.sin(turn)], axis=-1)
