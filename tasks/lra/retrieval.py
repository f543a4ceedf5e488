"""Retrieval: does one paper cite the other, given the bytes of both? And generated pairs with the same statistics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cab import UserError
from tasks.lra.rows import Counts, Example, Source

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
TABLES, LETTERS = 16, b"abcdefghijklmnopqrstuvwxyz "


def papers(folder: Path) -> Source:
    """Read pairs of the ACL Anthology Network: per line a label, two names and two texts, without header or quoting."""
    return Source.files("retrieval 1", {split: folder / name for split, name in FILES.items()}, read_pairs)


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


def generated_pairs(length: int, counts: Counts) -> Source:
    """Return pairs of texts of ``length`` bytes from the same or different of 16 letter transition tables."""
    letters = np.frombuffer(LETTERS, dtype=np.uint8)

    def generate(rng: np.random.Generator, count: int) -> Iterator[Example]:
        following = np.random.default_rng(3).dirichlet([0.3] * len(letters), size=(TABLES, len(letters)))
        shares = following.cumsum(axis=-1)
        labels, tables = rng.integers(2, size=count), np.empty((count, 2), dtype=int)
        tables[:, 0] = rng.integers(TABLES, size=count)
        other = (tables[:, 0] + rng.integers(1, TABLES, size=count)) % TABLES
        tables[:, 1] = np.where(labels == 1, tables[:, 0], other)
        texts = np.empty((count, 2, length), dtype=int)
        texts[..., 0] = rng.integers(len(letters), size=(count, 2))
        for place in range(1, length):
            rows = shares[tables, texts[..., place - 1]]  # [count, 2, letters]
            texts[..., place] = (rows > rng.random((count, 2, 1)) * rows[..., -1:]).argmax(axis=-1)
        for pair, label in zip(letters[texts], labels, strict=True):
            yield Example((pair[0].tobytes(), pair[1].tobytes()), int(label))

    return Source.generated("retrieval 1", counts, generate, length=length)
