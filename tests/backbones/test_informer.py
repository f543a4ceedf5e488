"""Informer: forecasts of normalized windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cab import UserError
from tests.helpers.backbones.records import RECORDS


def informer(**options: Any) -> Any:
    return RECORDS["informer"].build("informer", **options)


def series() -> list[torch.Tensor]:
    return [*RECORDS["informer"].inputs().values()]


@pytest.mark.parametrize("normalization", ["window", "seasonal"])
def test_normalized_forecasts_follow_level_and_scale_of_each_channel(normalization: str) -> None:
    backbone, (past, past_time, known, time) = informer(normalization=normalization, season=5), series()
    torch.nn.init.normal_(backbone.projection.weight)
    plain = backbone(past, past_time, known, time)
    scale, level = torch.tensor([3.0, 0.5, 41.0]), torch.tensor([100.0, -7.0, 0.3])
    moved = backbone(past * scale + level, past_time, known * scale + level, time)
    torch.testing.assert_close((moved - level) / scale, plain, rtol=1e-3, atol=1e-3)
    constant = backbone(torch.full_like(past, 6.0), past_time, torch.full_like(known, 6.0), time)
    torch.testing.assert_close(constant, torch.full_like(constant, 6.0), rtol=0, atol=1e-3)


@pytest.mark.parametrize("season", [3, 7, 50])
def test_seasonal_form_starts_from_the_last_season(season: int) -> None:
    given = series()
    expected = torch.stack([given[0][:, 50 - season + step % season] for step in range(7)], dim=1)
    forecast = informer(normalization="seasonal", season=season)(*given)
    torch.testing.assert_close(forecast, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="steps of past"):
        informer(normalization="seasonal", season=60)(*given)
