"""Sounds whose voice is determined by a key, or by earlier steps.

An utterance starts with a key: eight vowels in random order, each with the voice in which it is spoken (``AA1`` dark,
``AA2`` bright), and a pitch and loudness of its own. Of 20 further steps only the voice is audible, not the vowel:

* ``asked``, all 20 in two of five utterances: a vowel without a stress (``AA0``), in the voice of its key entry.
* ``new``, the first six of the others: of two steps three apart, one is dark and one bright. The alignment says which
  (``ER1``, ``ER2``), the written text does not (``ER0``).
* ``again``, the remaining 14: the voice of three (``S``), six (``SH``) or nine steps before (``Z``); two steps three
  apart are repeated in either order, so that one of the two is always dark.

docs/reference/tasks.md explains what each kind of step requires.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tasks.tts.audio import HOP, RATE

KEY_VOWELS = ("AA", "AE", "AH", "AO", "EH", "IH", "IY", "UW")
PITCH = 170.0  # Hz; manners vary it
VOICES = {"1": (730.0, 1090.0, 2440.0), "2": (270.0, 2290.0, 3010.0)}
"""Stress of a vowel and its voice: formants in Hz. Both voices have the same pitch and loudness: FastSpeech
2 receives pitch and energy in training, which must not reveal the voice."""
MANNERS = [(0.86 + 0.04 * vowel, 0.6 + 0.1 * (3 * vowel % len(KEY_VOWELS))) for vowel in range(len(KEY_VOWELS))]
"""Relative pitch and loudness of each key vowel, compared with queried steps. FastSpeech 2 embeds pitch and energy in
bins between the training extremes; queried steps are in the middle, where training covers every bin."""
VARIETY = (2, 4, 8)
"""Distinct vowels of a key of eight. With two, half of the keys have a single voice, and attending to the key pays off
before the vowel is found."""
NEW, AGAIN = "ER", {3: "S", 6: "SH", 9: "Z"}
"""New voices, and voices repeated from the given number of steps before."""
LAG_PAIRS, BETWEEN = ((6, 6), (3, 9)), 3
"""Distances of two steps, three apart, that are repeated: in their own order, or swapped."""
FURTHER_STEPS = 20
FRAMES = 4
"""Frames per phoneme: one decoder step."""


def generate_utterance(number: int) -> tuple[list[str], list[int], np.ndarray]:
    """Generate aligned phonemes, their frames, and the wave of utterance ``number``, deterministically."""
    rng = np.random.default_rng([5, number])
    stresses = list(VOICES)
    vowels = rng.permutation(len(KEY_VOWELS))[: rng.choice(VARIETY)]
    key = rng.permutation(np.tile(vowels, len(KEY_VOWELS) // len(vowels)))
    voices = rng.integers(len(VOICES), size=len(KEY_VOWELS))
    if number % 5 in (1, 3, 4):
        spoken = list(rng.permuted([range(len(VOICES))] * BETWEEN, axis=1).T.flat)
        sequence = [NEW + stresses[voice] for voice in spoken]
        orders = LAG_PAIRS[:1] if number % 5 == 1 else LAG_PAIRS
        lags = np.concatenate([rng.choice(orders, size=BETWEEN).T.flat for _ in range(FURTHER_STEPS // BETWEEN // 2)])
        for lag in lags[: FURTHER_STEPS - len(spoken)]:
            spoken.append(spoken[-lag])
            sequence.append(AGAIN[lag])
    else:
        asked = rng.choice(vowels, size=FURTHER_STEPS)
        spoken = list(voices[asked])
        sequence = [KEY_VOWELS[vowel] + "0" for vowel in asked]
    phonemes = [KEY_VOWELS[vowel] + stresses[voices[vowel]] for vowel in key] + sequence
    manners = [*(MANNERS[vowel] for vowel in key), *[(1.0, 1.0)] * FURTHER_STEPS]
    sounds = zip([*voices[key], *spoken], manners, strict=True)
    wave = np.concatenate([_sound(VOICES[stresses[voice]], *manner) for voice, manner in sounds])
    return phonemes, [FRAMES] * len(phonemes), (0.5 * wave / _loudest()).astype(np.float32)


def written_form(phonemes: list[str]) -> list[str]:
    """Return the written text of aligned phonemes, which does not give the voices of new chains."""
    return [NEW + "0" if phoneme[:-1] == NEW else phoneme for phoneme in phonemes]


@cache
def _loudest() -> float:
    """Return the peak of all sounds; a common scale reveals the absolute loudness to a decoder."""
    manners = [*MANNERS, (1.0, 1.0)]
    return max(float(np.abs(_sound(voice, *manner)).max()) for voice in VOICES.values() for manner in manners)


@cache
def _sound(formants: tuple[float, ...], raised: float, loudness: float) -> np.ndarray:
    """Return the wave of a phoneme: silence for one frame, then a tone with the formants' envelope.

    The window of a step's last frame ends with the silence of the next step: otherwise a decoder could hear the next
    voice in the previous step, without any lookup.
    """
    time = np.arange((FRAMES - 1) * HOP) / RATE
    pitch = raised * PITCH
    frequencies = np.arange(1, int(8000 / pitch)) * pitch
    envelope = sum(np.exp(-0.5 * ((frequencies - formant) / 150.0) ** 2) for formant in formants) + 0.01
    fade = np.minimum(1.0, np.minimum(np.arange(len(time)), np.arange(len(time))[::-1]) / 64.0)
    tone = envelope @ np.sin(2 * np.pi * frequencies[:, None] * time)
    return np.pad(loudness * fade * tone / np.sqrt(np.mean(tone**2)), (HOP, 0))
