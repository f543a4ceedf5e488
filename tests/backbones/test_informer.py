"""Informer: counts, slots, shapes, the forms of normalisation, and that every attention can train in it."""

from __future__ import annotations

import csv
from typing import Any

import pytest
import torch
from torch import Tensor

from cab import Pattern, UserError, build_backbone
from cab.results import PUBLISHED

SMALL = {"channels": 3, "embed_dim": 16, "num_heads": 2, "ffn_dim": 32, "dropout": 0.0}


def inputs(batch: int = 4, past: int = 50, known: int = 9, horizon: int = 7, channels: int = 3) -> list[Tensor]:
    series = torch.randn(batch, past, channels).cumsum(dim=1)
    time = torch.rand(batch, past + horizon, 4) - 0.5
    return [series, time[:, :past], series[:, -known:], time[:, past - known :]]


def informer(attention: str = "vanilla", pattern: str = "NC", **options: Any) -> Any:
    return build_backbone("informer", attention=attention, pattern=pattern, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("channels", "encoder", "decoder", "count"),
    [
        (7, 2, 1, 11_330_055),
        (321, 3, 2, 20_600_129),
        (12, 3, 2, 19_492_364),
        (1, 2, 1, 11_308_545),
        (1, 3, 2, 19_452_929),
    ],
)
def test_published_counts(channels: int, encoder: int, decoder: int, count: int) -> None:
    with torch.device("meta"):
        backbone = build_backbone(
            "informer", pattern="NC", channels=channels, encoder_layers=encoder, decoder_layers=decoder
        )
    assert sum(parameter.numel() for parameter in backbone.parameters()) == count


def test_counts_of_table_19() -> None:
    sizes = {"informer_ett": (7, 2, 1), "informer_ecl": (321, 3, 2), "informer_weather": (12, 3, 2)}
    with (PUBLISHED / "parameters_reproduced.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["backbone"] in sizes]
    assert len(rows) == 12
    for row in rows:
        channels, encoder, decoder = sizes[row["backbone"]]
        with torch.device("meta"):
            backbone = build_backbone(
                "informer",
                attention=row["attention"],
                pattern=row["pattern"],
                channels=channels,
                encoder_layers=encoder,
                decoder_layers=decoder,
            )
        assert sum(parameter.numel() for parameter in backbone.parameters()) == int(row["params"]), row


def test_slots() -> None:
    slots = informer(encoder_layers=3, decoder_layers=2).attention_slots()
    assert [pattern for _, pattern in slots] == [Pattern.NS] * 3 + [Pattern.CS, Pattern.NC] * 2
    assert slots[0][0] == "encoder.0.self_attention"


def test_the_attention_under_test_is_in_its_slots_alone() -> None:
    backbone = informer("abc", "NC", elsewhere={"NS": "probsparse", "CS": {"name": "probsparse", "mix": True}})
    names = {path: type(backbone.get_submodule(path)).__name__ for path, _ in backbone.attention_slots()}
    assert names == {
        "encoder.0.self_attention": "ProbSparseAttention",
        "encoder.1.self_attention": "ProbSparseAttention",
        "decoder.0.self_attention": "ProbSparseAttention",
        "decoder.0.cross_attention": "ABCAttention",
    }
    assert backbone(*inputs()).isfinite().all()


def test_shapes_and_distilling() -> None:
    backbone = informer(encoder_layers=3)
    past, past_time, known, decoder_time = inputs(past=51)
    assert backbone(past, past_time, known, decoder_time).shape == (4, 7, 3)
    assert backbone.encode(past, past_time).shape == (4, 13, 16)  # 51, 26, 13


def test_window_normalisation_follows_level_and_scale() -> None:
    backbone = informer(normalization="window").eval()
    past, past_time, known, decoder_time = inputs()
    plain = backbone(past, past_time, known, decoder_time)
    moved = backbone(past * 3 + 100, past_time, known * 3 + 100, decoder_time)
    torch.testing.assert_close(moved, plain * 3 + 100, rtol=1e-3, atol=1e-3)


def test_seasonal_form_starts_from_the_last_season() -> None:
    backbone = informer(normalization="seasonal", season=5).eval()
    past, past_time, known, decoder_time = inputs()
    expected = torch.cat([past[:, -5:], past[:, -5:-3]], dim=1)
    torch.testing.assert_close(backbone(past, past_time, known, decoder_time), expected, rtol=1e-4, atol=1e-4)


def test_recomputing_activations_changes_nothing() -> None:
    plain, thrifty = informer(), informer(checkpoint_activations=True)
    thrifty.load_state_dict(plain.state_dict())
    batch = inputs()
    results = []
    for backbone in (plain, thrifty):
        output = backbone(*batch)
        results.append([output, *torch.autograd.grad(output.square().sum(), list(backbone.parameters()))])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("pattern", ["NS", "CS", "NC"])
@pytest.mark.parametrize("attention", ["vanilla", "abc", "performer", "cosformer", "none"])
def test_it_learns_a_batch(attention: str, pattern: str) -> None:
    backbone = informer(attention, pattern)
    *batch, future = (*inputs(), torch.randn(4, 7, 3))
    optimizer = torch.optim.Adam(backbone.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = (backbone(*batch) - future).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if not losses and attention != "none":  # without cross attention nothing reads the encoder
            assert all(parameter.grad is not None for parameter in backbone.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: [x[0][..., :2], *x[1:]], r"past must be \[batch, length, 3\]"),
        (lambda x: [x[0], x[1][..., :3], *x[2:]], "past_time"),
        (lambda x: [*x[:3], x[3][:, :9]], "longer than known"),
        (lambda x: [x[0][:0], *x[1:]], "not empty"),
    ],
)
def test_shapes_that_do_not_fit(change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        informer()(*change(inputs()))


def test_options_that_cannot_be() -> None:
    with pytest.raises(UserError, match="none, window or seasonal"):
        informer(normalization="batch")
    past, past_time, known, decoder_time = inputs()
    with pytest.raises(UserError, match="steps of past"):
        informer(normalization="seasonal", season=60)(past, past_time, known, decoder_time)
