"""Sounds that are told by a key, or by what was spoken before: what each step sounds like stands elsewhere.

An utterance begins with a key: eight vowels of two, four or eight kinds, in random order, as one token each that says
the vowel and, by its stress, the voice in which it is spoken here (``AA1`` dark, ``AA2`` bright), higher and louder by
vowel. Then 20 steps are spoken, in one of the two voices, of which only the voice is heard and not the vowel:

* ``asked``, all 20 of two utterances in five: a vowel without a stress (``AA0``), in the voice that the key has for it:
  one to four tokens of 8, 1 to 27 tokens before.
* ``new``, the first six of the rest: of the first and fourth, the second and fifth, the third and sixth one is dark
  and one bright. The alignment says which (``ER1``, ``ER2``), the written text does not (``ER0``): see
  :func:`written_form`.
* ``again``, the other 14 of those: the voice of three (``S``), six (``SH``) or nine steps before (``Z``). Two steps of
  which one is three after the other are spoken again in their order or the other, so that of the two always one is
  dark; in one utterance of five always in their order.

So without attention over the phonemes (NS: one layer in each network), or where a window does not reach the key, an
asked voice is a guess between two. A decoder of one layer that reads the phonemes once (CC) finds an asked voice only
where the encoder has joined a vowel with its key. What is spoken again was heard (CS): where the first 14 steps are
given (``task.num_prompt_steps``), the text says which steps are of one voice, and only those given in which. Of the
past a decoder without attention hears two steps, as frames of a spectrogram overlap; they and the next begin with three
different ones of those given, and say nothing of each other. Nothing of a step is heard before it: see :func:`_sound`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tasks.tts.audio import HOP, RATE

VOWELS = ("AA", "AE", "AH", "AO", "EH", "IH", "IY", "UW")
PITCH = 170.0
VOICES = {"1": (730.0, 1090.0, 2440.0), "2": (270.0, 2290.0, 3010.0)}
"""Stress of a vowel and the voice that it means: its formants in Hz. Neither is higher or louder: FastSpeech
2 is given pitch and energy while it is trained, and if they said the voice, nothing would have to be looked up."""
MANNERS = [(0.86 + 0.04 * vowel, 0.6 + 0.1 * (3 * vowel % len(VOWELS))) for vowel in range(len(VOWELS))]
"""How much higher and louder than what is asked for each vowel of the key is. FastSpeech 2 knows pitch and energy by
bins from the least to the largest of its training: what is asked for is in the middle, where it has met every bin."""
VARIETY = (2, 4, 8)
"""Different vowels of a key of eight. With two of them half of the keys have one voice only, and looking there begins
to pay before the vowel is found."""
NEW, AGAIN = "ER", {3: "S", 6: "SH", 9: "Z"}
"""What begins, and what is in the voice that was heard so many steps before."""
PAIRS, BETWEEN = ((6, 6), (3, 9)), 3
"""How many steps before two steps, of which one is three after the other, were heard that are spoken again: in their
order, or the other."""
STEPS = 20
FRAMES = 4
"""Of a phoneme: one decoder step."""


def generate_utterance(number: int) -> tuple[list[str], list[int], np.ndarray]:
    """Aligned phonemes, frames of each, and the wave of utterance ``number``, always the same."""
    rng = np.random.default_rng([5, number])
    stresses = list(VOICES)
    vowels = rng.permutation(len(VOWELS))[: rng.choice(VARIETY)]
    key = rng.permutation(np.tile(vowels, len(VOWELS) // len(vowels)))
    voices = rng.integers(len(VOICES), size=len(VOWELS))
    if number % 5 in (1, 3, 4):
        spoken = list(rng.permuted([range(len(VOICES))] * BETWEEN, axis=1).T.flat)
        said = [NEW + stresses[voice] for voice in spoken]
        orders = PAIRS[:1] if number % 5 == 1 else PAIRS
        lags = np.concatenate([rng.choice(orders, size=BETWEEN).T.flat for _ in range(STEPS // BETWEEN // 2)])
        for lag in lags[: STEPS - len(spoken)]:
            spoken.append(spoken[-lag])
            said.append(AGAIN[lag])
    else:
        asked = rng.choice(vowels, size=STEPS)
        spoken = list(voices[asked])
        said = [VOWELS[vowel] + "0" for vowel in asked]
    phonemes = [VOWELS[vowel] + stresses[voices[vowel]] for vowel in key] + said
    manners = [*(MANNERS[vowel] for vowel in key), *[(1.0, 1.0)] * STEPS]
    sounds = zip([*voices[key], *spoken], manners, strict=True)
    wave = np.concatenate([_sound(VOICES[stresses[voice]], *manner) for voice, manner in sounds])
    return phonemes, [FRAMES] * len(phonemes), (0.5 * wave / _loudest()).astype(np.float32)


def written_form(phonemes: list[str]) -> list[str]:
    """What the text says of aligned phonemes: not in which voice a chain of voices begins."""
    return [NEW + "0" if phoneme[:-1] == NEW else phoneme for phoneme in phonemes]


@cache
def _loudest() -> float:
    """Of all sounds. If each utterance were as loud as it can be, nothing would tell a decoder how loud that is."""
    manners = [*MANNERS, (1.0, 1.0)]
    return max(float(np.abs(_sound(voice, *manner)).max()) for voice in VOICES.values() for manner in manners)


@cache
def _sound(formants: tuple[float, ...], raised: float, loudness: float) -> np.ndarray:
    """The frames of a phoneme: silence for one, then a tone with the formants' envelope.

    The window of a step's last frame ends with that silence: without it a decoder that is given the step before would
    hear in it which voice comes next, and would look nothing up.
    """
    time = np.arange((FRAMES - 1) * HOP) / RATE
    pitch = raised * PITCH
    frequencies = np.arange(1, int(8000 / pitch)) * pitch
    envelope = sum(np.exp(-0.5 * ((frequencies - formant) / 150.0) ** 2) for formant in formants) + 0.01
    fade = np.minimum(1.0, np.minimum(np.arange(len(time)), np.arange(len(time))[::-1]) / 64.0)
    tone = envelope @ np.sin(2 * np.pi * frequencies[:, None] * time)
    return np.pad(loudness * fade * tone / np.sqrt(np.mean(tone**2)), (HOP, 0))
