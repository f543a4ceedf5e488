"""TTS: features against their definitions, and front ends; tests/upstream has the distortions."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from cab import UserError
from tasks.tts.audio import HOP, N_FFT, features, griffin_lim, mel_filters
from tasks.tts.phonemes import ALIGNED, ARPABET, WRITTEN, pronounce, unspoken, written_tokens
from tests.helpers.tasks.layouts import tone


def test_log_mel_against_numpy() -> None:
    wave = tone()
    mel, pitch, energy = features(wave)
    assert len(mel) == len(pitch) == len(energy) == 1 + len(wave) // HOP
    padded = np.pad(wave, N_FFT // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
    for frame in (0, 7, len(mel) - 1):
        spectrum = np.abs(np.fft.rfft(padded[frame * HOP : frame * HOP + N_FFT] * window))
        expected = np.log(np.maximum(mel_filters().numpy() @ spectrum, 1e-5))
        np.testing.assert_allclose(mel[frame], expected, atol=1e-2)
        assert energy[frame] == pytest.approx(math.log(np.linalg.norm(spectrum)), abs=1e-3)
    assert np.median(np.exp(pitch)) == pytest.approx(180.0, rel=0.02)


def test_silence_has_features() -> None:
    mel, pitch, energy = features(np.zeros(5000, dtype=np.float32))
    assert np.isfinite(mel).all()
    assert np.isfinite(pitch).all()
    assert np.isfinite(energy).all()


def test_griffin_lim_comes_near_the_wave() -> None:
    mel, *_ = features(tone())
    again, *_ = features(griffin_lim(mel, iterations=32))
    length = min(len(mel), len(again))
    loud = mel[:length] > mel.max() - 4
    assert np.abs(mel[:length] - again[:length])[loud].mean() < 0.5


def test_vocabularies_have_the_published_sizes() -> None:
    assert (len(ARPABET), len(ALIGNED), len(WRITTEN)) == (69, 76, 80)


def test_text_becomes_phonemes() -> None:
    tokens = written_tokens("In being modern, don't!")
    assert " ".join(tokens) == "IH0 N | B IY1 IH0 NG | M AA1 D ER0 N , | D OW1 N T !"
    for word in ("Blorptastique", "xqz", "Tulowitzki's", "well-known", "zhā"):
        assert pronounce(word)
        assert set(pronounce(word)) <= set(ARPABET)
    assert pronounce("blorptastique's")[-1] == "Z"


@pytest.mark.parametrize(
    "text", ["born in 1963", "cats & dogs", "50% of it", "COVID-19", "m² of land", "Straße", "a/b"]
)
def test_a_character_without_phonemes_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"the character '{unspoken(text)}' of '{text}' has no phonemes")):
        written_tokens(text)


@pytest.mark.parametrize(
    ("text", "same"), [("ﬁnd", "find"), ("café", "cafe"), ("“Yes” – (no)", "Yes no"), ("don’t", "don't")]
)
def test_letters_in_other_forms_have_phonemes(text: str, same: str) -> None:
    assert written_tokens(text) == written_tokens(same)
