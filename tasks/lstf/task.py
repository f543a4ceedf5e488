"""LSTF protocol: windows, losses, scores in standardized units, and naive forecasts as baselines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone, Task, UserError, register_task
from cab.backbone_protocols import Forecaster
from cab.registry.options import Positive
from cab.task import Batches, Metric
from tasks.lstf.data import Series, Windows, read_series, standardize
from tasks.lstf.synthetic import HOURS, horizon, levels_of, synthetic_series
from tasks.pictures import draw_grid

UNIT = "standardized"  # per channel, by the training part
PUBLISHED_BATCH = 32


@register_task(
    "lstf",
    paper="Zhou et al. 2021",
    datasets="etth1 etth2 ettm1 ecl weather synthetic",
    backbones={"informer": "NS CS NC"},
)
class LSTF(Task):
    """Forecast the next ``pred_len`` steps of a series from the last ``seq_len``.

    Args:
        dataset: etth1, etth2, ettm1, ecl, weather, or synthetic.
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

    def __init__(
        self,
        *,
        dataset: str,
        features: Literal["M", "S"] = "M",
        seq_len: Positive = 96,
        label_len: Positive = 48,
        pred_len: Positive = 24,
        hours: Positive = 6,
        evaluation_batch_size: Positive = 32,
        test_windows: Literal["all", "whole_batches"] = "all",
    ) -> None:
        self.dataset = dataset
        self.features = features
        self.seq_len, self.label_len, self.pred_len = seq_len, label_len, pred_len
        self.hours = hours
        self.evaluation_batch_size = evaluation_batch_size
        self.test_windows = test_windows

    @property
    def config_variant(self) -> str:
        hours = f" hours {self.hours}" if self.dataset == "synthetic" and self.hours != HOURS else ""
        return self.features + hours

    @property
    def metrics(self) -> tuple[Metric, ...]:
        names = [("mse", UNIT + "^2", True), ("mae", UNIT, True)]
        if self.test_windows == "whole_batches":
            names += [("mse_all_windows", UNIT + "^2", False), ("mae_all_windows", UNIT, False)]
        names += [(f"mse_{level}", UNIT + "^2", False) for level in self._levels]
        return tuple(Metric(name, unit, higher_is_better=False, primary=primary) for name, unit, primary in names)

    @property
    def _levels(self) -> Mapping[str, slice]:
        """Return the steps of the horizon with separate scores, for generated series with the full horizon."""
        is_whole = self.dataset == "synthetic" and self.pred_len == horizon(self.hours)
        return levels_of(self.hours) if is_whole else {}

    def check(self) -> None:
        if self.label_len > self.seq_len:
            raise UserError(f"task.label_len {self.label_len} must not exceed task.seq_len {self.seq_len}")

    def setup(self, data_root: Path | None) -> None:
        series = synthetic_series(self.hours) if self.dataset == "synthetic" else read_series(self.dataset, data_root)
        self.series = series
        values = standardize(series.values, series.split[0])
        if self.features == "S":
            values = values[:, -1:]
        self.num_channels = values.shape[1]
        train, validation, test = series.split
        back = self.seq_len if series.episode == 1 else 0  # an episode contains its own past
        self._training = self._windows(series, values, 0, train)
        self._validation = self._windows(series, values, train - back, train + validation)
        self._test = self._windows(series, values, train + validation - back, train + validation + test)

    def _windows(self, series: Series, values: Any, start: int, stop: int) -> Windows:
        windows = Windows(
            torch.from_numpy(values[max(start, 0) : stop]),
            torch.from_numpy(series.calendar[max(start, 0) : stop]),
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

    @property
    def training_set(self) -> Windows:
        return self._training

    def forecast(self, backbone: Backbone, batch: dict[str, Tensor]) -> Tensor:
        """Return the forecast [B, pred_len, C]."""
        return backbone(batch["past"], batch["past_time"], batch["known"], batch["decoder_time"])

    def loss(self, backbone: Backbone, batch: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(self.forecast(backbone, batch), batch["future"])

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        error = Error()
        for batch in batches(self._validation, self.evaluation_batch_size):
            error.add(self.forecast(backbone, batch), batch["future"])
        return error.mse

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        scored, every = Error(), Error()
        levels = {f"mse_{level}": (steps, Error()) for level, steps in self._levels.items()}
        left = self._scored_windows()
        for batch in batches(self._test, self.evaluation_batch_size):
            forecast, future = self.forecast(backbone, batch), batch["future"]
            every.add(forecast, future)
            scored.add(forecast[:left], future[:left])
            left = max(0, left - len(future))
            for steps, error in levels.values():
                error.add(forecast[:, steps], future[:, steps])
        scores = {"mse": scored.mse, "mae": scored.mae}
        if self.test_windows == "whole_batches":
            scores |= {"mse_all_windows": every.mse, "mae_all_windows": every.mae}
        return scores | {name: error.mse for name, (_, error) in levels.items()}

    def _scored_windows(self) -> int:
        if self.test_windows == "all":
            return len(self._test)
        whole = len(self._test) // PUBLISHED_BATCH * PUBLISHED_BATCH
        return whole or len(self._test)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of repeating the last value or the last day, and of the linear forecast.

        All are computed on the windows of ``mse`` and ``mae``.
        """
        value, day, linear = Error(), Error(), Error()
        ridge = RidgeForecast(self._training)
        steps = min(self.series.steps_per_day, self.seq_len)
        repeat = -(-self.pred_len // steps)
        for start in range(0, self._scored_windows(), 256):
            batch = self._test.__getitems__(list(range(start, min(start + 256, self._scored_windows()))))
            past, future = batch["past"], batch["future"]
            value.add(past[:, -1:].expand_as(future), future)
            day.add(past[:, -steps:].repeat(1, repeat, 1)[:, : self.pred_len], future)
            linear.add(ridge(past), future)
        return {
            "repeat_last_value": {"mse": value.mse, "mae": value.mae},
            "repeat_last_day": {"mse": day.mse, "mae": day.mae},
            "ridge": {"mse": linear.mse, "mae": linear.mae},
        }

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        count = len(self._test)
        chosen = torch.utils.data.Subset(self._test, [0, count // 3, 2 * count // 3, count - 1])
        batch = next(batches(chosen, 4))
        series = (batch["past"], batch["future"], self.forecast(backbone, batch))
        windows = [*zip(*(x[..., -1].float().cpu().numpy() for x in series), strict=True)]
        title = f"LSTF {self.dataset} {self.features}: forecasts of the target on the test part"
        draw_grid([(title, windows)], _draw_forecast, folder / "forecasts.png", size=(9.0, 2.1))


def _draw_forecast(axes: Any, window: Any) -> None:
    """Draw past, truth and forecast [steps] of a window."""
    past, future, forecast = window
    past = past[-3 * len(future) :]
    axes.plot(range(1 - len(past), 1), past, color="0.55", label="past")
    for series, color, label in ((future, "black", "truth"), (forecast, "tab:orange", "forecast")):
        axes.plot(range(1, len(future) + 1), series, color=color, label=label)
    axes.set_xlabel("forecast step")
    axes.legend(loc="upper left", ncols=3, frameon=False)


class Error:
    """Running mean of squared and absolute errors, in double precision."""

    def __init__(self) -> None:
        self._squared = self._absolute = 0.0
        self._count = 0

    def add(self, forecast: Tensor, truth: Tensor) -> None:
        difference = forecast.double() - truth.double()
        self._squared += difference.square().sum().item()
        self._absolute += difference.abs().sum().item()
        self._count += difference.numel()

    @property
    def mse(self) -> float:
        return self._squared / self._count

    @property
    def mae(self) -> float:
        return self._absolute / self._count


MOST_WINDOWS = 8_192
STRENGTH = 0.01
"""Ridge penalty per window; values are standardized."""


class RidgeForecast:
    """Forecast each channel from its own past by ridge regression.

    Args:
        windows: windows of the training part; a large set is subsampled at equal distances.
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
