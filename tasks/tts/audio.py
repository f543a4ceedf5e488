"""Conversion between waves and features: log-mel frames, pitch, energy, Griffin-Lim."""

from __future__ import annotations

import functools
import io
import os
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from cab import UserError
from cab.errors import first_line
from cab.files.cache import cache_root, read_bytes, report_waiting
from cab.files.disk import disk_errors
from cab.files.locks import locked
from cab.files.numbers import is_finite
from cab.files.text_table import counted


@functools.cache
def compiled_librosa() -> ModuleType:
    """Return librosa with the functions used here compiled or loaded from numba's cache.

    numba does not lock its cache, and processes that fill it at the same time can crash or damage it. The first use is
    therefore protected by a lock next to the cache, which is in ``$NUMBA_CACHE_DIR`` or in CAB's own.
    """
    folder = Path(os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_root() / "numba")))
    folder.mkdir(parents=True, exist_ok=True)
    title = "compiling librosa, once per machine,"
    with report_waiting(title), disk_errors(folder), locked(folder / "librosa.lock", "which compiles it"):
        import librosa

        noise = np.random.default_rng(0).uniform(-1, 1, 8192).astype(np.float32)
        librosa.yin(noise, fmin=100, fmax=600, sr=22050, frame_length=1024)
        librosa.griffinlim(np.abs(librosa.stft(noise, n_fft=1024)), n_iter=1, n_fft=1024, momentum=0.0)
        librosa.sequence.dtw(C=np.ones((2, 3)), backtrack=False)
    return librosa


RATE = 22050  # of LJSpeech; all others as in FastSpeech 2
N_FFT = WINDOW = 1024
HOP = 256
NUM_MELS = 80
MEL_RANGE = (20.0, 8000.0)
PITCH_RANGE = (71.0, 600.0)
FLOOR = 1e-5  # before a logarithm: silence would be minus infinity


def read_wave(path: Path) -> np.ndarray:
    """Read mono samples in [-1, 1]; raise UserError for a broken, cut or empty file, or another rate or shape."""
    import soundfile

    content = read_bytes(path)
    if content[:4] != b"RIFF":  # libsndfile does not notice that a file in other formats is cut
        raise UserError(f"{path} is not a wave in RIFF format; convert it")
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            expected, rate = file.frames, file.samplerate
            wave = file.read(dtype="float32")
    except (RuntimeError, OSError, TypeError) as error:  # soundfile raises its own subclass of RuntimeError
        raise UserError(
            f"{path} is not a wave that can be read ({getattr(error, 'error_string', first_line(error))})"
        ) from None
    if fault := _fault(content):
        raise UserError(f"{path} is damaged: {fault}")
    if len(wave) != expected:
        raise UserError(f"{path} is cut: it lacks {counted(expected - len(wave), 'sample')}")
    if rate != RATE or wave.ndim != 1:
        raise UserError(f"{path} has {rate} Hz and shape {wave.shape}; expected {RATE} Hz and one channel")
    if len(wave) < N_FFT:
        raise UserError(f"{path} has {counted(len(wave), 'sample')}, fewer than a window of {N_FFT}")
    if not is_finite(wave).all():
        raise UserError(f"{path}: sample {is_finite(wave).argmin()} is NaN or infinite")
    return wave


def _fault(content: bytes) -> str:
    """Return what differs between the sizes in a file of chunks and its bytes, which libsndfile ignores."""
    place, unknown, chunks, frame = 12, 2**32 - 1, dict[bytes, int](), 1
    while place < len(content):
        name, size = struct.unpack_from("<4sI", content[place:].ljust(8, b"\0"))
        if name == b"data" and size == unknown:  # of a stream
            return ""
        if not name.isascii() or not name.decode("ascii", "replace").isprintable():
            return f"its header announces {counted(len(content) - place, 'byte')} less"
        if (missing := place + 8 + size - len(content)) > 0:
            return f"it lacks {counted(missing, 'byte')}"
        if name in chunks and name in (b"data", b"fmt "):
            return f"it has more than one chunk '{name.decode().strip()}'"
        frame = struct.unpack_from("<H", content, place + 20)[0] if name == b"fmt " and size >= 16 else frame
        chunks[name] = size
        place += 8 + size + size % 2
    (whole,) = struct.unpack_from("<I", content, 4)
    if whole not in (0, unknown, len(content) - 8, len(content) - 7):  # the last chunk may lack its padding
        return f"its header announces {whole + 8:,} bytes, it has {len(content):,}"
    rest = chunks.get(b"data", 0) % max(1, frame)
    return f"{rest} bytes at the end of its samples are no sample" if rest else ""


