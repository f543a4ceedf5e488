"""librosa, whose numba functions one process at a time compiles."""

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
    """librosa with what is called here compiled, or loaded from numba's cache.

    numba does not lock its cache: of 24 processes that filled it in threes one ended with a segmentation fault, and one
    that fails half-way can leave what fails every later one. The first use is therefore under a lock beside the cache,
    which is ``$NUMBA_CACHE_DIR`` or in CAB's own.
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
