"""LSTF: splits and windows of every data set, calendar features, scores against direct numpy over all windows."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from cab import UserError
from tasks.lstf.data import Series, calendar_features, read_series, standardize
from tasks.lstf.synthetic import horizon, past_length
from tasks.lstf.task import LSTF, RidgeForecast
from tests.helpers.tasks import records
from tests.helpers.tasks.layouts import AMERICAN, ETT, WEATHER, put_series
from tests.helpers.tasks.records import in_order

PAST, KNOWN, AHEAD = 41, 9, 31  # more than a day ahead: the last day is repeated in split
ready = functools.partial(records.ready, "lstf", seq_len=PAST, label_len=KNOWN, pred_len=AHEAD)
ECL = [f"MT_{index:03d}" for index in range(321)]  # MT_320 is the target; 26,304 hours
OFFICIAL: list[tuple[str, str, list[str], int, str, tuple[int, int, int]]] = [
    ("etth1", "ETTh1.csv", ETT, 17_420, "h", (8_640, 2_880, 2_880)),
    ("ettm1", "ETTm1.csv", ETT, 57_611, "15min", (34_560, 11_520, 11_520)),
    ("ecl", "ECL.csv", ECL, 26_304, "h", (18_412, 2_632, 5_260)),  # int(.7 n), the rest, int(.2 n)
    ("weather", "WTH.csv", WEATHER, 35_064, "h", (24_544, 3_508, 7_012)),
]


@pytest.mark.parametrize(("dataset", "file", "columns", "rows", "freq", "splits"), OFFICIAL)
def test_official_split_and_window_counts(dataset, file, columns, rows, freq, splits, tmp_path):
    put_series(tmp_path / file, columns, rows, freq=freq)
    task = ready(tmp_path, dataset=dataset, features="S", seq_len=101, label_len=17, pred_len=59)
    assert task.series.split == splits
    # training windows end inside their split; the others take their first past from the split before
    assert tuple(map(len, task.splits.values())) == (splits[0] - 101 - 59 + 1, splits[1] - 59 + 1, splits[2] - 59 + 1)
    target = columns.index({"ecl": "MT_320", "weather": "WetBulbCelsius"}.get(dataset, "OT"))
    raw = (7 * np.arange(rows) + 3 * target) % 10
    values = (raw - raw[: splits[0]].mean()) / raw[: splits[0]].std()  # over n, not n - 1
    first, last = splits[0] + splits[1], sum(splits)
    for windows, start, stop in ((task.splits["validation"], splits[0], first), (task.splits["test"], first, last)):
        np.testing.assert_allclose(windows[0]["past"][:, 0], values[start - 101 : start], atol=1e-5)
        np.testing.assert_allclose(windows[len(windows) - 1]["future"][:, 0], values[stop - 59 : stop], atol=1e-5)


def test_standardization_is_of_the_training_rows_and_only_centers_what_is_constant():
    """The deviation of a constant channel is not 0, but the rounding error of its mean."""
    values = np.random.default_rng(3).normal(5, 2, size=(2000, 2))
    values[:, 1] = 14.62
    assert values[:1000, 1].std() > 0
    expected = standardize(values, 1000)[:1000]
    values[1500:, 0] *= 1e6
    values[1500:, 1] = 14.63
    found = standardize(values, 1000)
    assert np.array_equal(found[:1000], expected)
    assert found[[0, -1], 1] == pytest.approx([0.0, 0.01], abs=1e-6)


def test_the_target_comes_last(tmp_path):
    put_series(tmp_path / "ETTh1.csv", ["OT", *ETT[:-1]], 14_400)
    assert np.array_equal(read_series("etth1", tmp_path).values, pd.read_csv(tmp_path / "ETTh1.csv")[ETT])


def test_calendar_features_by_hand():
    dates = pd.DatetimeIndex(["2016-07-01 00:00", "2017-12-31 23:45", "2020-12-31 12:15", "2018-01-01 05:00"])
    expected = [  # Friday, Sunday, Thursday of a leap year (366th day), Monday; minutes play no part
        [0 / 23, 4 / 6, 0 / 30, 182 / 365],
        [23 / 23, 6 / 6, 30 / 30, 364 / 365],
        [12 / 23, 3 / 6, 30 / 30, 365 / 365],
        [5 / 23, 0 / 6, 0 / 30, 0 / 365],
    ]
    np.testing.assert_allclose(calendar_features(dates), np.array(expected) - 0.5, atol=1e-6)


def test_dates_of_other_forms(tmp_path):
    """With a time zone, whose offset changes with summer time, those in UTC; American ones in the file of weather."""
    put_series(tmp_path / "ETTh1.csv", ETT, 14_400)
    expected = read_series("etth1", tmp_path)
    local = pd.date_range("2016-07-01", periods=14_400, freq="h", tz="UTC").tz_convert("Europe/Berlin")
    frame = pd.read_csv(tmp_path / "ETTh1.csv").assign(date=[time.isoformat() for time in local])
    frame.to_csv(tmp_path / "ETTh1.csv", index=False)
    np.testing.assert_array_equal(read_series("etth1", tmp_path).calendar, expected.calendar)
    put_series(tmp_path / "WTH.csv", WEATHER, 35_064, dates=AMERICAN)
    afternoon = read_series("weather", tmp_path).calendar[24 * 15 + 14]  # 16 July 2016, a Saturday, the 198th day
    np.testing.assert_allclose(afternoon + 0.5, [14 / 23, 5 / 6, 15 / 30, 197 / 365], atol=1e-6)


def test_questions_of_generated_windows_have_scores_of_their_own():
    names = [metric.name for metric in ready(seq_len=past_length(6), label_len=6, pred_len=horizon(6)).metrics]
    assert names == ["mse", "mae", "mse_direct", "mse_lookup", "mse_long_lookup"]


def own(folder: Path, *, time: str = "", **options: object) -> LSTF:
    """Task on ``power.csv``: 40 rows, half an hour apart, one of them at another ``time``."""
    dates = pd.Series(pd.date_range("2020-01-01", periods=40, freq="30min").astype(str))
    dates[20] = time or dates[20]
    table = pd.DataFrame({"load": range(40), "time": dates, "heat": 2.0, "wind": [row**2 for row in range(40)]})
    table.to_csv(folder / "power.csv", index=False)
    source = {"source": str(folder / "power.csv"), "source_date": "time", **options}
    return ready(dataset="my_power", seq_len=3, label_len=2, pred_len=1, **source)


def test_a_series_of_a_user_has_its_columns_split_and_interval(tmp_path):
    task = own(tmp_path, source_target="load", source_columns=["wind"], source_split=[0.5, 0.25, 0.25])
    assert (task.series.split, task.series.steps_per_day) == ((20, 10, 10), 48)
    np.testing.assert_array_equal(task.series.values, [[row**2, row] for row in range(40)])
    assert {name: len(windows) for name, windows in task.splits.items()} == {"train": 17, "validation": 10, "test": 10}
    assert own(tmp_path, source_target="load").fingerprint() != own(tmp_path, source_target="heat").fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_target": "lod"}, r"power.csv has no column 'lod' \(columns: load, time, heat, wind\)"),
        ({"source_split": [0.5, 0.5, 0.5]}, "positive shares with sum 1"),
        ({"source_split": [0.98, 0.01, 0.01]}, "shorter than one window"),
        ({"time": "2020-01-01 10:01:00"}, "line 22, column 'time': .* is not 30 minutes after"),
    ],
)
def test_a_mistake_in_a_series_of_a_user_is_named(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        own(tmp_path, **options)


def linear(past: Tensor, past_time: Tensor, known: Tensor, decoder_time: Tensor) -> Tensor:
    """Reads everything a batch has: a forecast that any misplaced row would change."""
    ahead = decoder_time.shape[1] - known.shape[1]
    level = torch.einsum("bnc,n->bc", past, torch.linspace(-0.4, 0.7, PAST)) / PAST
    clock = past_time[:, :1, :1] + decoder_time[:, -ahead:, 1:2]
    return level[:, None] + known[:, :1] + 0.3 * clock


def linear_by_hand(task: LSTF, start: int) -> np.ndarray:
    """The same forecast, of the window that starts in row ``start`` of the series; [AHEAD, C]."""
    values, calendar = standardized(task), task.series.calendar
    now = start + PAST
    clock = calendar[start, 0] + calendar[now : now + AHEAD, 1:2]
    return np.linspace(-0.4, 0.7, PAST) @ values[start:now] / PAST + values[now - KNOWN] + 0.3 * clock


@functools.cache
def standardized(task: LSTF) -> np.ndarray:
    values, train = task.series.values, task.series.split[0]
    values = (values - values[:train].mean(axis=0)) / values[:train].std(axis=0)
    return values[:, -1:] if task.features == "S" else values


@pytest.fixture
def _plain_series(monkeypatch):
    """Replace the generated episodes by one continuous series, in which a window starts at every row."""
    rows = np.arange(8_000)
    noise = np.random.default_rng(3).normal(size=(8_000, 7))
    values = np.sin(2 * np.pi * rows[:, None] / 24 + np.arange(7)) + 0.2 * noise + (rows[:, None] / 3_000) ** 3
    calendar = calendar_features(pd.date_range("2020-01-01", periods=8_000, freq="h"))
    series = Series(values, calendar, (5_600, 800, 1_600), 24, {"rows": 8_000})
    monkeypatch.setattr("tasks.lstf.task.synthetic_series", lambda _: series)


def errors(task: LSTF, split: int, forecasts: Any, windows: int | None = None) -> dict[str, float]:
    """MSE and MAE over the windows whose forecasts lie wholly in split 1 (validation) or 2 (test)."""
    values = standardized(task)
    first = sum(task.series.split[:split]) - PAST
    count = task.series.split[split] - AHEAD + 1 if windows is None else windows
    wrong = np.stack([forecasts(task, i) - values[i + PAST : i + PAST + AHEAD] for i in range(first, first + count)])
    return {"mse": float((wrong**2).mean()), "mae": float(np.abs(wrong).mean())}


@pytest.mark.usefixtures("_plain_series")
@pytest.mark.parametrize("features", ["M", "S"])
def test_scores_are_the_mean_over_all_windows_steps_and_channels(features):
    task = ready(features=features, evaluation_batch_size=500)
    with torch.no_grad():
        assert task.evaluate(linear, in_order) == pytest.approx(errors(task, 2, linear_by_hand), rel=1e-5)
        assert task.validate(linear, in_order) == pytest.approx(errors(task, 1, linear_by_hand)["mse"], rel=1e-5)
    assert task.backbone_options("informer") == {"channels": {"M": 7, "S": 1}[features], "season": 24}
    loss = task.loss(linear, task.splits["train"].__getitems__([0, 777, 5_528]))
    wrong = [linear_by_hand(task, i) - standardized(task)[i + PAST : i + PAST + AHEAD] for i in (0, 777, 5_528)]
    assert loss.item() == pytest.approx(np.mean(np.square(wrong)), rel=1e-5)


@torch.no_grad()
@pytest.mark.usefixtures("_plain_series")
def test_the_published_protocol_leaves_out_what_does_not_fill_a_batch_of_32():
    task = ready(test_windows="whole_batches", evaluation_batch_size=37)
    published, sound = errors(task, 2, linear_by_hand, 1_568), errors(task, 2, linear_by_hand)  # of 1,570
    assert abs(published["mse"] / sound["mse"] - 1) > 1e-4  # or the test would show nothing
    every = {f"{name}_all_windows": value for name, value in sound.items()}
    assert task.evaluate(linear, in_order) == pytest.approx({**published, **every}, rel=1e-5)
    naive, ahead = task.baselines(), np.arange(AHEAD)
    for name, rows in (("repeat_last_value", np.full(AHEAD, -1)), ("repeat_last_day", ahead % 24 - 24)):
        expected = errors(task, 2, lambda task, start, rows=rows: standardized(task)[start + PAST + rows], 1_568)
        assert naive[name] == pytest.approx(expected, rel=1e-5), name


@pytest.mark.usefixtures("_plain_series")
def test_the_linear_forecast_is_the_ridge_regression_of_each_channel():
    task = ready(seq_len=11, label_len=3, pred_len=2)
    values, starts = standardized(task), np.arange(5_600 - 12)
    past = torch.from_numpy(values[None, 6_000:6_011]).float()
    for channel in (0, 6):
        x = np.stack([np.append(values[i : i + 11, channel], 1.0) for i in starts])
        y = np.stack([values[i + 11 : i + 13, channel] for i in starts])
        weights = np.linalg.solve(x.T @ x + 0.01 * len(starts) * np.eye(12), x.T @ y)
        expected = np.append(values[6_000:6_011, channel], 1.0) @ weights
        np.testing.assert_allclose(RidgeForecast(task.splits["train"])(past)[0, :, channel], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("dataset", "mean"),  # of the target over the training split, by awk
    [("etth1", 17.1283), ("etth2", 26.8720), ("ettm1", 17.1250), ("weather", 1.4067)],
)
@pytest.mark.slow
def test_the_official_files(dataset, mean, samples):
    task = ready(samples, dataset=dataset, features="M")
    assert task.series.values[: task.series.split[0], -1].mean() == pytest.approx(mean, abs=2e-4)
    assert task.splits["train"].values.mean(dim=0).abs().max() < 1e-3
    assert 0.1 < task.baselines()["repeat_last_day"]["mse"] < 2
