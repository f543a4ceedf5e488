"""The LSTF scores against direct numpy over all windows, at sizes that divide nothing."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from cab.backbone import Backbone
from tasks.lstf.data import Series, calendar_features
from tasks.lstf.task import LSTF, RidgeForecast
from tests.helpers.in_order import in_order

PAST, KNOWN, AHEAD = 41, 9, 31  # more than a day ahead: the last day is repeated in split


class Linear(Backbone):
    """Reads everything a batch has: a forecast that any misplaced row would change."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.linspace(-0.4, 0.7, steps))

    def forward(self, past: Tensor, past_time: Tensor, known: Tensor, decoder_time: Tensor) -> Tensor:
        horizon = decoder_time.shape[1] - known.shape[1]
        level = torch.einsum("bnc,n->bc", past, self.weights[: past.shape[1]]) / past.shape[1]
        clock = past_time[:, :1, :1] + decoder_time[:, -horizon:, 1:2]
        return level[:, None] + known[:, :1] + 0.3 * clock


def linear_by_hand(task: LSTF, start: int) -> np.ndarray:
    """The same forecast, of the window that starts in row ``start`` of the series; [AHEAD, C]."""
    values, calendar = standardized(task), task.series.calendar
    now = start + PAST
    weights = np.linspace(-0.4, 0.7, PAST)
    clock = calendar[start, 0] + calendar[now : now + AHEAD, 1:2]
    return weights @ values[start:now] / PAST + values[now - KNOWN] + 0.3 * clock


@functools.cache
def standardized(task: LSTF) -> np.ndarray:
    values, train = task.series.values, task.series.split[0]
    values = (values - values[:train].mean(axis=0)) / values[:train].std(axis=0)
    return values[:, -1:] if task.features == "S" else values


