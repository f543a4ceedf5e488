"""LSTF protocol: windows, losses, scores in standardized units, and naive forecasts as baselines."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone, UserError, register_task
from cab.backbone_protocols import Forecaster
from cab.files.disk import user_path
from cab.metric import Metric, mean_over_batches
from cab.registry.options import Positive
from cab.task import Batches
from tasks.lstf.data import OwnSource, Series, Windows, read_own_series, read_series, standardize
from tasks.lstf.synthetic import HOURS, horizon, levels_of, synthetic_series
from tasks.pictures import draw_grid
from tasks.source import OwnTask

UNIT = "standardized"  # per channel, by the training split
PUBLISHED_BATCH = 32  # Informer drops the test windows after the last whole batch


@register_task(
    "lstf",
    paper="Zhou et al. 2021",
    datasets="etth1 etth2 ettm1 ecl weather synthetic",
    backbones={"informer": "NS CS NC"},
)
@dataclass(kw_only=True, eq=False)
class LSTF(OwnTask):
    """Forecast the next ``pred_len`` steps of a series from the last ``seq_len``.

    Args:
        dataset: etth1, etth2, ettm1, ecl, weather, synthetic, or with ``source`` any name.
        source: CSV file (.csv or .csv.gz) with a series of your own: dates at constant intervals, and columns of
            numbers.
        source_date: column of the dates.
        source_target: column that ``features=S`` forecasts (default: the last column).
        source_columns: columns to read, in addition to the target (default: all).
        source_split: shares of the rows for training, validation and test, in the order of time.
        features: ``M`` reads and forecasts all channels, ``S`` the target channel only.
        seq_len, label_len, pred_len: number of steps of the past, of the past given to the decoder, and of the
            forecast.
        evaluation_batch_size: windows per batch in validation and test.
        hours: hours per day of the generated series. An episode has 12 + 6 ``hours`` rows of past and 5 ``hours`` rows
            to forecast.
        test_windows: ``all``; or ``whole_batches``, the published protocol, which drops the last incomplete batch of 32
            windows from ``mse`` and ``mae``; ``mse_all_windows`` and ``mae_all_windows`` are then reported as well.
    """

    required_protocols: ClassVar = (Forecaster,)

    source_date: str = "date"
    source_target: str | None = None
    source_columns: Sequence[str] = ()
    features: Literal["M", "S"] = "M"
    seq_len: Positive = 96
    label_len: Positive = 48
    pred_len: Positive = 24
    hours: Positive = 6
    evaluation_batch_size: Positive = 32
    test_windows: Literal["all", "whole_batches"] = "all"

    @property
    def config_variant(self) -> str:
        hours = f" hours {self.hours}" if self.dataset == "synthetic" and self.hours != HOURS else ""
        return self.features + hours

    @property
    def metrics(self) -> tuple[Metric, ...]:
        names = ["mse", "mae"]
        if self.test_windows == "whole_batches":
            names += ["mse_all_windows", "mae_all_windows"]
        names += [f"mse_{level}" for level in self._levels]
        units = {"mse": f"{UNIT}^2", "mae": UNIT}
        return tuple(Metric(name, units[name[:3]], False, primary=name in units) for name in names)

    @property
    def _levels(self) -> Mapping[str, slice]:
        """The steps of the horizon with separate scores, for generated series with the full horizon."""
        is_whole = self.dataset == "synthetic" and self.pred_len == horizon(self.hours)
        return levels_of(self.hours) if is_whole else {}

    def check(self) -> None:
        if self.label_len > self.seq_len:
            raise UserError(f"task.label_len {self.label_len} must not exceed task.seq_len {self.seq_len}")
        super().check()

    def setup(self, data_root: Path | None) -> None:
        self.series = series = self._read(data_root)
        values = standardize(series.values, series.split[0])
        if self.features == "S":
            values = values[:, -1:]
        self.num_channels = values.shape[1]
        back = self.seq_len if series.episode == 1 else 0  # an episode contains its own past
        train, validation, test = itertools.accumulate(series.split)
        bounds = {"train": (0, train), "validation": (train - back, validation), "test": (validation - back, test)}
        self.splits = {name: self._windows(series, values, *bound) for name, bound in bounds.items()}

    def _read(self, data_root: Path | None) -> Series:
        if self.source:
            names = self.source_date, self.source_target, self.source_columns
            return read_own_series(OwnSource(user_path(self.source), *names, self.source_split))
        return synthetic_series(self.hours) if self.dataset == "synthetic" else read_series(self.dataset, data_root)

    def _windows(self, series: Series, values: np.ndarray, start: int, stop: int) -> Windows:
        rows = slice(max(start, 0), stop)
        windows = Windows(
            torch.from_numpy(values[rows]),
            torch.from_numpy(series.calendar[rows]),
            seq_len=self.seq_len,
            label_len=self.label_len,
            pred_len=self.pred_len,
            stride=series.episode,
        )
        if start < 0 or not len(windows):
            raise UserError(
                f"dataset '{self.dataset}' is shorter than one window: task.seq_len {self.seq_len} + "
                f"task.pred_len {self.pred_len} steps do not fit into rows {max(start, 0):,} to {stop:,}; "
                "make them smaller"
            )
        return windows

    def fingerprint(self) -> dict[str, Any]:
        return self.series.fingerprint

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {"channels": self.num_channels, "season": self.series.steps_per_day}

    def forecast(self, backbone: Backbone, batch: dict[str, Tensor]) -> Tensor:
        """Return the forecast [B, pred_len, C]."""
        return backbone(batch["past"], batch["past_time"], batch["known"], batch["decoder_time"])

    def loss(self, backbone: Backbone, batch: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(self.forecast(backbone, batch), batch["future"])

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        def score(batch: dict[str, Tensor]) -> Sums:
            return error_sums(self.forecast(backbone, batch), batch["future"])

        return mean_errors(batches.map(self.splits["validation"], self.evaluation_batch_size, score))["mse"]

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        def score(batch: dict[str, Tensor]) -> list[Sums]:
            forecast, future, is_scored = self.forecast(backbone, batch), batch["future"], batch["index"] < num_scored
            levels = [error_sums(forecast[:, steps], future[:, steps]) for steps in self._levels.values()]
            return [error_sums(forecast[is_scored], future[is_scored]), error_sums(forecast, future), *levels]

        num_scored = self._num_scored
        rows = batches.map(self.splits[self.test_split], self.evaluation_batch_size, score)
        scores, every, *levels = map(mean_errors, zip(*rows, strict=True))
        if self.test_windows == "whole_batches":
            scores |= {f"{name}_all_windows": value for name, value in every.items()}
        return scores | {f"mse_{name}": level["mse"] for name, level in zip(self._levels, levels, strict=True)}

    @property
    def _num_scored(self) -> int:
        """Number of test windows that ``mse`` and ``mae`` include."""
        count = len(self.splits[self.test_split])
        whole_batches = count // PUBLISHED_BATCH * PUBLISHED_BATCH
        return whole_batches if self.test_windows == "whole_batches" and whole_batches else count

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of repeating the last value or the last day, and of the linear forecast."""
        errors: dict[str, list[Sums]] = {"repeat_last_value": [], "repeat_last_day": [], "ridge": []}
        ridge = RidgeForecast(self.splits["train"])
        steps = min(self.series.steps_per_day, self.seq_len)
        repeat = -(-self.pred_len // steps)
        scored = range(self._num_scored)[: self.limit]
        for start in range(0, len(scored), 256):
            batch = self.splits[self.test_split].__getitems__(list(scored[start : start + 256]))
            past, future = batch["past"], batch["future"]
            errors["repeat_last_value"].append(error_sums(past[:, -1:].expand_as(future), future))
            repeated = past[:, -steps:].repeat(1, repeat, 1)[:, : self.pred_len]
            errors["repeat_last_day"].append(error_sums(repeated, future))
            errors["ridge"].append(error_sums(ridge(past), future))
        return {name: mean_errors(rows) for name, rows in errors.items()}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        count = len(self.splits[self.test_split])
        chosen = torch.utils.data.Subset(self.splits[self.test_split], [0, count // 3, 2 * count // 3, count - 1])
        batch = batches.first(chosen, 4)
        series = (batch["past"], batch["future"], self.forecast(backbone, batch))
        windows = [*zip(*(x[..., -1].float().cpu().numpy() for x in series), strict=True)]
        title = f"LSTF {self.dataset} {self.features}: forecasts of the target on the test split"
        draw_grid([(title, windows)], _draw_forecast, folder / "forecasts.png", size=(9.0, 2.1))


def _draw_forecast(axes: Any, window: Any) -> None:
    past, future, forecast = window
    past = past[-3 * len(future) :]
    axes.plot(range(1 - len(past), 1), past, color="0.55", label="past")
    for series, color, label in ((future, "black", "truth"), (forecast, "tab:orange", "forecast")):
        axes.plot(range(1, len(future) + 1), series, color=color, label=label)
    axes.set_xlabel("forecast step")
    axes.legend(loc="upper left", ncols=3, frameon=False)


Sums = tuple[float, float, int]
"""Sums of squared and absolute errors, in double precision, and the number of values."""


def error_sums(forecast: Tensor, truth: Tensor) -> Sums:
    """Return the sums over all values of a batch."""
    difference = forecast.double() - truth.double()
    return difference.square().sum().item(), difference.abs().sum().item(), difference.numel()


def mean_errors(batches: Sequence[Sums]) -> dict[str, float]:
    """Return the mean errors over all batches."""
    squared, absolute, counts = zip(*batches, strict=True)
    return {
        "mse": mean_over_batches(zip(squared, counts, strict=True)),
        "mae": mean_over_batches(zip(absolute, counts, strict=True)),
    }


MOST_WINDOWS = 8_192  # of the ridge regression: a larger set is subsampled
STRENGTH = 0.01
"""Ridge penalty per window; values are standardized."""


class RidgeForecast:
    """Forecast each channel from its own past by ridge regression.

    Args:
        windows: windows of the training split; a large set is subsampled at equal distances.
    """

    def __init__(self, windows: Windows) -> None:
        count = min(len(windows), MOST_WINDOWS)
        batch = windows.__getitems__([i * len(windows) // count for i in range(count)])
        maps = []
        for past, future in zip(batch["past"].unbind(2), batch["future"].unbind(2), strict=True):
            x, y = _with_one(past).double(), future.double()
            penalty = STRENGTH * count * torch.eye(x.shape[1], dtype=torch.float64)
            maps.append(torch.linalg.solve(x.T @ x + penalty, x.T @ y))
        self.maps = torch.stack(maps)  # [C, N + 1, T]

    def __call__(self, past: Tensor) -> Tensor:
        """Forecast [B, T, C] from [B, N, C]."""
        rows = torch.stack([_with_one(channel) for channel in past.unbind(2)])
        return (rows.double() @ self.maps).permute(1, 2, 0).to(past.dtype)


def _with_one(past: Tensor) -> Tensor:
    return torch.cat([past, past.new_ones(len(past), 1)], dim=1)
