"""FastSpeech 2: lengths, buckets, padding, learning, mistakes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.fastspeech2 import FastSpeech2, predicted_durations, regulate_length
from cab import UserError
from tests.helpers.backbones.records import RECORDS


def fastspeech2(attention: str = "vanilla", **options: Any) -> FastSpeech2:
    backbone = RECORDS["fastspeech2"].build("fastspeech2", attention=attention, **options)
    assert isinstance(backbone, FastSpeech2)
    return backbone.train()


LENGTHS = (9, 4, 7)
PREDICTED = ("log_duration", "pitch", "energy")


def batch() -> dict[str, Tensor]:
    """Three sentences of different lengths; what stands at the padding would be noticed."""
    tokens = torch.randint(1, 19, (3, 9))
    mask = torch.arange(9) >= torch.tensor(LENGTHS).unsqueeze(1)
    return {
        "tokens": tokens,
        "padding_mask": mask,
        "durations": torch.randint(0, 5, (3, 9)) + (torch.arange(9) == 0),
        "pitch": torch.randn(3, 9),
        "energy": torch.randn(3, 9).masked_fill(mask, 1e4),
    }


def test_lengths_against_a_plain_loop() -> None:
    x = torch.randn(3, 5, 2, requires_grad=True)
    durations = torch.tensor([[2, 0, 3, 1, 0], [0, 0, 0, 0, 1], [4, 4, 0, 4, 4]])
    frames, padding = regulate_length(x, durations, 16)
    assert frames.shape == (3, 16, 2)
    for row in range(3):
        expected = [x[row, token] for token in range(5) for _ in range(int(durations[row, token]))]
        assert torch.equal(frames[row, : len(expected)], torch.stack(expected))
        assert padding[row].tolist() == [False] * len(expected) + [True] * (16 - len(expected))
        assert not frames[row, len(expected) :].any()
    (gradient,) = torch.autograd.grad(frames.sum(), x)
    assert torch.equal(gradient, durations.unsqueeze(-1).expand_as(x).float())
    for a, b in zip(regulate_length(x, durations, 16, num_frames=16), (frames, padding), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(UserError, match="16 frames, more than the 15"):
        regulate_length(x, durations, 15, num_frames=16)


def test_predicted_durations_are_rounded_cut_and_never_nothing() -> None:
    log_duration = torch.tensor([[0.0, 1.0, 2.0, 5.0], [-3.0, 0.1, 0.2, 9.0], [-5.0, -5.0, -5.0, -5.0]])
    mask = torch.tensor([[False] * 4, [False, False, False, True], [True, False, False, False]])
    durations = predicted_durations(log_duration, mask, max_frames=20)
    # exp(1) - 1 = 1.7, exp(2) - 1 = 6.4, exp(5) - 1 = 147
    assert durations.tolist() == [[0, 2, 6, 12], [1, 0, 0, 0], [0, 1, 0, 0]]
    lost = torch.tensor([[torch.nan, torch.nan], [torch.nan, torch.inf], [1e30, 0.9]])
    assert predicted_durations(lost, None, max_frames=7).tolist() == [[1, 0], [0, 7], [7, 0]]


@pytest.mark.parametrize("name", ["pitch", "energy"])
def test_buckets_are_equal_parts_of_the_range(name: str) -> None:
    """12 buckets are 10 parts of the range, its least value in the one below it, and what lies above it."""
    adaptor = fastspeech2("vanilla", **{f"{name}_range": (-1.0, 1.5)}).eval().adaptor
    bounds = [-1.0 + 0.25 * i for i in range(11)]
    values = torch.tensor([[-50.0, -1.0, -0.99, -0.75, -0.74, 0.1, 1.49, 1.5, 1.51, 50.0]])
    buckets = [sum(bound < value for bound in bounds) for value in values[0].tolist()]
    assert buckets == [0, 0, 1, 1, 2, 5, 10, 10, 11, 11]
    x, ones, low = torch.randn(1, 10, 16), torch.ones(1, 10, dtype=torch.long), torch.full((1, 10), -3.0)
    given = {"pitch": low, "energy": low, name: values}
    other = {"pitch": adaptor.energy_embedding, "energy": adaptor.pitch_embedding}[name]
    table = {"pitch": adaptor.pitch_embedding, "energy": adaptor.energy_embedding}[name]
    found, _, _ = adaptor(x, None, ones, given["pitch"], given["energy"])
    # of the other's bounds -4, -3.2, -2.4 and so on, two are below -3
    torch.testing.assert_close(found, x + table.weight[buckets] + other.weight[2])


def test_each_prediction_reads_what_comes_before_it() -> None:
    """Durations and pitch are predicted from the tokens, energy also from the given pitch."""
    backbone, inputs = fastspeech2().eval(), batch()
    output = backbone(**inputs)
    high = backbone(**{**inputs, "pitch": inputs["pitch"] + 5, "energy": inputs["energy"] - 5})
    assert torch.equal(output.log_duration, high.log_duration)
    assert torch.equal(output.pitch, high.pitch)
    assert not torch.allclose(output.energy, high.energy)
    loud = backbone(**{**inputs, "energy": inputs["energy"] - 5})
    assert all(torch.equal(getattr(output, name), getattr(loud, name)) for name in PREDICTED)
    assert not torch.allclose(output.mel, loud.mel)


def test_positions_are_scaled_sinusoids_of_phonemes_and_of_frames() -> None:
    backbone, inputs = fastspeech2().eval(), batch()
    seen: dict[str, Tensor] = {}
    for name in ("encoder", "decoder"):
        getattr(backbone, f"{name}_positions").alpha.data.fill_({"encoder": 0.7, "decoder": -1.3}[name])
        block = getattr(backbone, name)[0]
        block.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
    mel_padding = backbone(**inputs).mel_padding

    def sinusoid(position: int) -> Tensor:
        angles = [(position + 2) / 10000 ** (k / 7) for k in range(8)]
        return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles])

    table = torch.stack([sinusoid(i) for i in range(mel_padding.shape[1])])
    expected = backbone.embedding(inputs["tokens"]) + 0.7 * table[:9]
    real = ~inputs["padding_mask"]
    torch.testing.assert_close(seen["encoder"][real], expected[real], atol=1e-5, rtol=1e-4)
    # frames of one token differ by their positions alone
    plain = seen["decoder"] + 1.3 * table
    first = int(inputs["durations"][0, 0])
    torch.testing.assert_close(plain[0, :first], plain[0, :1].expand(first, -1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(plain[mel_padding], torch.zeros_like(plain[mel_padding]), atol=1e-5, rtol=0)


def test_without_targets_it_speaks_what_it_predicts() -> None:
    inputs = batch()
    tokens, mask = inputs["tokens"], inputs["padding_mask"]
    backbone = fastspeech2(max_frames=40).eval()
    backbone.adaptor.duration.output.bias.data.fill_(1.3)
    output = backbone(tokens, mask)
    durations = (output.log_duration.double().exp() - 1).round().long().clamp(min=0).masked_fill(mask, 0)
    assert len(durations[~mask].unique()) > 1
    assert (~output.mel_padding).sum(dim=1).tolist() == durations.sum(dim=1).tolist()
    given = backbone(tokens, mask, durations=durations, pitch=output.pitch, energy=output.energy)
    assert torch.equal(output.mel, given.mel)
    backbone.adaptor.duration.output.bias.data.fill_(30.0)
    assert backbone(tokens, mask).mel.shape == (3, 40, 7)


def test_weights_begin_as_in_fairseq() -> None:
    backbone = fastspeech2(embed_dim=64, ffn_dim=96, num_tokens=400)
    for conv in (m for m in backbone.modules() if isinstance(m, nn.Conv1d)):
        fan = conv.kernel_size[0] * (conv.in_channels + conv.out_channels)
        bound = math.sqrt(2) * math.sqrt(6 / fan)
        assert 0.99 * bound < conv.weight.abs().max() <= bound
    adaptor = backbone.adaptor
    for table in (backbone.embedding, adaptor.pitch_embedding, adaptor.energy_embedding):
        assert table.weight.std().item() == pytest.approx(64**-0.5, rel=0.1)
