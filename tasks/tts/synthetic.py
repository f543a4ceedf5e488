"""Sounds that are told by a key, or by what was spoken before: what each step sounds like stands elsewhere.

An utterance begins with a key: each of eight vowels once, in random order, as one token that says the vowel and, by its
stress, the voice in which it is spoken here (``AA1`` low, ``AA2`` high), higher and louder by vowel. Then 20 steps are
spoken, in one of the two voices, of which only the voice is heard and not the vowel:

* ``asked``: a vowel without a stress (``AA0``), in the voice that the key has for it: one token of 8, 1 to 27 tokens
  before. All 20 steps of every other utterance are asked, and the first four of the rest.
* ``again``, three quarters of the other 16 (``S``): the voice of four steps before; the other quarter say their voice
  (``ER1``, ``ER2``).

So without attention over the phonemes (NS: one layer in each network), or where a window does not reach the key, an
asked voice is a guess between two. A decoder of one layer that reads the phonemes once (CC) finds an asked voice only
where the encoder has joined a vowel with its key. What is spoken again was heard four steps before (CS); by the
phonemes alone it is the last voice that was told or asked for in steps of four, of which networks of one layer find
the first four steps and no more. Nothing of a step is heard before it: see :func:`_sound`.
"""

from __future__ import annotations

import numpy as np

from tasks.tts.audio import HOP, RATE

VOWELS = ("AA", "AE", "AH", "AO", "EH", "IH", "IY", "UW")
VOICES = {"1": (110.0, [664.0, 1160.0, 3102.0]), "2": (240.0, [591.0, 1003.0, 2725.0])}
"""Stress of a vowel and the voice that it means: pitch and formants in Hz."""
MANNERS = [(0.86 + 0.04 * vowel, 0.6 + 0.1 * (3 * vowel % len(VOWELS))) for vowel in range(len(VOWELS))]
"""How much higher and louder than the voice each vowel of the key is. FastSpeech 2 knows pitch and energy by bins from
the least to the largest of its training: what is asked for is in the middle, where it has met every bin."""
NEW, AGAIN = "ER", "S"
STEPS, PERIOD = 20, 4
TOLD = 0.25
"""Share of the steps after the first four that say their voice, where not all are asked."""
FRAMES = 4
"""Of a phoneme: one decoder step."""


def generate_utterance(number: int) -> tuple[list[str], list[int], np.ndarray]:
    """Phonemes, frames of each, and the wave of utterance ``number``, always the same."""
    rng = np.random.default_rng([5, number])
    stresses = list(VOICES)
    key = rng.permutation(len(VOWELS))
    voices = rng.integers(len(VOICES), size=len(VOWELS))
    asked = rng.integers(len(VOWELS), size=PERIOD if number % 2 else STEPS)
    phonemes = [VOWELS[vowel] + stresses[voices[vowel]] for vowel in key] + [VOWELS[vowel] + "0" for vowel in asked]
    spoken = list(voices[asked])
    while len(spoken) < STEPS:
        told = rng.random() < TOLD
        spoken.append(rng.integers(len(VOICES)) if told else spoken[-PERIOD])
        phonemes.append(NEW + stresses[spoken[-1]] if told else AGAIN)
    manners = [*(MANNERS[vowel] for vowel in key), *[(1.0, 1.0)] * STEPS]
    said = zip([*voices[key], *spoken], manners, strict=True)
    wave = np.concatenate([_sound(*VOICES[stresses[voice]], *manner) for voice, manner in said])
    return phonemes, [FRAMES] * len(phonemes), (0.5 * wave / np.abs(wave).max()).astype(np.float32)


def _sound(pitch: float, formants: list[float], raised: float, loudness: float) -> np.ndarray:
    """The frames of a phoneme: silence for one, then a tone with the formants' envelope.

    The window of a step's last frame ends with that silence: without it a decoder that is given the step before would
    hear in it which voice comes next, and would look nothing up.
    """
    time = np.arange((FRAMES - 1) * HOP) / RATE
    pitch *= raised
    frequencies = np.arange(1, int(8000 / pitch)) * pitch
    envelope = sum(np.exp(-0.5 * ((frequencies - formant) / 150.0) ** 2) for formant in formants) + 0.01
    fade = np.minimum(1.0, np.minimum(np.arange(len(time)), np.arange(len(time))[::-1]) / 64.0)
    return np.pad(loudness * fade * (envelope @ np.sin(2 * np.pi * frequencies[:, None] * time)), (HOP, 0))
