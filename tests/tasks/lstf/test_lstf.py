"""LSTF against numpy: splits, standardization, windows, calendar, errors, naive forecasts, bad files."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cab import UserError
from tasks.lstf.data import read_series, standardize
from tasks.lstf.task import LSTF
from tests.tasks.lstf.official_layout import ETT

ROWS = 14_407


def table(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(rng.normal(size=(rows, 7)).cumsum(axis=0), columns=ETT)
    frame.insert(0, "date", pd.date_range("2016-07-01", periods=rows, freq="h").astype(str))
    return frame


@pytest.fixture(scope="module")
def etth1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "lstf"
    folder.mkdir()
    table().to_csv(folder / "ETTh1.csv", index=False)
    return folder.parent


def in_order(dataset: Dataset[Any], batch_size: int) -> Iterator[Any]:
    size = len(dataset)  # type: ignore[arg-type]
    for start in range(0, size, batch_size):
        yield dataset.__getitems__(list(range(start, min(start + batch_size, size))))  # type: ignore[attr-defined]


def ready(root: Path | None, dataset: str = "etth1", **options: Any) -> LSTF:
    task = LSTF(dataset=dataset, **{"seq_len": 37, "label_len": 11, "pred_len": 13, **options})
    task.check()
    task.setup(root)
    return task


class LastDay(nn.Module):
    """A network that forecasts zero, whatever it reads."""

    def forward(self, past: Tensor, past_time: Tensor, known: Tensor, decoder_time: Tensor) -> Tensor:  # noqa: ARG002
        return past.new_zeros(len(past), decoder_time.shape[1] - known.shape[1], past.shape[2])


def test_official_split_standardized_by_its_training_part(etth1: Path) -> None:
    task = ready(etth1)
    raw = table()[ETT].to_numpy()
    mean, deviation = raw[:8640].mean(axis=0), raw[:8640].std(axis=0)
    values = (raw - mean) / deviation
    assert len(task.training_set) == 8640 - 37 - 13 + 1
    for name, start, stop in (("_validation", 8640 - 37, 11_520), ("_test", 11_520 - 37, 14_400)):
        windows = getattr(task, name)
        assert len(windows) == stop - start - 37 - 13 + 1
        np.testing.assert_allclose(windows.values.numpy(), values[start:stop], rtol=1e-4, atol=1e-5)


def test_a_window_is_the_rows_it_should_be(etth1: Path) -> None:
    task = ready(etth1)
    values, calendar = task.training_set.values, task.training_set.calendar
    batch = task.training_set.__getitems__([5, 1234])
    for row, i in enumerate((5, 1234)):
        assert torch.equal(batch["past"][row], values[i : i + 37])
        assert torch.equal(batch["past_time"][row], calendar[i : i + 37])
        assert torch.equal(batch["known"][row], values[i + 26 : i + 37])
        assert torch.equal(batch["decoder_time"][row], calendar[i + 26 : i + 50])
        assert torch.equal(batch["future"][row], values[i + 37 : i + 50])
    assert torch.equal(task.training_set[5]["future"], batch["future"][0])


def test_calendar_features(etth1: Path) -> None:
    calendar = ready(etth1).training_set.calendar
    when = pd.Timestamp("2016-07-01") + pd.Timedelta(hours=1000)  # Thursday, 11 August, 16:00
    expected = [16 / 23 - 0.5, when.day_of_week / 6 - 0.5, 10 / 30 - 0.5, (when.day_of_year - 1) / 365 - 0.5]
    np.testing.assert_allclose(calendar[1000].numpy(), expected, rtol=1e-6)


def test_univariate_is_the_target(etth1: Path) -> None:
    many, one = ready(etth1), ready(etth1, features="S")
    assert one.num_channels == 1
    assert torch.equal(one.training_set.values[:, 0], many.training_set.values[:, -1])


def test_errors_and_naive_forecasts_by_hand(etth1: Path) -> None:
    task = ready(etth1, evaluation_batch_size=100)
    values = task._test.values.double().numpy()
    count = len(task._test)
    future = np.stack([values[i + 37 : i + 50] for i in range(count)])
    scores = task.evaluate(LastDay(), in_order)  # type: ignore[arg-type]
    assert scores == pytest.approx({"mse": (future**2).mean(), "mae": np.abs(future).mean()}, rel=1e-9)
    last = np.stack([values[i + 36 : i + 37] for i in range(count)])
    day = np.stack([values[i + 13 : i + 26] for i in range(count)])
    baselines = task.baselines()
    assert baselines["repeat_last_value"]["mse"] == pytest.approx(((future - last) ** 2).mean(), rel=1e-9)
    assert baselines["repeat_last_day"]["mae"] == pytest.approx(np.abs(future - day).mean(), rel=1e-9)


@pytest.mark.parametrize("batch_size", [32, 45, 1000])
def test_published_windows_leave_out_the_last_incomplete_batch(etth1: Path, batch_size: int) -> None:
    task = ready(etth1, test_windows="whole_batches", evaluation_batch_size=batch_size)
    values = task._test.values.double().numpy()
    count = len(task._test)
    assert count % 32
    future = np.stack([values[i + 37 : i + 50] for i in range(count)])
    scores = task.evaluate(LastDay(), in_order)  # type: ignore[arg-type]
    assert scores["mse"] == pytest.approx((future[: count // 32 * 32] ** 2).mean(), rel=1e-9)
    assert scores["mse_all_windows"] == pytest.approx((future**2).mean(), rel=1e-9)
    assert {m.name: m.primary for m in task.metrics} == {
        "mse": True,
        "mae": True,
        "mse_all_windows": False,
        "mae_all_windows": False,
    }


def test_constant_channels_do_not_divide_by_zero() -> None:
    assert np.isfinite(standardize(np.ones((10, 2)), 5)).all()


def test_compressed_files_and_both_folders(tmp_path: Path) -> None:
    (tmp_path / "ETTh2.csv.gz").write_bytes(gzip.compress(table().to_csv(index=False).encode()))
    series = read_series("etth2", tmp_path)
    assert series.values.shape == (ROWS, 7)
    assert series.fingerprint["file"] == "ETTh2.csv.gz"


def test_the_target_comes_last(tmp_path: Path) -> None:
    frame = table()[["date", "OT", *ETT[:-1]]]
    frame.to_csv(tmp_path / "ETTh1.csv", index=False)
    np.testing.assert_allclose(read_series("etth1", tmp_path).values[:, -1], table()["OT"])


BROKEN = {
    "empty": (lambda _: "", "cannot be read as CSV"),
    "no rows": (lambda f: f.head(0).to_csv(index=False), "0 rows"),
    "short": (lambda f: f.head(40).to_csv(index=False), "40 rows"),
    "a column too many": (lambda f: f.assign(X=1).to_csv(index=False), "columns must be"),
    "a column renamed": (lambda f: f.rename(columns={"OT": "TO"}).to_csv(index=False), "columns must be"),
    "no date": (lambda f: f.drop(columns="date").to_csv(index=False), "first column must be 'date'"),
    "cut in a line": (lambda f: f.to_csv(index=False)[:-200], "rows|finite"),
    "missing": (lambda f: f.assign(HULL=f["HULL"].where(f.index != 99)).to_csv(index=False), "line 101, column 'HULL'"),
    "infinite": (lambda f: f.assign(OT=f["OT"].where(f.index != 5, np.inf)).to_csv(index=False), "line 7, column 'OT'"),
    "text": (lambda f: f.astype(object).assign(OT=["x", *f["OT"][1:]]).to_csv(index=False), "line 2, column 'OT': 'x'"),
    "not a date": (
        lambda f: f.assign(date=["soon", *f["date"][1:]]).to_csv(index=False),
        "line 2, column 'date': 'soon'",
    ),
    "backwards": (
        lambda f: f.iloc[[0, 2, 1, *range(3, len(f))]].to_csv(index=False),
        "line 4, column 'date': dates must increase",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_what_is_wrong(name: str, tmp_path: Path) -> None:
    damage, message = BROKEN[name]
    (tmp_path / "ETTh1.csv").write_text(damage(table()))
    with pytest.raises(UserError, match=message) as error:
        read_series("etth1", tmp_path)
    assert "ETTh1.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(table().to_csv(index=False).encode())
    (tmp_path / "ETTh1.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=r"ETTh1\.csv\.gz cannot be read"):
        read_series("etth1", tmp_path)


def test_without_data_the_way_out_is_named(tmp_path: Path) -> None:
    for root in (None, tmp_path):
        with pytest.raises(UserError, match="dataset=synthetic"):
            read_series("etth1", root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "MS"}, "M"),
        ({"label_len": 40}, "label_len"),
        ({"pred_len": 0}, "at least 1"),
        ({"test_windows": "some"}, "whole_batches"),
        ({"seq_len": 8_700, "label_len": 3}, "shorter than one window"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, etth1: Path) -> None:
    with pytest.raises(UserError, match=message):
        ready(etth1, **options)
