"""What can be said of an utterance without attention: frames that a lookup table gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tasks.tts.data import Utterance

PARTS = 4  # of the duration of a phoneme


def phoneme_parts(utterance: Utterance) -> Iterator[tuple[int, tuple[int, int]]]:
    """(frame, (token, quarter of its duration)) of each frame that is aligned."""
    frame = utterance.start
    for token, duration in zip(utterance.aligned, utterance.durations, strict=True):
        for i in range(duration):
            yield frame + i, (token, PARTS * i // duration)
        frame += duration


def mean_phonemes(utterances: Iterable[Utterance]) -> dict[tuple[int, int], np.ndarray]:
    """Mean log-mel frame [80] of each quarter of each phoneme."""
    sums: dict[tuple[int, int], list[np.ndarray]] = {}
    for utterance in utterances:
        for frame, part in phoneme_parts(utterance):
            total = sums.setdefault(part, [np.zeros(utterance.mel.shape[1]), np.zeros(1)])
            total[0] += utterance.mel[frame]
            total[1] += 1
    return {part: total / count for part, (total, count) in sums.items()}


def spoken_by_phoneme(
    utterance: Utterance, means: dict[tuple[int, int], np.ndarray], mean_frame: np.ndarray
) -> np.ndarray:
    """Log-mel frames [F, 80]: of each phoneme its mean sound, and the mean frame where there is none."""
    frames = np.repeat(mean_frame[None], len(utterance.mel), axis=0)
    for frame, part in phoneme_parts(utterance):
        frames[frame] = means.get(part, mean_frame)
    return frames
