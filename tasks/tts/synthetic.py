"""Speech-like sounds of vowels whose voice was announced: how each is to be spoken stands once, at the beginning.

An utterance begins with a key: each of eight vowels once, in random order, as one token that says the vowel and, by
its stress, the voice in which it is spoken here (``AA1`` low, ``AA2`` high); it sounds as a hum. Then 12 to
16 vowels without a stress (``AA0``) are spoken, each in the voice that the key has for it.

So the voice of a vowel, half of what is heard of it, follows from one token of 8, 1 to 23 tokens before. Each network
has one layer of attention over the phonemes (NS): without it, or where a window does not reach the key, every voice
is a guess between two. A decoder that reads the phonemes by cross attention once (CC) finds vowels, and voices where
the encoder has joined them.
"""

from __future__ import annotations

import numpy as np

from tasks.tts.audio import HOP, RATE

VOWELS = ("AA", "AE", "AH", "AO", "EH", "IH", "IY", "UW")
VOICES = {"1": (110.0, 1.0), "2": (240.0, 1.35)}
"""Stress of a vowel in the key, and what it means: pitch in Hz, and factor of the formants."""
FORMANTS = np.random.default_rng(3).uniform([300, 900, 2200], [800, 2000, 3400], size=(len(VOWELS), 3))
HUM = np.array([300.0, 300.0, 300.0])
FRAMES = 4
"""Of a vowel: one decoder step."""


def generate_utterance(number: int) -> tuple[list[str], list[int], np.ndarray]:
    """Phonemes, frames of each, and the wave of utterance ``number``, always the same."""
    rng = np.random.default_rng([5, number])
    voices = rng.choice(list(VOICES), size=len(VOWELS))
    key = rng.permutation(len(VOWELS))
    spoken = rng.integers(len(VOWELS), size=rng.integers(12, 17))
    wave = np.concatenate([_sound(HUM, 160.0)] * len(key) + [_sound(FORMANTS[v], *VOICES[voices[v]]) for v in spoken])
    phonemes = [VOWELS[vowel] + voices[vowel] for vowel in key] + [VOWELS[vowel] + "0" for vowel in spoken]
    return phonemes, [FRAMES] * len(phonemes), (0.5 * wave / np.abs(wave).max()).astype(np.float32)


def _sound(formants: np.ndarray, pitch: float, shift: float = 1.0) -> np.ndarray:
    """The frames of a vowel: a tone with the formants' envelope."""
    time = np.arange(FRAMES * HOP) / RATE
    frequencies = np.arange(1, int(8000 / pitch)) * pitch
    envelope = sum(np.exp(-0.5 * ((frequencies - f * shift) / 150.0) ** 2) for f in formants) + 0.01
    fade = np.minimum(1.0, np.minimum(np.arange(len(time)), np.arange(len(time))[::-1]) / 64.0)
    return fade * (envelope @ np.sin(2 * np.pi * frequencies[:, None] * time))
