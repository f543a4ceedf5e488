"""The generated episodes: one and the same everywhere, and what follows from where in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.lstf.synthetic import LEGEND_LENGTH, NOISE, horizon, levels_of, past_length, synthetic_series
from tasks.lstf.task import LSTF

VALUES = slice(2, None)  # channels; the first two show colors


HOURS = 6
PAST, HORIZON = past_length(HOURS), horizon(HOURS)


def made(hours: int) -> tuple[np.ndarray, np.ndarray]:
    """Values [episodes, rows, channels] and calendar."""
    series = synthetic_series(hours)
    assert series.episode == past_length(hours) + horizon(hours)
    return series.values.reshape(-1, series.episode, 7), series.calendar.reshape(-1, series.episode, 4)


def nearest(angles: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Number of the row of ``among`` that each row of ``angles`` is."""
    distances = np.linalg.norm(angles[:, None] - among[None], axis=-1)
    assert distances.min(axis=1).max() < 1e-5
    return distances.argmin(axis=1)


@pytest.mark.parametrize("hours", [6, 12])
def test_two_look_ups_find_every_value(hours: int) -> None:
    """By hand: color to day, day to level, hour and day to value; what is left is noise."""
    past_rows, left = past_length(hours), []
    for values, calendar in zip(*(split[:50] for split in made(hours)), strict=True):
        past, future = calendar[:past_rows], calendar[past_rows:]
        colors = values[LEGEND_LENGTH:past_rows:hours, :2]  # of each day
        levels = {
            nearest(past[row : row + 1, 2:], past[LEGEND_LENGTH::hours, 2:])[0]: values[row]
            for row in range(LEGEND_LENGTH)
        }
        hour = nearest(future[:, :2], past[LEGEND_LENGTH : LEGEND_LENGTH + hours, :2])
        first = levels_of(hours)["direct"]
        told = dict(zip(hour[first], nearest(future[first, 2:], colors), strict=True))
        days = np.array([told[h] for h in hour])
        level = np.stack([levels[day] for day in days])
        expected = values[LEGEND_LENGTH + days * hours + hour] + level
        left.append((values[past_rows:] - expected)[:, VALUES])
        assert not future[first.stop :, 2:].any()  # said once
    assert np.std(left) == pytest.approx(NOISE, rel=0.05)


def test_a_window_is_an_episode() -> None:
    task = LSTF(dataset="synthetic", seq_len=PAST, label_len=6, pred_len=HORIZON)
    task.check()
    task.setup(None)
    assert [*map(len, task.splits.values())] == [4_000, 128, 256]
    for split in task.splits.values():
        first = split[0]
        assert not first["past_time"][:LEGEND_LENGTH, :2].any()  # the legend names no hours
        assert first["past_time"][LEGEND_LENGTH:, :2].norm(dim=1).min() > 2.9
    assert torch.equal(task.splits["test"][0]["past"], task.splits["test"].values[:PAST])
    names = [metric.name for metric in task.metrics]
    assert names == ["mse", "mae", "mse_direct", "mse_lookup", "mse_long_lookup"]
