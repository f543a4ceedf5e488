"""Speech-like sounds whose every phoneme depends on the first word: what it says of the voice holds to the end."""

from __future__ import annotations

import numpy as np

from tasks.tts.audio import HOP, RATE

SPOKEN = ["AA1", "IY1", "UW1", "EH1", "AO1", "S", "SH", "M", "N", "L"]
VOICES = {"HH": (110.0, 1.0), "W": (170.0, 1.25), "Y": (240.0, 0.8)}
"""First phoneme of an utterance, and what it means: pitch in Hz, and factor of the formants."""
FORMANTS = np.random.default_rng(3).uniform([300, 900, 2200], [800, 2000, 3400], size=(len(SPOKEN), 3))


def generate_utterance(number: int) -> tuple[list[str], list[int], np.ndarray]:
    """Phonemes, frames of each, and the wave of utterance ``number``, always the same.

    Each phoneme is a tone (S and SH a noise) shaped by three formants; the voice that the first phoneme names sets the
    pitch and moves the formants of all others. Phonemes last four frames or eight, one decoder step or two.
    """
    rng = np.random.default_rng([5, number])
    voice = list(VOICES)[rng.integers(len(VOICES))]
    pitch, shift = VOICES[voice]
    spoken = rng.integers(len(SPOKEN), size=rng.integers(8, 14))
    durations = [4] + [4 + 4 * (int(i) % 2) for i in spoken]
    pieces = [_sound(FORMANTS[0] * shift, 4, pitch, noisy=True, loudness=0.3, rng=rng)]
    for i, frames in zip(spoken, durations[1:], strict=True):
        noisy = SPOKEN[i] in ("S", "SH")
        pieces.append(_sound(FORMANTS[i] * shift, frames, pitch, noisy=noisy, loudness=1.0, rng=rng))
    wave = np.concatenate(pieces)
    return [voice, *(SPOKEN[i] for i in spoken)], durations, (0.5 * wave / np.abs(wave).max()).astype(np.float32)


def _sound(
    formants: np.ndarray, frames: int, pitch: float, *, noisy: bool, loudness: float, rng: np.random.Generator
) -> np.ndarray:
    """``frames`` frames of a tone or noise with the formants' envelope."""
    time = np.arange(frames * HOP) / RATE
    frequencies = np.arange(1, int(8000 / pitch)) * pitch
    envelope = sum(np.exp(-0.5 * ((frequencies - f) / 150.0) ** 2) for f in formants) + 0.01
    phases = rng.uniform(0, 2 * np.pi, size=len(frequencies)) if noisy else np.zeros(len(frequencies))
    jitter = rng.uniform(0.97, 1.03, size=len(frequencies)) if noisy else 1.0
    angle = 2 * np.pi * (frequencies * jitter)[:, None] * time + phases[:, None]
    fade = np.minimum(1.0, np.minimum(np.arange(len(time)), np.arange(len(time))[::-1]) / 64.0)
    return loudness * fade * (envelope @ np.sin(angle))
