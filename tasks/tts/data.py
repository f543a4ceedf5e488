"""Utterances with their features: LJSpeech's folder, or generated ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from cab import UserError
from cab.files.cache import checksums, digest_of, prepared, progress
from tasks.files import read_lines, warn_of_left_out, warn_of_repeats
from tasks.tts.audio import HOP, NUM_MELS, RATE, features, read_wave
from tasks.tts.phonemes import ALIGNED, END_TOKEN, PAD_TOKEN, WRITTEN, read_phones, unspoken, written_tokens
from tasks.tts.synthetic import generate_utterance, written_form

T = TypeVar("T")

FEATURES_VERSION = 1  # of the features; increase when they change
FRAMES_PER_STEP = 4  # frames that Transformer TTS predicts at once
LONGEST_DIFFERENCE = 0.1
"""Seconds by which the length of an alignment may differ from that of its wave."""


@dataclass(frozen=True)
class Utterance:
    """Features of one utterance; frames are logarithmic.

    Attributes:
        written: tokens of the text, for Transformer-TTS.
        aligned: tokens of the alignment, for FastSpeech 2; empty without one.
        durations: frames per aligned token, the first of which begins at frame ``start``.
        mel: [F, 80]; pitch, energy: [F].
    """

    name: str
    written: list[int]
    aligned: list[int]
    durations: list[int]
    start: int
    mel: np.ndarray
    pitch: np.ndarray
    energy: np.ndarray

    @property
    def columns(self) -> np.ndarray:
        """Frames, pitch and energy, [F, 82]."""
        return np.concatenate([self.mel, self.pitch[:, None], self.energy[:, None]], axis=1)


def read_metadata(folder: Path) -> list[tuple[str, str]]:
    """Read (clip, normalized text) from each line of metadata.csv, in which quotes are literal."""
    path = folder / "metadata.csv"
    if not path.is_file():
        raise UserError(f"{path} is missing; write a line id|text|normalized text for each file wavs/<id>.wav")
    clips, earlier = [], dict[str, int]()
    for number, line in read_lines(path):
        parts = line.split("|")
        if len(parts) != 3 or not parts[2].strip():
            raise UserError(f"{path}, line {number}: expected id|text|normalized text, got '{line[:60]}'")
        if parts[0] in earlier:
            raise UserError(f"{path}, line {number}: the clip {parts[0]} is that of line {earlier[parts[0]]} again")
        earlier[parts[0]] = number
        if character := unspoken(parts[2]):
            raise UserError(
                f"{path}, line {number}, clip {parts[0]}: the character '{character}' of '{parts[2]:.60}' has no "
                "phonemes; write it as a word, or remove it"
            )
        if not (folder / "wavs" / f"{parts[0]}.wav").is_file():
            raise UserError(f"{path}, line {number}: wavs/{parts[0]}.wav is missing; add it, or remove the line")
        clips.append((parts[0], parts[2]))
    if not clips:
        raise UserError(f"{path} is empty")
    return clips


def read_clips(
    folder: Path, split_names: Callable[[list[str]], dict[str, list[str]]], *, as_fairseq: bool = False
) -> tuple[dict[str, list[Utterance]], dict[str, Any]]:
    """Read the utterances of each split of a folder like LJSpeech's, from the cache if available; also an identifier.

    Alignments are read if there is a TextGrid for every clip; without any, the utterances have none.
    """
    metadata = read_metadata(folder)
    names = [clip for clip, _ in metadata]
    splits = split_names(names)
    for split, clips in splits.items():  # before features are computed
        if not clips:
            raise UserError(
                f"the {split} split of ljspeech has no clips: chapters LJ001 and LJ002 are test, LJ003 is dev, the "
                "rest train; for a sample, set task.num_held_out=N"
            )
    waves = [folder / "wavs" / f"{clip}.wav" for clip, _ in metadata]
    grids = [_find_grid(folder, clip) for clip, _ in metadata]
    aligned = [grid for grid in grids if grid is not None]
    if aligned and len(aligned) < len(grids):
        lacking = metadata[grids.index(None)][0]
        raise UserError(f"{folder}/TextGrid has alignments of some clips but not of {lacking}")
    for kind, paths in (("wavs", waves), ("TextGrid", aligned)):
        warn_of_left_out(folder / kind, paths)
    method, sums = _method(as_fairseq=as_fairseq), checksums(waves)
    contents = dict(zip(names, sums.values(), strict=True))
    warn_of_repeats("waves", {split: [(contents[clip], clip) for clip in clips] for split, clips in splits.items()})
    key = {"metadata": metadata, "waves": sums, "alignments": checksums(aligned), "reader": 3, **method}

    def utterances() -> Iterator[Utterance]:
        for (clip, text), wave, grid in zip(progress(metadata, "features"), waves, grids, strict=True):
            mel, pitch, energy = features(read_wave(wave), as_fairseq=as_fairseq)
            tokens, durations, start = _alignment(grid, len(mel)) if grid else ([], [], 0)
            written = [WRITTEN[token] for token in written_tokens(text)] + [END_TOKEN]
            yield Utterance(clip, written, tokens, durations, start, mel, pitch, energy)

    about = {"clips": len(metadata), "alignments": len(aligned), "content": digest_of(key), **method}
    by_name = {utterance.name: utterance for utterance in _cached(key, utterances())}
    return {split: [by_name[clip] for clip in clips] for split, clips in splits.items()}, about


def _find_grid(folder: Path, clip: str) -> Path | None:
    paths = [folder / "TextGrid" / name / f"{clip}.TextGrid" for name in ("LJSpeech", ".")]
    return next((path for path in paths if path.is_file()), None)


def _alignment(grid: Path, num_frames: int) -> tuple[list[int], list[int], int]:
    """Return the tokens, their frames (rounded ends minus rounded starts), and the first frame."""
    phones, end = read_phones(grid)
    seconds = num_frames * HOP / RATE
    if abs(end - seconds) > LONGEST_DIFFERENCE:
        raise UserError(
            f"{grid} is of {end:.2f} s, but its wave has {seconds:.2f} s: one of them is of another clip or cut"
        )
    edges = [min(round(time * RATE / HOP), num_frames) for time in (phones[0].start, *(phone.end for phone in phones))]
    durations = np.diff(edges).tolist()
    if sum(durations) < 1:
        raise UserError(f"{grid}: all phones together are shorter than a frame of {HOP} samples")
    return [ALIGNED[phone.name] for phone in phones], durations, edges[0]


def synthetic_utterances(count: int, *, as_fairseq: bool = False) -> tuple[list[Utterance], dict[str, Any]]:
    """Generate utterances with :func:`generate_utterance`; their alignments are exact."""

    def utterances() -> Iterator[Utterance]:
        for number in progress(range(count), "features"):
            phonemes, durations, wave = generate_utterance(number)
            mel, pitch, energy = features(wave, as_fairseq=as_fairseq)
            aligned = [ALIGNED[phoneme] for phoneme in phonemes]
            text = [WRITTEN[phoneme] for phoneme in written_form(phonemes)] + [END_TOKEN]
            yield Utterance(f"{number:04d}", text, aligned, durations, 0, mel, pitch, energy)

    said = " ".join(generate_utterance(1)[0])
    key = {"generator": 23, "second": said, "count": count, **_method(as_fairseq=as_fairseq)}
    return _cached(key, utterances()), key


def _method(*, as_fairseq: bool) -> dict[str, Any]:
    """Return what identifies the computation of the features."""
    return {"version": FEATURES_VERSION} | ({"features": "fairseq"} if as_fairseq else {})


def _cached(key: dict[str, Any], utterances: Iterator[Utterance]) -> list[Utterance]:

    def build(folder: Path) -> None:
        about, frames = [], 0
        with (folder / "frames.bin").open("wb") as file:
            for utterance in utterances:
                columns = utterance.columns.astype(np.float32)
                columns.tofile(file)
                fields = [utterance.written, utterance.aligned, utterance.durations, utterance.start]
                about.append([utterance.name, *fields, frames, len(columns)])
                frames += len(columns)
        (folder / "utterances.json").write_text(json.dumps(about))

    folder = prepared("tts", key, build)
    frames = np.memmap(folder / "frames.bin", dtype=np.float32, mode="r").reshape(-1, NUM_MELS + 2)
    cached = []
    for name, written, aligned, durations, start, row, count in json.loads((folder / "utterances.json").read_text()):
        columns = frames[row : row + count]
        mel, pitch, energy = columns[:, :NUM_MELS], columns[:, NUM_MELS], columns[:, NUM_MELS + 1]
        cached.append(Utterance(name, written, aligned, durations, start, mel, pitch, energy))
    return cached


def split_by_chapter(clips: Sequence[str]) -> dict[str, list[str]]:
    """Split LJSpeech as fairseq does: chapters 1 and 2 test, chapter 3 dev, the rest train."""
    splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for clip in clips:
        splits[{"LJ001": "test", "LJ002": "test", "LJ003": "dev"}.get(clip.partition("-")[0], "train")].append(clip)
    return splits


def split_at_end(items: Sequence[T], count: int) -> dict[str, list[T]]:
    """Use the last ``count`` items for test, as many before them for dev, the rest for training."""
    rest = max(len(items) - 2 * count, 0)
    bounds = {"train": (0, rest), "dev": (rest, len(items) - count), "test": (len(items) - count, None)}
    return {split: list(items[slice(*bound)]) for split, bound in bounds.items()}


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each mel bin, of pitch and of energy over the training split."""

    mel: tuple[np.ndarray, np.ndarray]
    pitch: tuple[float, float]
    energy: tuple[float, float]

    @classmethod
    def of(cls, utterances: Sequence[Utterance]) -> Scale:
        """Compute the statistics one utterance at a time, since the frames may exceed memory."""
        sums, squares, count = np.zeros(NUM_MELS + 2), np.zeros(NUM_MELS + 2), 0
        for u in utterances:
            columns = u.columns.astype(np.float64)
            sums, squares, count = sums + columns.sum(axis=0), squares + (columns**2).sum(axis=0), count + len(columns)
        mean = sums / count
        variance = squares / count - mean**2
        deviation = np.sqrt(np.where(variance > 1e-10, variance, 1.0))  # what is constant is only centered
        pairs = list(zip(mean.tolist(), deviation.tolist(), strict=True))
        mel = mean[:NUM_MELS].astype(np.float32), deviation[:NUM_MELS].astype(np.float32)
        return cls(mel, pairs[NUM_MELS], pairs[NUM_MELS + 1])

    def normal(self, mel: np.ndarray) -> np.ndarray:
        return (mel - self.mel[0]) / self.mel[1]

    def log_mel(self, normal: np.ndarray) -> np.ndarray:
        return normal * self.mel[1] + self.mel[0]


