"""Mel cepstral and mel spectral distortion along the best alignment, as in fairseq.

Both are root mean squares over dimensions without the usual factor 10 / ln 10, so they are not in decibels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor

from cab.files.numbers import is_finite
from cab.metric import mean_over_batches
from tasks.tts.audio import RATE, compiled_librosa

LONG_WINDOW, LONG_HOP = int(0.05 * RATE), int(0.0125 * RATE)
NUM_CEPSTRA, SCORE_MELS, LEAST_FREQUENCY, POWER_OFFSET = 13, 80, 20.0, 1e-6


@functools.cache
def _filters() -> Tensor:
    filters = compiled_librosa().filters.mel(
        sr=RATE, n_fft=LONG_WINDOW, n_mels=SCORE_MELS, fmin=LEAST_FREQUENCY, fmax=RATE / 2, htk=True, norm=None
    )
    return torch.from_numpy(filters)


def log_mel_power(wave: np.ndarray) -> np.ndarray:
    """Return log(mel power + 1e-6), [F, 80]; triangular filters on the HTK scale, windows of 50 ms every 12.5 ms."""
    samples = torch.from_numpy(np.pad(wave, (0, max(0, LONG_WINDOW - len(wave)))))
    window = torch.hann_window(LONG_WINDOW)
    spectrum = torch.stft(samples, LONG_WINDOW, LONG_HOP, LONG_WINDOW, window, pad_mode="reflect", return_complex=True)
    with torch.autocast("cpu", enabled=False):  # scores do not use the network's precision
        return ((_filters() @ spectrum.abs().square()) + POWER_OFFSET).log().T.numpy()


def cepstra(log_mel: np.ndarray) -> np.ndarray:
    """Return the first 13 coefficients of the orthonormal cosine transform of [F, 80]."""
    return dct(log_mel, type=2, norm="ortho", axis=1)[:, :NUM_CEPSTRA]


def warped_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cost of the cheapest monotone path through the frames of ``a`` [F, D] and ``b`` [G, D].

    A step advances in one or both sequences, with equal weight; the cost of a pair of frames is the root mean square of
    their difference.
    """
    from scipy.spatial.distance import cdist

    return float(compiled_librosa().sequence.dtw(C=cdist(a, b) / np.sqrt(a.shape[1]), backtrack=False)[-1, -1])


Costs = Mapping[str, tuple[float, int]]
"""Path costs of an utterance, ``mcd`` and ``msd``, each with the number of frames."""


def path_costs(
    synthesized: np.ndarray, target: np.ndarray, *, over: Literal["synthesized", "target"] = "synthesized"
) -> Costs:
    """Return the path costs between two waves, with the frames of one side; NaN if the first is not finite."""
    if not is_finite(synthesized).all():
        return dict.fromkeys(("mcd", "msd"), (math.nan, 1))
    a, b = log_mel_power(synthesized), log_mel_power(target)
    frames = len(a if over == "synthesized" else b)
    return {"mcd": (warped_distance(cepstra(a), cepstra(b)), frames), "msd": (warped_distance(a, b), frames)}


def distortions(utterances: Iterable[Costs]) -> dict[str, float]:
    """Return MCD and MSD: the sums of the path costs of all utterances over the sums of their frames.

    fairseq divides its scores by the synthesized frames, and its checkpoint selection metric by those of the targets,
    which a network that does not stop cannot lower.
    """
    rows = [*utterances]
    return {name: mean_over_batches(costs[name] for costs in rows) for name in rows[0]}
