"""Series of LSTF: official CSV files, splits, standardization, calendar features and windows."""

from __future__ import annotations

import gzip
import hashlib
import io
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import UserError
from cab.errors import first_line
from cab.files.cache import read_bytes
from cab.files.numbers import is_finite
from cab.files.text_table import counted
from tasks.files import find_data

if TYPE_CHECKING:  # a plan of runs does not import pandas
    import pandas as pd


@dataclass(frozen=True)
class Source:
    """A published data set.

    ``split`` is the number of rows of train, validation and test (ETT: 12, 4, 4 months of 30 days), or None for 70 / 10
    / 20 percent. ``rows`` is the official length if the split depends on it.
    """

    file: str
    target: str
    num_channels: int
    split: tuple[int, ...] | None
    rows: int | None
    steps_per_day: int


_DAYS = (360, 120, 120)  # of training, validation and test: 12, 4 and 4 months of 30 days

PUBLISHED_SERIES = {
    **{f"etth{i}": Source(f"ETTh{i}.csv", "OT", 7, tuple(24 * n for n in _DAYS), None, 24) for i in (1, 2)},
    "ettm1": Source("ETTm1.csv", "OT", 7, tuple(96 * n for n in _DAYS), None, 96),
    "ecl": Source("ECL.csv", "MT_320", 321, None, 26304, 24),
    "weather": Source("WTH.csv", "WetBulbCelsius", 12, None, 35064, 24),
}


@dataclass(frozen=True)
class Series:
    """A multivariate series: values [rows, channels], target last; calendar features [rows, 4].

    Windows start at every row, or every ``episode`` rows if the series consists of episodes.
    """

    values: np.ndarray
    calendar: np.ndarray
    split: tuple[int, ...]
    steps_per_day: int
    fingerprint: dict[str, str | int]
    episode: int = 1


def read_series(name: str, data_root: Path | None) -> Series:
    """Read data set ``name`` from its official CSV (or .csv.gz) under ``data_root``; UserError for another edition."""
    source = PUBLISHED_SERIES[name]
    path = find_data(name, data_root, source.file, f"{source.file}.gz")
    content = read_bytes(path)
    table = _read_csv(path, content)
    _check_columns(path, table, source)
    values = _numbers(path, table.iloc[:, 1:])
    dates = _dates(path, table.iloc[:, 0], 24 * 60 / source.steps_per_day)
    order = [c for c in table.columns[1:] if c != source.target] + [source.target]
    rows = len(values)
    needed = source.rows or sum(source.split or ())
    if rows < needed or (source.rows is not None and rows != source.rows):
        raise UserError(
            f"{path}: {counted(rows, 'row')}, but the official split of {name} needs {needed:,}; the file "
            "is truncated or another edition: download it again"
        )
    train, test = int(rows * 0.7), int(rows * 0.2)
    split = source.split or (train, rows - train - test, test)
    _check_scale(path, table[order], values[order], split[0])
    return Series(
        values=values[order].to_numpy(np.float64),
        calendar=calendar_features(dates),
        split=split,
        steps_per_day=source.steps_per_day,
        fingerprint={"file": path.name, "rows": rows, "sha256": hashlib.sha256(content).hexdigest()},
    )


@dataclass(frozen=True)
class OwnSource:
    """A CSV file of a user: a column of dates at regular intervals, and columns of numbers.

    Attributes:
        path: CSV file, which can be compressed (``.csv.gz``).
        date: column of the dates.
        target: column that variant ``S`` forecasts; by default the last one.
        columns: columns that are read, in addition to the target; by default all.
        split: shares of the rows for training, validation and test, in the order of time.
    """

    path: Path
    date: str
    target: str | None
    columns: Sequence[str]
    split: Sequence[float]