class Utterances(Dataset[dict[str, Tensor]]):
    """Utterances of a split as padded batches, normalized; masks are True at padding.

    ``written`` [B, T] with ``frames`` [B, S, 4 * 80] in groups of four; with alignments also ``aligned`` [B, T'] with
    ``durations``, ``pitch``, ``energy`` [B, T'] and ``mel`` [B, F, 80].

    With ``as_fairseq``, an end token with no frames, pitch 0 and energy 0 follows the aligned ones; a token's pitch and
    energy are log(mean + 1) over its frames, not normalized (otherwise the mean of the logarithms); and frames that do
    not fill a group of four are dropped.
    """

    def __init__(self, utterances: Sequence[Utterance], scale: Scale, *, as_fairseq: bool = False) -> None:
        self.utterances, self.scale, self.as_fairseq = utterances, scale, as_fairseq

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        chosen = [self.utterances[i] for i in indices]
        batch = _padded("written", [torch.tensor(u.written) for u in chosen], PAD_TOKEN)
        batch |= _padded("frames", [self._groups(u) for u in chosen], 0.0)
        if all(u.aligned for u in chosen):
            end, nothing = ([END_TOKEN], [0]) if self.as_fairseq else ([], [])
            batch |= _padded("aligned", [torch.tensor(u.aligned + end) for u in chosen], PAD_TOKEN)
            batch["durations"] = pad_sequence([torch.tensor(u.durations + nothing) for u in chosen], batch_first=True)
            for name in ("pitch", "energy"):
                rows = [torch.tensor(self._by_token(u, name) + nothing) for u in chosen]
                batch[name] = pad_sequence(rows, batch_first=True)
            batch |= _padded("mel", [torch.from_numpy(self.spoken(u)) for u in chosen], 0.0)
        return {**batch, "index": torch.tensor(indices)}

    def spoken(self, utterance: Utterance) -> np.ndarray:
        """Return the normalized frames between the leading and trailing silence."""
        stop = utterance.start + sum(utterance.durations)
        return self.scale.normal(np.asarray(utterance.mel[utterance.start : stop]))

    def grouped(self, utterance: Utterance) -> np.ndarray:
        """Return the frames that are predicted in groups of four."""
        count = len(utterance.mel)
        return np.asarray(utterance.mel[: count - count % FRAMES_PER_STEP if self.as_fairseq else count])

    def _groups(self, utterance: Utterance) -> Tensor:
        """Group the frames by four; the last row is padded with average silence."""
        mel = torch.from_numpy(self.scale.normal(self.grouped(utterance)))
        missing = -len(mel) % FRAMES_PER_STEP
        return torch.cat([mel, mel.new_zeros(missing, NUM_MELS)]).reshape(-1, FRAMES_PER_STEP * NUM_MELS)

    def _by_token(self, utterance: Utterance, name: str) -> list[float]:
        """Return the mean over each token's frames; 0 for a token without frames."""
        mean, deviation = getattr(self.scale, name)
        values = np.asarray(getattr(utterance, name))
        values = np.exp(values) if self.as_fairseq else (values - mean) / deviation
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        durations = np.asarray(utterance.durations)
        ends = utterance.start + np.cumsum(durations)
        means = ((sums[ends] - sums[ends - durations]) / np.maximum(durations, 1)).tolist()
        return [math.log1p(value) for value in means] if self.as_fairseq else means


def _padded(name: str, rows: list[Tensor], fill: float) -> dict[str, Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    batch = pad_sequence(rows, batch_first=True, padding_value=fill)
    return {name: batch, f"{name}_padding": torch.arange(batch.shape[1]) >= lengths.unsqueeze(1)}
