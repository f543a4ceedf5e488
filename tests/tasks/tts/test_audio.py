"""TTS: features against their definitions, text and alignments; tests/upstream has the distortions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cab import UserError
from tasks.tts.audio import HOP, N_FFT, features, griffin_lim, mel_filters
from tasks.tts.phonemes import ALIGNED, ARPABET, WRITTEN, Phone, pronounce, read_phones, unspoken, written_tokens
from tests.helpers.tasks.layouts import grid, put, tone
from tests.tasks.test_files_damaged import GOOD


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
    assert all(np.isfinite(x).all() for x in features(np.zeros(5000, dtype=np.float32)))  # of silence


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
        assert set() < set(pronounce(word)) <= set(ARPABET)
    assert pronounce("blorptastique's")[-1] == "Z"


@pytest.mark.parametrize("text", ["born in 1963", "cats & dogs", "Straße"])
def test_a_character_without_phonemes_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"the character '{unspoken(text)}' of '{text}' has no phonemes"):
        written_tokens(text)


@pytest.mark.parametrize(
    ("text", "same"), [("ﬁnd", "find"), ("café", "cafe"), ("“Yes” – (no)", "Yes no"), ("don’t", "don't")]
)
def test_letters_in_other_forms_have_phonemes(text: str, same: str) -> None:
    assert written_tokens(text) == written_tokens(same)


PHONES = [Phone("HH", 0.1, 0.2), Phone("sp", 0.2, 0.3), Phone("AH0", 0.3, 0.5)]


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode("utf-8-sig"),
        GOOD.encode("utf-16"),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n", "\r").replace("    ", "\t").encode(),
        GOOD.replace("intervals [2]:", "intervals [2]").rstrip("\n").encode(),
    ],
)
def test_alignments_lose_their_outer_silence_in_every_dialect(content: bytes, tmp_path: Path) -> None:
    assert read_phones(put(tmp_path / "a.TextGrid", content)) == (PHONES, 0.6)


def test_times_without_an_interval_are_silence(tmp_path: Path) -> None:
    """Some programs do not write intervals without a phone."""
    path = put(tmp_path / "a.TextGrid", grid(("HH", 0.1, 0.2), ("AH0", 0.3, 0.5), end=0.6))
    assert [phone.name for phone in read_phones(path)[0]] == ["HH", "sil", "AH0"]
