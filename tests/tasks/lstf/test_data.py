"""Splits and window counts of every data set, calendar features by hand, and files as they lie on disks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cab import UserError
from tasks.lstf.data import Windows, calendar_features, read_series, standardize
from tasks.lstf.task import LSTF
from tests.helpers.official_layout import AMERICAN, ETT, WEATHER, write

ECL = [f"MT_{index:03d}" for index in range(321)]  # MT_320 is the target; 26,304 hours


@pytest.mark.parametrize(
    ("dataset", "file", "columns", "rows", "freq", "splits"),
    [
        ("etth1", "ETTh1.csv", ETT, 17_420, "h", (8_640, 2_880, 2_880)),
        ("etth2", "ETTh2.csv", ETT, 14_400, "h", (8_640, 2_880, 2_880)),
        ("ettm1", "ETTm1.csv", ETT, 57_611, "15min", (34_560, 11_520, 11_520)),
        ("ecl", "ECL.csv", ECL, 26_304, "h", (18_412, 2_632, 5_260)),  # int(.7 n), the rest, int(.2 n)
        ("weather", "WTH.csv", WEATHER, 35_064, "h", (24_544, 3_508, 7_012)),
    ],
)
def test_official_split_and_window_counts(
    dataset: str,
    file: str,
    columns: list[str],
    rows: int,
    freq: str,
    splits: tuple[int, int, int],
    tmp_path: Path,
) -> None:
    write(tmp_path / file, columns, rows, freq=freq)
    task = LSTF(dataset=dataset, features="S", seq_len=101, label_len=17, pred_len=59)
    task.setup(tmp_path)
    assert task.series.split == splits
    assert task.series.values.shape == (rows, len(columns))
    # training windows end inside their split; the others take their first past from the split before
    counts = tuple(map(len, task.splits.values()))
    assert counts == (splits[0] - 101 - 59 + 1, splits[1] - 59 + 1, splits[2] - 59 + 1)
    target = columns.index({"ecl": "MT_320", "weather": "WetBulbCelsius"}.get(dataset, "OT"))
    raw = (7 * np.arange(rows) + 3 * target) % 10
    train = raw[: splits[0]].astype(float)
    values = (raw - train.mean()) / np.sqrt(((train - train.mean()) ** 2).mean())
    first, last = splits[0] + splits[1], sum(splits)
    for windows, start, stop in ((task.splits["validation"], splits[0], first), (task.splits["test"], first, last)):
        np.testing.assert_allclose(windows[0]["past"][:, 0], values[start - 101 : start], atol=1e-5)
        np.testing.assert_allclose(windows[0]["future"][:, 0], values[start : start + 59], atol=1e-5)
        np.testing.assert_allclose(windows[len(windows) - 1]["future"][:, 0], values[stop - 59 : stop], atol=1e-5)


def test_later_rows_do_not_change_the_standardization() -> None:
    values = np.random.default_rng(3).normal(5, 2, size=(97, 3))
    expected = standardize(values, 61)[:61]
    values[61:] *= 1e6
    assert np.array_equal(standardize(values, 61)[:61], expected)
    np.testing.assert_allclose(expected.astype(float).mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(expected.astype(float).var(axis=0), 1, rtol=1e-6)  # over n, not n - 1


def test_the_target_comes_last(tmp_path: Path) -> None:
    write(tmp_path / "ETTh1.csv", ["OT", *ETT[:-1]], 14_400)
    frame = pd.read_csv(tmp_path / "ETTh1.csv")
    assert np.array_equal(read_series("etth1", tmp_path).values, frame[ETT])


def test_calendar_features_by_hand() -> None:
    dates = pd.DatetimeIndex(["2016-07-01 00:00", "2017-12-31 23:45", "2020-12-31 12:15", "2018-01-01 05:00"])
    expected = [  # Friday, Sunday, Thursday of a leap year (366th day), Monday; minutes play no part
        [0 / 23, 4 / 6, 0 / 30, 182 / 365],
        [23 / 23, 6 / 6, 30 / 30, 364 / 365],
        [12 / 23, 3 / 6, 30 / 30, 365 / 365],
        [5 / 23, 0 / 6, 0 / 30, 0 / 365],
    ]
    np.testing.assert_allclose(calendar_features(dates), np.array(expected) - 0.5, atol=1e-6)


@pytest.mark.parametrize(("seq_len", "label_len", "pred_len"), [(5, 5, 1), (7, 3, 11), (1, 1, 2)])
def test_windows_at_odd_sizes(seq_len: int, label_len: int, pred_len: int) -> None:
    rows = seq_len + pred_len + 4
    values = torch.arange(rows, dtype=torch.float32)[:, None]
    calendar = 1000 + values.expand(-1, 4)
    windows = Windows(values, calendar, seq_len=seq_len, label_len=label_len, pred_len=pred_len)
    assert len(windows) == 5
    batch = windows.__getitems__([4, 0, 2])
    for row, start in enumerate((4, 0, 2)):
        now = start + seq_len
        assert batch["past"][row, :, 0].tolist() == list(range(start, now))
        assert batch["past_time"][row, :, 3].tolist() == list(range(1000 + start, 1000 + now))
        assert batch["known"][row, :, 0].tolist() == list(range(now - label_len, now))
        assert batch["decoder_time"][row, :, 0].tolist() == list(range(1000 + now - label_len, 1000 + now + pred_len))
        assert batch["future"][row, :, 0].tolist() == list(range(now, now + pred_len))
        for name, tensor in windows[start].items():
            assert torch.equal(tensor, batch[name][row])
    assert batch["future"][0, -1, 0] == rows - 1  # the last window ends with the last row


@pytest.mark.parametrize("dates", ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S+00:00"])
def test_dates_with_a_time_zone_are_those_in_utc(dates: str, tmp_path: Path) -> None:
    write(tmp_path / "ETTh1.csv", ETT, 14_400)
    expected = read_series("etth1", tmp_path)
    write(tmp_path / "ETTh1.csv", ETT, 14_400, dates=dates)
    np.testing.assert_array_equal(read_series("etth1", tmp_path).calendar, expected.calendar)
    utc = pd.date_range("2016-07-01", periods=14_400, freq="h", tz="UTC")
    frame = pd.read_csv(tmp_path / "ETTh1.csv").assign(
        date=[time.isoformat() for time in utc.tz_convert("Europe/Berlin")]
    )
    frame.to_csv(tmp_path / "ETTh1.csv", index=False)  # the offset changes with summer time
    np.testing.assert_array_equal(read_series("etth1", tmp_path).calendar, expected.calendar)


def test_american_dates_of_the_weather_file(tmp_path: Path) -> None:
    write(tmp_path / "WTH.csv", WEATHER, 35_064, dates=AMERICAN)
    series = read_series("weather", tmp_path)
    hours = 24 * 15 + 14  # 16 July 2016, 14:00, a Saturday, the 198th day
    expected = [14 / 23 - 0.5, 5 / 6 - 0.5, 15 / 30 - 0.5, 197 / 365 - 0.5]
    np.testing.assert_allclose(series.calendar[hours], expected, atol=1e-6)


def test_a_constant_channel_is_only_centered() -> None:
    """Its deviation is not 0, but the rounding error of its mean."""
    values = np.full((2000, 2), 14.62)
    values[1500:, 0] = 14.63
    values[:, 1] = np.arange(2000.0)
    assert values[:1000, 0].std() > 0
    scaled = standardize(values, 1000)
    assert abs(scaled[0, 0]) < 1e-6
    assert scaled[-1, 0] == pytest.approx(0.01, abs=1e-6)
    assert scaled[:1000, 1].std() == pytest.approx(1.0)


def own(folder: Path, **options: object) -> LSTF:
    """Task on ``power.csv``: 40 rows, half an hour apart."""
    dates = pd.date_range("2020-01-01", periods=40, freq="30min")
    table = pd.DataFrame({"load": range(40), "time": dates, "heat": 2.0, "wind": [row**2 for row in range(40)]})
    if "change" in options:
        column, _, value = str(options.pop("change")).partition("=")
        table = table.astype({column: str})
        table.loc[20, column] = value
    table.to_csv(folder / "power.csv", index=False)
    sizes = {"seq_len": 3, "label_len": 2, "pred_len": 1}
    source = {"source": str(folder / "power.csv"), "source_date": "time", **options}
    task = LSTF(dataset="my_power", **sizes, **source)  # type: ignore[arg-type]
    task.check()
    task.setup(None)
    return task


def test_a_series_of_a_user_has_its_columns_split_and_interval(tmp_path: Path) -> None:
    task = own(tmp_path, source_target="load", source_columns=["wind"], source_split=[0.5, 0.25, 0.25])
    assert task.series.split == (20, 10, 10)
    assert task.series.steps_per_day == 48
    np.testing.assert_array_equal(task.series.values, [[row**2, row] for row in range(40)])
    assert {name: len(windows) for name, windows in task.splits.items()} == {"train": 17, "validation": 10, "test": 10}
    assert own(tmp_path).series.values.shape == (40, 3)
    first, other = (own(tmp_path, source_target=name).fingerprint() for name in ("load", "heat"))
    assert first["sha256"] == other["sha256"]
    assert first != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_target": "lod"}, r"power.csv has no column 'lod' \(columns: load, time, heat, wind\)"),
        ({"source_date": "date"}, "has no column 'date'"),
        ({"source_split": [0.5, 0.5, 0.5]}, "positive shares with sum 1"),
        ({"source_split": [0.98, 0.01, 0.01]}, "shorter than one window"),
        ({"change": "load=much"}, "line 22, column 'load': 'much' is not a finite number"),
        ({"change": "time=2020-01-01 10:01:00"}, "line 22, column 'time': .* is not 30 minutes after"),
        ({"change": "load=1e308"}, "line 22, column 'load': '.*' is too large to be standardized"),
        ({"source_split": [0.01, 0.01, 0.98]}, "40 rows, too few for a split"),
        ({"source": "none.csv"}, "task.source=none.csv: there is no such file"),
    ],
)
def test_a_mistake_in_a_series_of_a_user_is_named(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        own(tmp_path, **options)
