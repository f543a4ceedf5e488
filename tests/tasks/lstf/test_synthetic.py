"""The generated episodes: one and the same everywhere, and what follows from where in them."""

from __future__ import annotations

import torch

from tasks.lstf.synthetic import LEGEND_LENGTH, horizon, past_length
from tasks.lstf.task import LSTF

HOURS = 6
PAST, HORIZON = past_length(HOURS), horizon(HOURS)


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
