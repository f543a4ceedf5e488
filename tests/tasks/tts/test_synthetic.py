"""Generated speech: what is asked for stands in the key or was heard, and nothing says it before."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.tts.audio import HOP, RATE, features
from tasks.tts.synthetic import PITCH, VOICES, generate_utterance, written_form


def test_generated_sounds_are_as_their_key_says_or_as_was_heard_before() -> None:
    kinds = []
    for number in range(15):
        phonemes, durations, wave = generate_utterance(number)
        assert np.array_equal(wave, generate_utterance(number)[2])
        assert len(phonemes) == len(durations) == 28
        assert len(wave) == sum(durations) * HOP
        voices = {token[:-1]: token[-1] for token in phonemes[:8]}
        assert len(voices) in (2, 4, 8)
        assert all(phonemes[:8].count(v + s) == 8 / len(voices) for v, s in voices.items())
        expected: list[str] = []
        assert number % 5 not in (0, 2) or all(token.endswith("0") for token in phonemes[8:])
        for token in phonemes[8:]:
            before = {"S": 3, "SH": 6, "Z": 9}.get(token)
            asked = token.endswith("0")
            expected.append(voices[token[:-1]] if asked else expected[-before] if before else token[-1])
        if number % 5 == 1:
            assert phonemes[14:] == ["SH"] * 14
        kinds += [token for token in phonemes[8:] if not token.endswith("0")]
        for place, stress in enumerate([token[-1] for token in phonemes[:8]] + expected):
            assert voice_heard(wave[4 * HOP * place : 4 * HOP * (place + 1)]) == stress, (number, place)
        pairs = [{expected[step], expected[step + 3]} for step in range(17) if step % 6 < 3]
        assert number % 5 in (0, 2) or pairs == [{"1", "2"}] * 9
        text = [token for token in written_form(phonemes) if token[:2] == "ER"]
        assert text == ([] if number % 5 in (0, 2) else ["ER0"] * 6)
    assert all(kinds.count(token) >= 10 for token in ("S", "SH", "Z"))
    assert {token for token in kinds if token not in ("S", "SH", "Z")} == {"ER1", "ER2"}


def voice_heard(step: np.ndarray) -> str:
    """Of one step: the voice in whose formants more of its power is."""
    frequencies, power = np.fft.rfftfreq(len(step), 1 / RATE), np.abs(np.fft.rfft(step)) ** 2
    near = {stress: [np.abs(frequencies - formant) < 100 for formant in VOICES[stress]] for stress in VOICES}
    return max(VOICES, key=lambda stress: sum(power[band].sum() for band in near[stress]))


def test_neither_pitch_nor_energy_says_which_voice_is_heard() -> None:
    wave = generate_utterance(0)[2]
    _, pitch, energy = features(wave)
    assert {voice_heard(wave[4 * HOP * step : 4 * HOP * (step + 1)]) for step in range(8, 28)} == {*VOICES}
    middle = slice(4 * 8 + 2, 4 * 28, 4)
    assert np.exp(pitch[middle]) == pytest.approx(np.full(20, PITCH), rel=0.01)
    assert energy[middle] == pytest.approx(np.full(20, energy[middle].mean()), abs=0.02)


def test_nothing_of_a_generated_step_is_heard_before_it() -> None:
    """One utterance up to a step, and another from there: the frames before are those of the first."""
    wave, other = (generate_utterance(number)[2] for number in (1, 2))
    for step in range(1, 26, 3):
        edge = 4 * HOP * step
        mixed = np.concatenate([wave[:edge], other[edge:]])
        assert np.allclose(features(mixed)[0][: 4 * step], features(wave)[0][: 4 * step], atol=1e-4), step
        assert not np.allclose(features(mixed)[0], features(wave)[0], atol=0.1), step
