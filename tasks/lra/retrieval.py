"""Retrieval: does one paper cite the other, given the bytes of both? And generated pairs with the same statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cab import UserError
from tasks.lra.rows import PARTS, Example, stamp

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
TABLES, LETTERS = 16, b"abcdefghijklmnopqrstuvwxyz "


@dataclass(frozen=True)
class Papers:
    """Pairs of the ACL Anthology Network: per line a label, two names and two texts, without header or quoting."""

    folder: Path

    @property
    def key(self) -> dict[str, Any]:
        return {"reader": "retrieval 1", "files": stamp(self.folder / name for name in FILES.values())}

    def examples(self) -> Iterable[tuple[str, Iterable[Example]]]:
        for part, name in FILES.items():
            yield part, read_pairs(self.folder / name)


def read_pairs(path: Path) -> Iterator[Example]:
    """Read the pairs of a file; raise UserError with file and line for an invalid one."""
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != 5:
                raise UserError(f"{path}, line {number}: expected 5 tab-separated fields, got {len(fields)}")
            label, _, _, first, second = fields
            if label not in LABELS:
                raise UserError(f"{path}, line {number}: expected the label 0.0 or 1.0, got {label[:20]!r}")
            if not first or not second:
                raise UserError(f"{path}, line {number}: a text of the pair is empty")
            yield Example((first, second), LABELS[label])
    if number == 0:
        raise UserError(f"{path} has no pairs")


@dataclass(frozen=True)
class GeneratedPairs:
    """Two texts of ``length`` bytes, generated from the same or different of 16 letter transition tables."""

    length: int
    counts: tuple[int, int, int]

    @property
    def key(self) -> dict[str, Any]:
        return {"generator": "retrieval 1", **asdict(self)}

    def examples(self) -> Iterable[tuple[str, Iterable[Example]]]:
        following = np.random.default_rng(3).dirichlet([0.3] * len(LETTERS), size=(TABLES, len(LETTERS)))
        for number, part in enumerate(PARTS):
            yield part, self._pairs(np.random.default_rng(number), following.cumsum(axis=-1), self.counts[number])

    def _pairs(self, rng: np.random.Generator, shares: np.ndarray, count: int) -> Iterator[Example]:
        letters = np.frombuffer(LETTERS, dtype=np.uint8)
        labels, tables = rng.integers(2, size=count), np.empty((count, 2), dtype=int)
        tables[:, 0] = rng.integers(TABLES, size=count)
        other = (tables[:, 0] + rng.integers(1, TABLES, size=count)) % TABLES
        tables[:, 1] = np.where(labels == 1, tables[:, 0], other)
        places = np.empty((count, 2, self.length), dtype=int)
        places[..., 0] = rng.integers(len(letters), size=(count, 2))
        for place in range(1, self.length):
            rows = shares[tables, places[..., place - 1]]  # [count, 2, letters]
            chosen = (rows > rng.random((count, 2, 1)) * rows[..., -1:]).argmax(axis=-1)
            places[..., place] = chosen
        for texts, label in zip(letters[places], labels, strict=True):
            yield Example((texts[0].tobytes(), texts[1].tobytes()), int(label))
