"""Labeled sequences of symbols, their cache, and batches."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import UserError
from cab.files.cache import checksums, prepared, progress
from tasks.files import SPLITS, warn_of_left_out, warn_of_repeats

HOLD_OUT_ONE_IN = 10
"""One of this many training examples is held out for validation."""
SYMBOLS = "symbols.bin"
EMPTY_ID = 0
"""The id of an empty position; symbol s has the id s + 1."""


class Example(NamedTuple):
    """``texts`` are the symbols of one sequence or of a pair, one byte each; ``label`` is the class."""

    texts: tuple[bytes, ...]
    label: int


Splits = Iterable[tuple[str, Iterable[Example]]]
"""Each split with its examples."""
Counts = tuple[int, int, int]
"""Number of examples in each of :data:`SPLITS`."""


@dataclass(frozen=True)
class Source:
    """Examples that ``read`` returns; ``key`` are plain values that identify them."""

    key: Mapping[str, Any]
    read: Callable[[], Splits]

    @classmethod
    def files(cls, reader: str, paths: Mapping[str, Path], read: Callable[[Path], Iterable[Example]]) -> Source:
        """Return the examples of one file per split."""
        start, _, _ = paths["train"].name.partition("train")  # that of the names of all parts
        warn_of_left_out(paths["train"].parent, paths.values(), f"^{re.escape(start)}")
        key = {"reader": reader, "files": checksums(list(paths.values()))}
        return cls(key, lambda: ((split, read(path)) for split, path in paths.items()))

    @classmethod
    def generated(
        cls,
        generator: str,
        counts: Counts,
        generate: Callable[[np.random.Generator, int], Iterable[Example]],
        **settings: Any,
    ) -> Source:
        """Return what ``generate`` makes from random numbers that depend on the split only, and a count."""
        numbered = list(zip(SPLITS, counts, strict=True))

        def read() -> Splits:
            for seed, (split, count) in enumerate(numbered):
                yield split, generate(np.random.default_rng(seed), count)

        return cls({"generator": generator, **settings, "counts": counts}, read)


class Batch(NamedTuple):
    """``texts``: ids [B, N] of one sequence or of a pair, each padded to its longest; ``labels`` [B]."""

    texts: tuple[Tensor, ...]
    labels: Tensor


class Rows(Dataset[Batch]):
    """Examples of a split.

    Args:
        folder: written by :func:`prepare`.
        length: maximum number of symbols; longer sequences are truncated.
        dropped: a symbol removed before truncation.
    """

    def __init__(self, folder: Path, *, length: int, dropped: int | None = None) -> None:
        self.length, self.dropped = length, dropped
        self.symbols = np.memmap(folder / SYMBOLS, dtype=np.uint8, mode="r")
        self.ends = np.load(folder / "ends.npy")  # [examples, sequences per example]
        self.labels = torch.from_numpy(np.load(folder / "labels.npy"))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        """Number of sequences per example: 1, or 2 for pairs."""
        return int(self.ends.shape[1])

    def text(self, row: int, number: int = 0) -> np.ndarray:
        """Return all symbols of a sequence, before removal and truncation: uint8."""
        index, ends = row * self.width + number, self.ends.reshape(-1)
        return self.symbols[ends[index - 1] if index else 0 : ends[index]]

    def seen(self, row: int, number: int = 0) -> np.ndarray:
        """Return the symbols of a sequence that the network reads."""
        text = self.text(row, number)
        return (text if self.dropped is None else text[text != self.dropped])[: self.length]

    def __getitems__(self, rows: list[int]) -> Batch:
        return Batch(tuple(self._padded(rows, number) for number in range(self.width)), self.labels[rows])

    def _padded(self, indices: list[int], number: int) -> Tensor:
        texts = [self.seen(index, number) for index in indices]
        ids = np.full((len(texts), max(map(len, texts))), EMPTY_ID, dtype=np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = text.astype(np.int64) + 1
        return torch.from_numpy(ids)


def prepare(source: Source) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Return the cache folder with one folder per split, and per split the number of examples and a checksum."""

    def build(target: Path) -> None:
        about = {split: _write(target / split, progress(rows, f"preparing {split}")) for split, rows in source.read()}
        if lacking := [split for split, counts in about.items() if not counts["rows"]]:
            raise UserError(f"the {lacking[0]} split has no examples")
        (target / "about.json").write_text(json.dumps(about))

    folder = prepared("lra", {**source.key, "digests": 1}, build)
    digests = {split: np.load(folder / split / "digests.npy") for split in SPLITS}
    if np.array_equal(digests["validation"], digests["test"]):  # by choice
        del digests["validation"]
    numbered = {split: enumerate(values.tolist(), start=1) for split, values in digests.items()}
    if "files" in source.key:
        examples = {split: [(x, f"example {i} of {split}") for i, x in each] for split, each in numbered.items()}
        warn_of_repeats("examples", examples)
    return folder, json.loads((folder / "about.json").read_text())


def _write(folder: Path, examples: Iterable[Example]) -> dict[str, Any]:
    folder.mkdir()
    size, ends, labels, digests = 0, [], [], []
    digest = hashlib.sha256()
    with (folder / SYMBOLS).open("wb") as file:
        for texts, label in examples:
            for text in texts:
                file.write(text)
                digest.update(text)
            ends.append([size := size + len(text) for text in texts])
            labels.append(label)
            digests.append(hashlib.sha256(b"\0".join(texts)).digest()[:8])
    np.save(folder / "digests.npy", np.frombuffer(b"".join(digests), dtype=np.uint64))
    for name, values in (("ends", ends), ("labels", labels)):
        array = np.array(values, dtype=np.int64)
        np.save(folder / f"{name}.npy", array)
        digest.update(array.tobytes())
    return {"rows": len(labels), "sha256": digest.hexdigest()}


def shuffled(count: int) -> list[int]:
    """Return the fixed order for an unpublished split, as the S4 framework draws it."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(42)).tolist()
