"""Transformer-TTS: decoding equals training, causality, padding, learning, mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backbones.transformer_tts import TransformerTTS
from cab import build_backbone
from tests.helpers.backbones.records import RECORDS

OPTIONS = {"local": {"window_size": 3}, "abc": {"num_landmarks": 4}, "cosformer": {"reweighting_length": 30}}
OPTIONS |= {"performer": {"num_features": 8}}
SOURCE, STEPS = (8, 5, 3), (7, 9, 4)


def tts(attention: str = "vanilla", pattern: str = "CS", **options: Any) -> TransformerTTS:
    spec = {"name": attention, **OPTIONS.get(attention, {})}
    backbone = build_backbone(
        "transformer_tts", attention=spec, pattern=pattern, **{**RECORDS["transformer_tts"].options, **options}
    )
    assert isinstance(backbone, TransformerTTS)
    for name, parameter in backbone.named_parameters():
        if name.endswith(("alpha", "norm.weight", "norm.bias")):
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return backbone


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, 19, (3, max(SOURCE)))
    mask = torch.arange(max(SOURCE)) >= torch.tensor(SOURCE).unsqueeze(1)
    frames = torch.randn(3, max(STEPS), 6)
    frame_padding = torch.arange(max(STEPS)) >= torch.tensor(STEPS).unsqueeze(1)
    return tokens, mask, frames, frame_padding


CAUSAL = [("vanilla", "CS"), ("abc", "CS"), ("local", "CS"), ("longshort", "CS"), ("s4d", "CS"), ("cosformer", "CS")]
CROSS = [("vanilla", "CC"), ("abc", "CC"), ("performer", "CC"), ("linear", "CC")]
STACKS = [("abc,local+linear", "CS"), ("linear+abc,vanilla", "CC")]


@pytest.mark.parametrize(("attention", "pattern"), CAUSAL + CROSS + STACKS)
def test_synthesis_step_by_step_is_teacher_forcing(attention: str, pattern: str) -> None:
    """The frames that synthesis made, given back as teacher, are predicted again, padding and all."""
    backbone = tts(attention, pattern).double().eval()
    torch.nn.init.constant_(backbone.stop.bias, -1.0)
    torch.nn.init.normal_(backbone.stop.weight, std=1.0)
    tokens, mask, *_ = batch()
    state = backbone.init_state(tokens, mask)
    previous, steps, stops = torch.zeros(3, 6, dtype=torch.float64), [], []
    for _ in range(11):
        previous, stop, state = backbone.step(previous, state)
        steps.append(previous)
        stops.append(stop)
    output = backbone(tokens, mask, torch.stack(steps, dim=1))
    torch.testing.assert_close(output.before, torch.stack(steps, dim=1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(output.stop_logits, torch.stack(stops, dim=1), atol=1e-6, rtol=1e-5)

    frames, num_frames = backbone.synthesize(tokens, mask, max_steps=11)
    ended = (output.stop_logits.sigmoid() > 0.5).int()
    expected = torch.where(ended.any(dim=1), ended.argmax(dim=1) + 1, 11)
    assert num_frames.tolist() == (2 * expected).tolist()
    for row, count in enumerate(expected.tolist()):
        after = backbone.postnet(output.before[row : row + 1, :count], None)
        torch.testing.assert_close(frames[row, : 2 * count], after.reshape(-1, 3), atol=1e-6, rtol=1e-5)
        assert not frames[row, 2 * count :].any()


@pytest.mark.parametrize("attention", ["vanilla", "abc", "performer"])
def test_synthesis_projects_the_encoded_phonemes_once(attention: str) -> None:
    backbone = tts(attention, "CC").eval()
    torch.nn.init.constant_(backbone.stop.bias, -100.0)
    tokens, mask, *_ = batch()
    read: list[int] = []
    for path, pattern in backbone.attention_layers():
        if pattern == "CC":
            backbone.get_submodule(f"{path}.k_proj").register_forward_hook(lambda *_: read.append(1))
    frames, _ = backbone.synthesize(tokens, mask, max_steps=5)
    assert frames.shape == (3, 10, 3)
    assert len(read) == 2


def test_padding_does_not_enter_the_statistics_of_batch_norm() -> None:
    *_, frames, frame_padding = batch()
    seen = []
    for noise in (0.0, 100.0):
        torch.manual_seed(2)
        backbone = tts().train()
        first = backbone.postnet.layers[0]
        with torch.no_grad():
            backbone.postnet(frames.masked_fill(frame_padding.unsqueeze(-1), noise), frame_padding)
        seen.append(torch.cat([m.running_var for m in backbone.postnet.modules() if hasattr(m, "running_var")]))
    assert torch.equal(*seen)
    real = first.conv(frames.masked_fill(frame_padding.unsqueeze(-1), 0.0))[~frame_padding]
    torch.testing.assert_close(first.norm.running_mean, 0.1 * real.mean(dim=0), atol=1e-5, rtol=1e-4)


def test_a_beginning_is_heard_as_it_was_said() -> None:
    """And no row ends in it."""
    backbone = tts().double().eval()
    torch.nn.init.constant_(backbone.stop.bias, 100.0)
    tokens, mask, frames, _ = batch()
    beginning = frames[:, :4].double()
    spoken, num_frames = backbone.synthesize(tokens, mask, max_steps=9, prompt_frames=beginning)
    assert num_frames.tolist() == [10, 10, 10]
    own = backbone(tokens, mask, torch.cat([beginning, torch.zeros(3, 1, 6)], dim=1).double()).before[:, 4:]
    expected = backbone.postnet(torch.cat([beginning, own], dim=1), None)
    torch.testing.assert_close(spoken, expected.reshape(3, 10, 3), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("dropout", "same"), [(0.0, True), (0.5, False)])
def test_the_prenet_drops_in_evaluation_too_as_it_is_told(dropout: float, same: bool) -> None:
    backbone, inputs = tts(prenet_dropout=dropout).eval(), batch()
    assert torch.equal(backbone(*inputs).after, backbone(*inputs).after) is same
