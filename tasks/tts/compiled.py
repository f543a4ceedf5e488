"""Import of librosa, whose numba functions are compiled by one process at a time."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType

import numpy as np
from filelock import FileLock

from cab.files.cache import cache_root


@functools.cache
def compiled_librosa() -> ModuleType:
    """Return librosa with the functions used here compiled or loaded from numba's cache.

    numba does not lock its cache: when 24 processes filled it three at a time, one crashed with a segmentation fault,
    and an interrupted process can leave a cache that breaks all later ones. The first use is therefore protected by a
    lock next to the cache, which is in ``$NUMBA_CACHE_DIR`` or in CAB's own.
    """
    folder = Path(os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_root() / "numba")))
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "librosa.lock"):
        import librosa

        noise = np.random.default_rng(0).uniform(-1, 1, 8192).astype(np.float32)
        librosa.yin(noise, fmin=100, fmax=600, sr=22050, frame_length=1024)
        librosa.griffinlim(np.abs(librosa.stft(noise, n_fft=1024)), n_iter=1, n_fft=1024, momentum=0.0)
        librosa.sequence.dtw(C=np.ones((2, 3)), backtrack=False)
    return librosa