def read_own_series(source: OwnSource) -> Series:
    """Read a series of a user; UserError for a missing column, irregular dates, or values that are not numbers."""
    path = source.path
    if not path.is_file():
        raise UserError(f"task.source={path}: there is no such file; name a CSV file")
    content = read_bytes(path)
    table = _read_csv(path, content)
    table.columns = table.columns.map(str)
    found = [name for name in table.columns if name != source.date]
    target = source.target or (source.columns or found or [""])[-1]
    chosen = [name for name in source.columns or found if name != target] + [target]
    if missing := [name for name in (source.date, *chosen) if name not in table.columns]:
        raise UserError(
            f"{path} has no column '{missing[0]}' (columns: {', '.join(table.columns[:12])}); set task.source_date, "
            "task.source_target or task.source_columns"
        )
    values = _numbers(path, table[chosen])
    dates = _dates(path, table[source.date])
    train, validation = (round(len(values) * share) for share in source.split[:2])
    if not train or len(values) < 2:
        raise UserError(f"{path}: {counted(len(values), 'row')}, too few for a split by {[*source.split]}")
    _check_scale(path, table[chosen], values, train)
    key = {"date": source.date, "columns": ",".join(chosen), "split": ",".join(map(str, source.split))}
    return Series(
        values=values.to_numpy(np.float64),
        calendar=calendar_features(dates),
        split=(train, validation, len(values) - train - validation),
        steps_per_day=max(1, round(timedelta(days=1) / (dates[1] - dates[0]))),
        fingerprint={**key, "rows": len(values), "sha256": hashlib.sha256(content).hexdigest()},
    )


def _read_csv(path: Path, content: bytes) -> pd.DataFrame:
    """Parse a table: the first line has the names, and every line as many values as there are names."""
    import pandas as pd

    try:
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig").rstrip()
        widths = [line.count(",") for line in text.splitlines()]
        wrong = next((number for number, width in enumerate(widths, start=1) if width != widths[0]), None)
        if wrong is not None:
            raise ValueError(f"line {wrong} has {counted(widths[wrong - 1] + 1, 'column')}, line 1 {widths[0] + 1}")
        return pd.read_csv(io.StringIO(text), low_memory=False, index_col=False, skip_blank_lines=False)
    except (EOFError, OSError, ValueError, zlib.error) as error:
        reason = first_line(error)
        raise UserError(f"{path} cannot be read as CSV ({reason}): the file is damaged, download it again") from None


def _check_columns(path: Path, table: pd.DataFrame, source: Source) -> None:
    date, *channels = map(str, table.columns)
    if repeated := [
        name for name in channels if name.rpartition(".")[0] in channels and name.rpartition(".")[2].isdigit()
    ]:
        raise UserError(f"{path}, line 1: the column '{repeated[0].rpartition('.')[0]}' occurs more than once")
    if date != "date" or source.target not in channels or len(channels) != source.num_channels:
        raise UserError(
            f"{path}: expected the column 'date', then {source.num_channels} columns with the target "
            f"'{source.target}'; found {len(channels)} after '{date}': {','.join(channels[:12])}; correct the first "
            "line or download the file again"
        )


