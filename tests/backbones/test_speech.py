"""FastSpeech 2: durations, speech without targets; Transformer-TTS: synthesis is teacher forcing."""

import pytest
import torch

from backbones.fastspeech2 import predicted_durations
from tests.helpers.backbones.records import RECORDS, small


def test_predicted_durations_are_rounded_cut_and_never_nothing():
    log_duration = torch.tensor([[0.0, 1.0, 2.0, 5.0], [-3.0, 0.1, 0.2, 9.0], [-5.0, -5.0, -5.0, -5.0]])
    mask = torch.tensor([[False] * 4, [False, False, False, True], [True, False, False, False]])
    durations = predicted_durations(log_duration, mask, max_frames=20)
    # exp(1) - 1 = 1.7, exp(2) - 1 = 6.4, exp(5) - 1 = 147
    assert durations.tolist() == [[0, 2, 6, 12], [1, 0, 0, 0], [0, 1, 0, 0]]
    lost = torch.tensor([[torch.nan, torch.nan], [torch.nan, torch.inf], [1e30, 0.9]])
    assert predicted_durations(lost, None, max_frames=7).tolist() == [[1, 0], [0, 7], [7, 0]]


def test_without_targets_it_speaks_what_it_predicts():
    tokens, mask, *_ = RECORDS["fastspeech2"].inputs().values()
    backbone = RECORDS["fastspeech2"].build("fastspeech2", max_frames=40)
    backbone.adaptor.duration.output.bias.data.fill_(1.3)
    output = backbone(tokens, mask)
    durations = (output.log_duration.double().exp() - 1).round().long().clamp(min=0).masked_fill(mask, 0)
    assert len(durations[~mask].unique()) > 1
    assert (~output.mel_padding).sum(dim=1).tolist() == durations.sum(dim=1).tolist()
    given = backbone(tokens, mask, durations=durations, pitch=output.pitch, energy=output.energy)
    assert torch.equal(output.mel, given.mel)
    backbone.adaptor.duration.output.bias.data.fill_(30.0)
    assert backbone(tokens, mask).mel.shape == (3, 40, 7)


@pytest.mark.parametrize(
    ("attention", "pattern"),
    [("abc", "CS"), ("s4d", "CS"), ("abc,local+linear", "CS"), ("performer", "CC"), ("linear+abc,vanilla", "CC")],
)
def test_synthesis_step_by_step_is_teacher_forcing(attention, pattern):
    """The frames that synthesis made, given back as teacher, are predicted again, padding and all."""
    backbone = small("transformer_tts", pattern, attention)
    torch.nn.init.constant_(backbone.stop.bias, -1.0)
    torch.nn.init.normal_(backbone.stop.weight, std=1.0)
    tokens, mask, *_ = RECORDS["transformer_tts"].inputs().values()
    read: list[int] = []
    cross = [x for name, x in backbone.named_modules() if "cross_attention" in name and name.endswith("k_proj")]
    for projection in cross:
        projection.register_forward_hook(lambda *_: read.append(1))
    state = backbone.init_state(tokens, mask)
    previous, steps, stops = torch.zeros(3, 6, dtype=torch.float64), [], []
    for _ in range(11):
        previous, stop, state = backbone.step(previous, state)
        steps.append(previous)
        stops.append(stop)
    assert len(read) == len(cross), "the encoded phonemes are projected once"
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


def test_a_beginning_is_heard_as_it_was_said():
    """And no row ends in it."""
    backbone = small("transformer_tts", "CS")
    torch.nn.init.constant_(backbone.stop.bias, 100.0)
    tokens, mask, frames, _ = RECORDS["transformer_tts"].inputs().values()
    beginning = frames[:, :4].double()
    spoken, num_frames = backbone.synthesize(tokens, mask, max_steps=9, prompt_frames=beginning)
    assert num_frames.tolist() == [10, 10, 10]
    own = backbone(tokens, mask, torch.cat([beginning, torch.zeros(3, 1, 6)], dim=1).double()).before[:, 4:]
    expected = backbone.postnet(torch.cat([beginning, own], dim=1), None)
    torch.testing.assert_close(spoken, expected.reshape(3, 10, 3), atol=1e-6, rtol=1e-5)


def test_the_prenet_drops_in_evaluation_too():
    backbone = RECORDS["transformer_tts"].build("transformer_tts", prenet_dropout=0.5)
    inputs = RECORDS["transformer_tts"].inputs()
    assert not torch.equal(backbone(**inputs).after, backbone(**inputs).after)