@functools.cache
def mel_filters() -> Tensor:
    """Return mel filters [80, 513]."""
    mel = compiled_librosa().filters.mel
    return torch.from_numpy(mel(sr=RATE, n_fft=N_FFT, n_mels=NUM_MELS, fmin=MEL_RANGE[0], fmax=MEL_RANGE[1]))


def magnitudes(wave: np.ndarray, *, windowed: bool = True) -> Tensor:
    """Return the magnitude spectrogram [513, F], one frame per 256 samples, with a Hann window."""
    window = torch.hann_window(WINDOW) if windowed else torch.ones(WINDOW)
    spectrum = torch.stft(torch.from_numpy(wave), N_FFT, HOP, WINDOW, window, pad_mode="reflect", return_complex=True)
    return spectrum.abs()


def features(wave: np.ndarray, *, as_fairseq: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log-mel frames [F, 80], log pitch [F] and log energy [F] (Ren et al. 2021, section 2.3).

    Pitch is the logarithm of YIN's estimate; in quiet frames and those without an estimate in YIN's range it is
    interpolated, as FastSpeech 2 does for unvoiced frames. With ``as_fairseq``, energy is computed without a window.
    """
    spectrum = magnitudes(wave)
    mel = (mel_filters() @ spectrum).clamp(min=FLOOR).log().T.contiguous().numpy()
    energy = spectrum.norm(dim=0).numpy()
    low, high = PITCH_RANGE
    pitch = compiled_librosa().yin(wave, fmin=low, fmax=high, sr=RATE, frame_length=N_FFT, hop_length=HOP)
    pitch = pitch[: len(energy)]
    voiced = (pitch > low * 1.02) & (pitch < high * 0.98) & (energy > 0.05 * energy.max())
    frames = np.arange(len(pitch))
    pitch = np.interp(frames, frames[voiced], pitch[voiced]) if voiced.any() else np.full(len(pitch), low)
    if as_fairseq:
        energy = magnitudes(wave, windowed=False).norm(dim=0).numpy()
    return mel, np.log(pitch).astype(np.float32), np.log(np.maximum(energy, FLOOR)).astype(np.float32)


def in_16_bits(wave: np.ndarray) -> np.ndarray:
    """Quantize samples to 16 bits, with clipping to [-1, 1]; a wave that is not finite is returned unchanged."""
    import soundfile

    if not is_finite(wave).all():
        return wave
    file = io.BytesIO()
    soundfile.write(file, wave, RATE, format="WAV", subtype="PCM_16")
    file.seek(0)
    return np.asarray(soundfile.read(file, dtype="float32")[0])


@functools.cache
def _inverse_filters() -> np.ndarray:
    return np.linalg.pinv(mel_filters().numpy())


def griffin_lim(mel: np.ndarray, *, iterations: int) -> np.ndarray:
    """Synthesize a wave from log-mel frames [F, 80]: pseudo-inverse filters, then phases by Griffin and Lim (1984).

    Frames that are not finite give a wave of NaN.
    """
    spectrum = np.maximum(_inverse_filters() @ np.exp(mel.T.astype(np.float64)), 0.0).astype(np.float32)
    if not is_finite(spectrum).all():
        return np.full(HOP * len(mel), np.nan, dtype=np.float32)
    wave = compiled_librosa().griffinlim(
        spectrum, n_iter=iterations, hop_length=HOP, win_length=WINDOW, n_fft=N_FFT, momentum=0.0, random_state=0
    )
    return np.asarray(wave, dtype=np.float32)
