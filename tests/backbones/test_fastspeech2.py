"""FastSpeech 2: lengths, durations, buckets, and speech without targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backbones.fastspeech2 import predicted_durations, regulate_length
from cab import UserError
from tests.helpers.backbones.records import RECORDS


def fastspeech2(**options: Any) -> Any:
    return RECORDS["fastspeech2"].build("fastspeech2", **options)


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


def test_without_targets_it_speaks_what_it_predicts() -> None:
    inputs = RECORDS["fastspeech2"].inputs()
    tokens, mask = inputs["tokens"], inputs["padding_mask"]
    backbone = fastspeech2(max_frames=40)
    backbone.adaptor.duration.output.bias.data.fill_(1.3)
    output = backbone(tokens, mask)
    durations = (output.log_duration.double().exp() - 1).round().long().clamp(min=0).masked_fill(mask, 0)
    assert len(durations[~mask].unique()) > 1
    assert (~output.mel_padding).sum(dim=1).tolist() == durations.sum(dim=1).tolist()
    given = backbone(tokens, mask, durations=durations, pitch=output.pitch, energy=output.energy)
    assert torch.equal(output.mel, given.mel)
    backbone.adaptor.duration.output.bias.data.fill_(30.0)
    assert backbone(tokens, mask).mel.shape == (3, 40, 7)
