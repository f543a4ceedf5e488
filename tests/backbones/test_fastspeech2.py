"""FastSpeech 2: lengths, buckets, padding, learning, mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.fastspeech2 import FastSpeech2, predicted_durations, regulate_length
from cab import UserError, build_backbone
from tests.backbones.learning import losses, same_gradients

SMALL = {"num_tokens": 19, "embed_dim": 16, "num_heads": 2, "ffn_dim": 24, "kernel_size": 5}
SMALL |= {"num_mels": 7, "encoder_layers": 2, "decoder_layers": 1, "num_bins": 12}


def fastspeech2(attention: str = "vanilla", **options: Any) -> FastSpeech2:
    backbone = build_backbone("fastspeech2", attention=attention, pattern="NS", **{**SMALL, **options})
    assert isinstance(backbone, FastSpeech2)
    return backbone


LENGTHS = (9, 4, 7)


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
    x = torch.randn(3, 5, 2)
    durations = torch.tensor([[2, 0, 3, 1, 0], [0, 0, 0, 0, 1], [4, 4, 0, 4, 4]])
    frames, padding = regulate_length(x, durations)
    assert frames.shape == (3, 16, 2)
    for row in range(3):
        expected = [x[row, token] for token in range(5) for _ in range(int(durations[row, token]))]
        assert torch.equal(frames[row, : len(expected)], torch.stack(expected))
        assert padding[row].tolist() == [False] * len(expected) + [True] * (16 - len(expected))
        assert not frames[row, len(expected) :].any()


def test_predicted_durations_are_rounded_cut_and_never_nothing() -> None:
    log_duration = torch.tensor([[0.0, 1.0, 2.0, 5.0], [-3.0, 0.1, 0.2, 9.0], [-5.0, -5.0, -5.0, -5.0]])
    mask = torch.tensor([[False] * 4, [False, False, False, True], [True, False, False, False]])
    durations = predicted_durations(log_duration, mask, max_frames=20)
    # exp(1) - 1 = 1.7, exp(2) - 1 = 6.4, exp(5) - 1 = 147
    assert durations.tolist() == [[0, 2, 6, 12], [1, 0, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("attention", ["vanilla", "local", "abc", "lara"])
@pytest.mark.parametrize("postnet", [False, True])
def test_a_padded_sentence_is_spoken_as_alone(attention: str, postnet: bool) -> None:
    backbone = fastspeech2(attention, postnet=postnet).double().eval()
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in batch().items()}
    together = backbone(**inputs)
    for row, length in enumerate(LENGTHS):
        alone = backbone(**{k: v[row : row + 1, :length] for k, v in inputs.items() if k != "padding_mask"})
        frames = alone.mel.shape[1]
        torch.testing.assert_close(together.mel[row, :frames], alone.mel[0], atol=1e-6, rtol=1e-5)
        assert together.mel_padding[row].sum() == together.mel.shape[1] - frames
        torch.testing.assert_close(together.log_duration[row, :length], alone.log_duration[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(together.energy[row, :length], alone.energy[0], atol=1e-6, rtol=1e-5)


def test_given_pitch_moves_frames_by_its_bucket() -> None:
    backbone = fastspeech2(pitch_range=(-1.0, 1.0)).eval()
    inputs = batch()
    bounds = backbone.adaptor.pitch_bounds
    assert torch.allclose(bounds, torch.linspace(-1, 1, 11))
    same = backbone(**{**inputs, "pitch": torch.full((3, 9), 0.05)}).mel
    assert torch.equal(same, backbone(**{**inputs, "pitch": torch.full((3, 9), 0.15)}).mel)
    assert not torch.equal(same, backbone(**{**inputs, "pitch": torch.full((3, 9), 0.25)}).mel)
    below = backbone(**{**inputs, "pitch": torch.full((3, 9), -50.0)}).mel
    assert torch.equal(below, backbone(**{**inputs, "pitch": torch.full((3, 9), -1.01)}).mel)


def test_without_targets_it_predicts_them() -> None:
    inputs = batch()
    output = fastspeech2().eval()(inputs["tokens"], inputs["padding_mask"])
    assert output.mel.shape[:2] == output.mel_padding.shape
    assert (~output.mel_padding).sum(dim=1).min() >= 1
    assert output.mel.isfinite().all()


def loss(backbone: Any) -> Tensor:
    inputs = batch()
    output = backbone(**inputs)
    real = ~inputs["padding_mask"]
    target = torch.linspace(-1, 1, 7).expand_as(output.mel)
    errors = F.l1_loss(output.mel[~output.mel_padding], target[~output.mel_padding])
    errors = errors + F.mse_loss(output.log_duration[real], inputs["durations"][real].add(1).log())
    return errors + F.mse_loss(output.pitch[real], inputs["pitch"][real]) + 0 * output.energy.sum()


@pytest.mark.parametrize("attention", ["vanilla", "abc", "s4d", "performer"])
def test_it_learns_a_batch(attention: str) -> None:
    def fixed(backbone: Any) -> Tensor:
        torch.manual_seed(1)
        return loss(backbone)

    found = losses(fastspeech2(attention, predictor_dropout=0.0), fixed)
    assert found[-1] < 0.7 * found[0]


def test_recomputed_activations_give_the_same_gradients() -> None:
    assert same_gradients(fastspeech2(postnet=True), loss) < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.full((3, 9), 19)}, "ids from 19 to 19, the vocabulary has 0 to 18"),
        ({"tokens": torch.zeros(0, 9, dtype=torch.long)}, r"\(0, 9\)"),
        ({"padding_mask": torch.ones(3, 9, dtype=torch.bool)}, "length zero"),
        ({"padding_mask": torch.zeros(3, 9)}, "must be bool"),
        ({"padding_mask": torch.zeros(3, 8, dtype=torch.bool)}, r"\[3, 8\]"),
        ({"durations": torch.zeros(3, 9, dtype=torch.long)}, "a frame in each row"),
        ({"durations": torch.full((3, 9), -1)}, "negative"),
        ({"durations": torch.ones(3, 9)}, "whole numbers"),
        ({"durations": torch.full((3, 9), 500)}, "max_frames"),
        ({"pitch": torch.zeros(3, 8)}, r"pitch must be \[3, 9\]"),
    ],
)
def test_mistakes_are_named(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fastspeech2()(**{**batch(), **change})


def test_ranges_must_be_ranges() -> None:
    with pytest.raises(UserError, match="pitch_range"):
        fastspeech2(pitch_range=(1.0, 1.0))
