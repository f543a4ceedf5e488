"""Frames that a lookup table gives."""

from __future__ import annotations

import numpy as np

from tasks.tts.data import Utterance
from tasks.tts.task import mean_phonemes, spoken_by_phoneme


def test_the_mean_sound_of_a_phoneme_by_hand() -> None:
    """Frames 1, 2, 3, 5 of one phoneme and 7 of the other, in quarters; what was never heard is the mean frame."""

    def utterance(aligned: list[int], durations: list[int], levels: list[float], start: int = 0) -> Utterance:
        mel = np.repeat(np.array(levels)[:, None], 2, axis=1)
        return Utterance("u", [], aligned, durations, start, mel, np.zeros(len(mel)), np.zeros(len(mel)))

    means = mean_phonemes([utterance([8, 9], [2, 1], [99, 1, 2, 7], start=1), utterance([8], [4], [3, 5, 4, 6])])
    assert {part: value.tolist() for part, value in means.items()} == {
        (8, 0): [2.0, 2.0],
        (8, 1): [5.0, 5.0],
        (8, 2): [3.0, 3.0],
        (8, 3): [6.0, 6.0],
        (9, 0): [7.0, 7.0],
    }
    asked = utterance([9, 8, 5], [1, 2, 1], [0.0] * 6, start=1)
    spoken = spoken_by_phoneme(asked, means, np.array([-1.0, -1.0]))
    assert spoken[:, 0].tolist() == [-1, 7, 2, 3, -1, -1]
