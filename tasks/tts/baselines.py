"""TTS baselines without attention: frames from a lookup table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tasks.tts.data import Utterance

PARTS = 4  # per phoneme duration


def phoneme_parts(utterance: Utterance) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (frame, (token, quarter of its duration)) for each aligned frame."""
    frame = utterance.start
    for token, duration in zip(utterance.aligned, utterance.durations, strict=True):
        for i in range(duration):
            yield frame + i, (token, PARTS * i // duration)
        frame += duration


def mean_phonemes(utterances: Iterable[Utterance]) -> dict[tuple[int, int], np.ndarray]:
    """Return the mean log-mel frame [80] of each quarter of each phoneme."""
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
    """Return log-mel frames [F, 80]: the mean sound of each phoneme, and the mean frame elsewhere."""
    frames = np.repeat(mean_frame[None], len(utterance.mel), axis=0)
    for frame, part in phoneme_parts(utterance):
        frames[frame] = means.get(part, mean_frame)
    return frames