@pytest.fixture(autouse=True)
def plain_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the generated episodes a series that goes on, so that windows start at every row."""

    def series(hours: int) -> Series:  # noqa: ARG001
        rows = np.arange(8_000)
        noise = np.random.default_rng(3).normal(size=(8_000, 7))
        values = np.sin(2 * np.pi * rows[:, None] / 24 + np.arange(7)) + 0.2 * noise + (rows[:, None] / 3_000) ** 3
        calendar = calendar_features(pd.date_range("2020-01-01", periods=8_000, freq="h"))
        return Series(values, calendar, (5_600, 800, 1_600), 24, {"rows": 8_000})

    monkeypatch.setattr("tasks.lstf.task.synthetic_series", series)


def ready(dataset: str = "synthetic", root: Path | None = None, **options: Any) -> LSTF:
    task = LSTF(dataset=dataset, **{"seq_len": PAST, "label_len": KNOWN, "pred_len": AHEAD, **options})
    task.check()
    task.setup(root)
    return task


def errors(task: LSTF, split: int, forecasts: Any, windows: int | None = None) -> dict[str, float]:
    """MSE and MAE over the windows whose forecasts lie wholly in split 1 (validation) or 2 (test)."""
    values = standardized(task)
    first = sum(task.series.split[:split]) - PAST
    count = task.series.split[split] - AHEAD + 1 if windows is None else windows
    wrong = np.stack([forecasts(task, i) - values[i + PAST : i + PAST + AHEAD] for i in range(first, first + count)])
    return {"mse": float((wrong**2).mean()), "mae": float(np.abs(wrong).mean())}


@torch.no_grad()
@pytest.mark.parametrize("features", ["M", "S"])
def test_scores_are_the_mean_over_all_windows_steps_and_channels(features: str) -> None:
    expected = None
    for batch_size in (32, 5_000):
        task = ready(features=features, evaluation_batch_size=batch_size)
        expected = expected or errors(task, 2, linear_by_hand)
        assert task.evaluate(Linear(PAST), in_order) == pytest.approx(expected, rel=1e-5)
    channels = {"M": 7, "S": 1}[features]
    assert task.backbone_options("informer") == {"channels": channels, "season": 24}
    assert (task.config_variant, task.splits["train"][3]["past"].shape) == (features, (PAST, channels))
    assert task.validate(Linear(PAST), in_order) == pytest.approx(errors(task, 1, linear_by_hand)["mse"], rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("batch_size", [32, 37, 10_000])
def test_the_published_protocol_leaves_out_what_does_not_fill_a_batch_of_32(batch_size: int) -> None:
    task = ready(test_windows="whole_batches", evaluation_batch_size=batch_size)
    count = 1_600 - AHEAD + 1
    whole = count - count % 32
    assert whole < count
    published = errors(task, 2, linear_by_hand, whole)
    sound = errors(task, 2, linear_by_hand)
    assert abs(published["mse"] / sound["mse"] - 1) > 1e-4  # the test can tell them apart
    scores = task.evaluate(Linear(PAST), in_order)
    assert scores == pytest.approx(
        {**published, "mse_all_windows": sound["mse"], "mae_all_windows": sound["mae"]}, rel=1e-5
    )
    assert list(scores) == [metric.name for metric in task.metrics]
    assert not any(metric.higher_is_better for metric in task.metrics)


@torch.no_grad()
def test_with_fewer_windows_than_a_batch_all_are_scored(official_layout: Path) -> None:
    task = ready("etth1", official_layout, features="S", test_windows="whole_batches", pred_len=2_870)
    assert len(task.splits["test"]) == 11
    scores = task.evaluate(Linear(PAST), in_order)
    assert scores["mse"] == scores["mse_all_windows"] > 0


def last_value(task: LSTF, start: int) -> np.ndarray:
    return standardized(task)[start + PAST - 1]


def last_day(task: LSTF, start: int) -> np.ndarray:
    now = start + PAST
    return np.stack([standardized(task)[now - 24 + step % 24] for step in range(AHEAD)])


@pytest.mark.parametrize("test_windows", ["all", "whole_batches"])
def test_naive_forecasts_by_hand(test_windows: str) -> None:
    task = ready(test_windows=test_windows)
    scored = (1_600 - AHEAD + 1) // (32 if test_windows == "whole_batches" else 1)
    scored *= 32 if test_windows == "whole_batches" else 1
    naive = task.baselines()
    assert naive["repeat_last_value"] == pytest.approx(errors(task, 2, last_value, scored), rel=1e-5)
    assert naive["repeat_last_day"] == pytest.approx(errors(task, 2, last_day, scored), rel=1e-5)


def test_the_linear_forecast_is_the_ridge_regression_of_each_channel() -> None:
    task = ready(seq_len=11, label_len=3, pred_len=2)
    values, train = standardized(task), 5_600
    starts = np.arange(train - 12)
    count = len(starts)
    for channel in (0, 6):
        x = np.stack([np.append(values[i : i + 11, channel], 1.0) for i in starts])
        y = np.stack([values[i + 11 : i + 13, channel] for i in starts])
        weights = np.linalg.solve(x.T @ x + 0.01 * count * np.eye(12), x.T @ y)
        past = torch.from_numpy(values[None, 6_000:6_011]).float()
        expected = np.append(values[6_000:6_011, channel], 1.0) @ weights
        np.testing.assert_allclose(RidgeForecast(task.splits["train"])(past)[0, :, channel], expected, atol=1e-4)
    assert task.baselines()["ridge"]["mse"] < task.baselines()["repeat_last_value"]["mse"]


def test_the_last_day_of_a_short_past_is_all_of_it() -> None:
    task = ready(seq_len=11, label_len=3, pred_len=13)
    batch = task.splits["test"].__getitems__(list(range(len(task.splits["test"]))))
    naive = torch.cat([batch["past"], batch["past"][:, :2]], dim=1)
    expected = (naive.double() - batch["future"].double()).square().mean().item()
    assert task.baselines()["repeat_last_day"]["mse"] == pytest.approx(expected, rel=1e-9)


def test_the_loss_is_the_mean_squared_error_and_reaches_the_weights() -> None:
    task = ready()
    network = Linear(PAST)
    loss = task.loss(network, task.splits["train"].__getitems__([0, 777, 5_528]))
    values = standardized(task)
    wrong = [linear_by_hand(task, i) - values[i + PAST : i + PAST + AHEAD] for i in (0, 777, 5_528)]
    assert loss.item() == pytest.approx(np.mean(np.square(wrong)), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, network.weights)
    assert gradient.all()


@pytest.mark.parametrize(
    ("dataset", "rows", "channels", "mean"),
    [  # mean of the target over the training split, by awk
        ("etth1", 17_420, 7, 17.1283),
        ("etth2", 17_420, 7, 26.8720),
        ("ettm1", 69_680, 7, 17.1250),
        ("weather", 35_064, 12, 1.4067),
    ],
)
@pytest.mark.slow
def test_the_official_files(dataset: str, rows: int, channels: int, mean: float, samples: Path) -> None:
    task = ready(dataset, samples)
    assert task.series.values.shape == (rows, channels)
    assert task.series.values[: task.series.split[0], -1].mean() == pytest.approx(mean, abs=2e-4)
    assert task.splits["train"].values.mean(dim=0).abs().max() < 1e-3
    assert 0.1 < task.baselines()["repeat_last_day"]["mse"] < 2