def _numbers(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    texts = table.astype({name: str for name in table.columns if pd.api.types.is_bool_dtype(table[name])})
    numbers = texts.apply(pd.to_numeric, errors="coerce")
    bad = ~np.isfinite(numbers.to_numpy(np.float64))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise UserError(
            f"{path}, line {row + 2}, column '{table.columns[column]}': "
            f"'{table.iloc[row, column]}' is not a finite number; repair or download the file again"
        )
    return numbers


def _check_scale(path: Path, table: pd.DataFrame, values: pd.DataFrame, train_rows: int) -> None:
    """Raise UserError for a value of the table that is too large to be standardized."""
    try:
        standardize(values.to_numpy(np.float64), train_rows)
    except OverflowingValueError as error:
        value: object = table.iloc[error.row, error.column]
        raise UserError(
            f"{path}, line {error.row + 2}, column '{table.columns[error.column]}': '{value}' is too large to be "
            "standardized; repair the file or download it again"
        ) from error


def _dates(path: Path, column: pd.Series, minutes: float | None = None) -> pd.DatetimeIndex:
    """Convert dates, those with a time zone to UTC; UserError for others, and unless ``minutes`` are between all.

    By default, the interval is that between the first two dates.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pandas warns about formats it cannot guess
        dates = pd.to_datetime(column, errors="coerce", utc=True).dt.tz_localize(None)
    broken = np.flatnonzero(
        dates.isna() | pd.api.types.is_numeric_dtype(column)
    )  # numbers would be nanoseconds since 1970
    if len(broken):
        raise UserError(
            f"{path}, line {broken[0] + 2}, column '{column.name}': '{column.iloc[broken[0]]}' is not a date "
            "like 2016-07-01 00:00:00; repair or download the file again"
        )
    steps = np.diff(dates.to_numpy()) / np.timedelta64(1, "m")
    if minutes is None:
        minutes = float(steps[0]) if len(steps) else 0.0
    irregular = np.flatnonzero((steps != minutes) | (steps <= 0))
    if len(irregular):
        line = irregular[0] + 3
        raise UserError(
            f"{path}, line {line}, column '{column.name}': '{column.iloc[line - 2]}' is not {minutes:g} minutes after "
            f"'{column.iloc[line - 3]}'; the interval is constant: repair the rows or download the file again"
        )
    return pd.DatetimeIndex(dates)


def calendar_features(dates: pd.DatetimeIndex) -> np.ndarray:
    """Return hour of day, day of week, of month and of year, each in [-0.5, 0.5] (Informer's ``timeF``, freq h)."""
    parts = (dates.hour / 23.0, dates.day_of_week / 6.0, (dates.day - 1) / 30.0, (dates.day_of_year - 1) / 365.0)
    return np.stack([part - 0.5 for part in parts], axis=1).astype(np.float32)


class OverflowingValueError(Exception):
    """A value, by its row and column, is too large to be standardized in float32."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__(f"row {row}, column {column}")
        self.row, self.column = row, column


def standardize(values: np.ndarray, train_rows: int) -> np.ndarray:
    """Standardize each channel by its training mean and standard deviation; constant channels are only centered.

    A channel is constant if its deviation is within the rounding errors of a mean over its rows.

    Raises:
        OverflowingValueError: a mean, a deviation or a standardized value is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values[:train_rows].mean(axis=0)
        deviation = values[:train_rows].std(axis=0)
        rounding = train_rows * np.finfo(np.float64).eps * np.abs(mean)
        standardized = ((values - mean) / np.where(deviation > rounding, deviation, 1.0)).astype(np.float32)
    wrong = ~(is_finite(standardized) & is_finite(deviation))
    if wrong.any():
        column = int(np.flatnonzero(wrong.any(axis=0))[0])
        rows = slice(train_rows) if not is_finite(deviation[column]) else slice(None)
        raise OverflowingValueError(int(np.abs(values[rows, column]).argmax()), column)
    return standardized


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of one split of a series, ``stride`` rows apart: ``seq_len`` rows of past, ``pred_len`` to forecast.

    A batch is a dict of ``index`` [B], the numbers of the windows, ``past`` [B, seq_len, C], ``past_time``
    [B, seq_len, 4], ``known`` [B, label_len, C] (the end of the past), ``decoder_time`` [B, label_len + pred_len, 4],
    ``future`` [B, pred_len, C].
    """

    def __init__(
        self, values: Tensor, calendar: Tensor, *, seq_len: int, label_len: int, pred_len: int, stride: int = 1
    ) -> None:
        self.values, self.calendar = values, calendar
        self.seq_len, self.label_len, self.pred_len, self.stride = seq_len, label_len, pred_len, stride

    def __len__(self) -> int:
        return max(0, (len(self.values) - self.seq_len - self.pred_len) // self.stride + 1)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        start = torch.tensor(indices)[:, None] * self.stride
        past = start + torch.arange(self.seq_len)
        decoder = start + self.seq_len - self.label_len + torch.arange(self.label_len + self.pred_len)
        return {
            "index": torch.tensor(indices),
            "past": self.values[past],
            "past_time": self.calendar[past],
            "known": self.values[decoder[:, : self.label_len]],
            "decoder_time": self.calendar[decoder],
            "future": self.values[decoder[:, self.label_len :]],
        }

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor[0] for name, tensor in self.__getitems__([index]).items()}
