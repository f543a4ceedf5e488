"""Informer: counts, slots, shapes, the forms of normalization, and that every attention can train in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cab import UserError, build_backbone
from tests.helpers.backbones.records import RECORDS


def inputs(batch: int = 4, past: int = 50, known: int = 9, horizon: int = 7, channels: int = 3) -> list[Tensor]:
    series = torch.randn(batch, past, channels).cumsum(dim=1)
    time = torch.rand(batch, past + horizon, 4) - 0.5
    return [series, time[:, :past], series[:, -known:], time[:, past - known :]]


def informer(attention: str = "vanilla", pattern: str = "NC", **options: Any) -> Any:
    return build_backbone(
        "informer", attention=attention, pattern=pattern, **{**RECORDS["informer"].options, **options}
    )


@pytest.mark.parametrize(("encoder", "decoder", "count"), [(2, 1, 11_308_545), (3, 2, 19_452_929)])
def test_published_counts_of_one_channel(encoder: int, decoder: int, count: int) -> None:
    with torch.device("meta"):
        backbone = build_backbone("informer", pattern="NC", channels=1, encoder_layers=encoder, decoder_layers=decoder)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == count


@pytest.mark.parametrize(
    ("layers", "past", "memory"), [(1, 51, 51), (2, 50, 25), (2, 51, 26), (3, 51, 13), (4, 51, 7), (3, 1, 1)]
)
def test_shapes_and_distilling(layers: int, past: int, memory: int) -> None:
    backbone = informer(encoder_layers=layers, decoder_layers=2)
    series, past_time, known, decoder_time = inputs(batch=3, past=past, known=min(past, 9), horizon=7)
    assert backbone(series, past_time, known, decoder_time).shape == (3, 7, 3)
    assert backbone.encode(series, past_time).shape == (3, memory, 16)  # half of each, rounded up


@pytest.mark.parametrize("pattern", ["NS", "CS", "NC"])
def test_without_attention_in_a_slot(pattern: str) -> None:
    """Without cross attention the past reaches the forecast through ``known`` alone."""
    backbone = informer("none", pattern).eval()
    past, past_time, known, decoder_time = inputs()
    forecast = backbone(past, past_time, known, decoder_time)
    same = torch.equal(forecast, backbone(past + torch.randn_like(past), past_time, known, decoder_time))
    assert same == (pattern == "NC")
    assert not torch.equal(forecast, backbone(past, past_time, known + 1, decoder_time))


@pytest.mark.parametrize("normalization", ["window", "seasonal"])
def test_normalized_forecasts_follow_level_and_scale_of_each_channel(normalization: str) -> None:
    backbone = informer(normalization=normalization, season=5).eval()
    torch.nn.init.normal_(backbone.projection.weight)
    past, past_time, known, decoder_time = inputs()
    plain = backbone(past, past_time, known, decoder_time)
    scale, level = torch.tensor([3.0, 0.5, 41.0]), torch.tensor([100.0, -7.0, 0.3])
    moved = backbone(past * scale + level, past_time, known * scale + level, decoder_time)
    torch.testing.assert_close((moved - level) / scale, plain, rtol=1e-3, atol=1e-3)


def test_a_constant_window_is_forecast_as_a_number() -> None:
    past, past_time, known, decoder_time = inputs()
    output = informer(normalization="window").eval()(
        torch.full_like(past, 6.0), past_time, torch.full_like(known, 6.0), decoder_time
    )
    torch.testing.assert_close(output, torch.full_like(output, 6.0), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("season", "horizon"), [(5, 3), (5, 5), (5, 13), (50, 7)])
def test_seasonal_form_starts_from_the_last_season(season: int, horizon: int) -> None:
    backbone = informer(normalization="seasonal", season=season).eval()
    past, past_time, known, decoder_time = inputs(horizon=horizon)
    expected = torch.stack([past[:, 50 - season + step % season] for step in range(horizon)], dim=1)
    torch.testing.assert_close(backbone(past, past_time, known, decoder_time), expected, rtol=1e-4, atol=1e-4)


def test_a_season_longer_than_the_past_is_refused() -> None:
    with pytest.raises(UserError, match="steps of past"):
        informer(normalization="seasonal", season=60)(*inputs())
