"""FastSpeech 2's targets, Transformer-TTS's frames and the scored waves against fairseq's own functions."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.tts.audio import NUM_MELS, features
from tasks.tts.data import Scale, Utterance, Utterances
from tasks.tts.phonemes import END_TOKEN

DURATIONS = [3, 5, 1, 7, 4]
ENERGY = (4.293850, 4.297422, 4.309478, 4.294216, 4.286580)
PITCH = (5.241877, 5.443406, 5.151037, 5.281128, 5.455693)
"""fairseq, examples/speech_synthesis/data_utils.py, ``extract_energy`` and ``extract_pitch`` (its F0 given), with these
durations; the zeros of the end token are ``TextToSpeechDataset.__getitem__``'s."""


def test_pitch_and_energy_are_logarithms_of_means() -> None:
    rng = np.random.default_rng(0)
    wave = (0.1 * rng.standard_normal(20 * 256)).astype(np.float32)
    mel, _, energy = features(wave, as_fairseq=True)
    pitch = np.log(rng.uniform(80, 300, 21))
    only = Utterance("a", [5, END_TOKEN], [4, 5, 6, 7, 8], DURATIONS, 0, mel, pitch, energy)
    ones = np.ones(NUM_MELS, dtype=np.float32)
    scale = Scale((0 * ones, ones), (5.2, 0.3), (2.0, 0.5))
    batch = Utterances([only], scale, as_fairseq=True).__getitems__([0])
    assert batch["energy"][0].tolist() == pytest.approx([*ENERGY, 0.0], abs=2e-4)
    assert batch["pitch"][0].tolist() == pytest.approx([*PITCH, 0.0], abs=1e-5)
    assert batch["durations"][0].tolist() == [*DURATIONS, 0]
    assert batch["aligned"][0].tolist() == [4, 5, 6, 7, 8, END_TOKEN]
    assert not batch["aligned_padding"].any()
