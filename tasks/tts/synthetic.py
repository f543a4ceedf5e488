"""Sounds that are told by a key, or by what was spoken before: what each step sounds like stands elsewhere.

An utterance begins with a key: eight vowels of two, four or eight kinds, in random order, as one token each that says
the vowel and, by its stress, the voice in which it is spoken here (``AA1`` low, ``AA2`` high), higher and louder by
vowel. Then 20 steps are spoken, in one of the two voices, of which only the voice is heard and not the vowel:

* ``asked``, all 20 of every other utterance, and the first four of the rest, of each two one low and one high: a
  vowel without a stress (``AA0``), in the voice that the key has for it: one to four tokens of 8, 1 to 27 tokens
  before. Where the key has one voice only, the other is told (``ER1``, ``ER2``).
* ``again``, the other 16 of those: the voice of three (``S``), four (``SH``) or five steps before (``Z``). Two steps
  are spoken again in their order or the other, so that of each two always one is low.

So without attention over the phonemes (NS: one layer in each network), or where a window does not reach the key, an
asked voice is a guess between two. A decoder of one layer that reads the phonemes once (CC) finds an asked voice only
where the encoder has joined a vowel with its key. What is spoken again was heard (CS): by the phonemes alone it is at
the end of a chain of steps of three to five, of which networks of one layer follow the first; the other 12 are a guess
between two. Nothing of a step is heard before it: see :func:`_sound`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tasks.tts.audio import HOP, RATE

VOWELS = ("AA", "AE", "AH", "AO", "EH", "IH", "IY", "UW")
VOICES = {"1": (110.0, (664.0, 1160.0, 3102.0)), "2": (240.0, (591.0, 1003.0, 2725.0))}
"""Stress of a vowel and the voice that it means: pitch and formants in Hz."""
MANNERS = [(0.86 + 0.04 * vowel, 0.6 + 0.1 * (3 * vowel % len(VOWELS))) for vowel in range(len(VOWELS))]
"""How much higher and louder than the voice each vowel of the key is. FastSpeech 2 knows pitch and energy by bins from
the least to the largest of its training: what is asked for is in the middle, where it has met every bin."""
VARIETY = (2, 4, 8)
"""Different vowels of a key of eight. With two of them half of the keys have one voice only, and looking there begins
to pay before the vowel is found."""
NEW, AGAIN = "ER", {3: "S", 4: "SH", 5: "Z"}
"""What says its voice, and what was heard so many steps before."""
PAIRS = ((4, 4), (3, 5))
"""How many steps before two steps were heard that are spoken again: in their order, or the other."""
STEPS, FIRST = 20, 4
FRAMES = 4
"""Of a phoneme: one decoder step."""


def generate_utterance(number: int) -> tuple[list[str], list[int], np.ndarray]:
    """Phonemes, frames of each, and the wave of utterance ``number``, always the same."""
    rng = np.random.default_rng([5, number])
    stresses = list(VOICES)
    vowels = rng.permutation(len(VOWELS))[: rng.choice(VARIETY)]
    key = rng.permutation(np.tile(vowels, len(VOWELS) // len(vowels)))
    voices = rng.integers(len(VOICES), size=len(VOWELS))
    if number % 2:
        spoken = [voice for _ in range(FIRST // 2) for voice in rng.permutation(len(VOICES))]
        said = [_asking(voice, vowels[voices[vowels] == voice], rng) for voice in spoken]
        while len(spoken) < STEPS:
            for lag in rng.choice(PAIRS):
                spoken.append(spoken[-lag])
                said.append(AGAIN[lag])
    else:
        asked = rng.choice(vowels, size=STEPS)
        spoken = list(voices[asked])
        said = [VOWELS[vowel] + "0" for vowel in asked]
    phonemes = [VOWELS[vowel] + stresses[voices[vowel]] for vowel in key] + said
    manners = [*(MANNERS[vowel] for vowel in key), *[(1.0, 1.0)] * STEPS]
    sounds = zip([*voices[key], *spoken], manners, strict=True)
    wave = np.concatenate([_sound(*VOICES[stresses[voice]], *manner) for voice, manner in sounds])
    return phonemes, [FRAMES] * len(phonemes), (0.5 * wave / _loudest()).astype(np.float32)


def _asking(voice: int, vowels: np.ndarray, rng: np.random.Generator) -> str:
    """A phoneme that asks for one of the vowels, all of that voice; that says the voice, where there is none."""
    return VOWELS[rng.choice(vowels)] + "0" if len(vowels) else NEW + list(VOICES)[voice]


@cache
def _loudest() -> float:
    """Of all sounds. If each utterance were as loud as it can be, nothing would tell a decoder how loud that is."""
    manners = [*MANNERS, (1.0, 1.0)]
    return max(float(np.abs(_sound(*voice, *manner)).max()) for voice in VOICES.values() for manner in manners)


@cache
def _sound(pitch: float, formants: tuple[float, ...], raised: float, loudness: float) -> np.ndarray:
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
