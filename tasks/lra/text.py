"""Text: is a film review positive or negative, given its bytes? Retrieval: does one of two papers cite the other?

Both have generated stand-ins: texts whose class follows from counting words, and pairs with the same statistics.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cab import UserError
from cab.files.cache import check_unchanged, checksums, digest_of, read_bytes
from cab.files.disk import visible_files
from tasks.files import SPLITS, decode_text, warn_of_left_out
from tasks.lra.rows import HOLD_OUT_ONE_IN, Counts, Example, Source, Splits, shuffled

REVIEWS_FOLDER = "train/pos"
CLASS_FOLDERS = ("neg", "pos")
CLASS_MARKERS = ((b"quexo", b"xaqu", b"oquix", b"axeq"), (b"jizul", b"zujal", b"lajiz", b"uzlij"))
MARKED = 32
"""Bytes of generated text per marker, on average."""


def reviews(folder: Path, *, validation_split: bool = True) -> Source:
    """Read IMDB's folders ``{train,test}/{pos,neg}/*.txt`` (Maas et al. 2011).

    Args:
        validation_split: hold out a tenth of the training split; otherwise validate on the test split, as published.
    """
    train, test = _files(folder / "train"), _files(folder / "test")

    def read() -> Splits:
        order = shuffled(len(train)) if validation_split else list(range(len(train)))
        held_out = max(1, len(train) // HOLD_OUT_ONE_IN) if validation_split else 0
        validation = [train[i] for i in order[:held_out]] if validation_split else test
        for split, files in zip(SPLITS, ([train[i] for i in order[held_out:]], validation, test), strict=True):
            yield split, (Example((read_review(path),), label) for path, label in files)

    files = digest_of(checksums([path for path, _ in (*train, *test)]))
    return Source({"reader": "reviews 1", "files": files, "held_out": validation_split}, read)


def _files(folder: Path) -> list[tuple[Path, int]]:
    files = {label: visible_files(folder / name, "*.txt") for label, name in enumerate(CLASS_FOLDERS)}
    for label, paths in files.items():
        if not paths:
            raise UserError(f"no reviews (*.txt) in {folder / CLASS_FOLDERS[label]}")
        warn_of_left_out(folder / CLASS_FOLDERS[label], paths)
    return [(path, label) for label, paths in files.items() for path in paths]


def read_review(path: Path) -> bytes:
    """Return the bytes of a review; raise UserError with the file if it is empty or not text."""
    content = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    decode_text(path, content)
    if not content.strip():
        raise UserError(f"{path}, line 1: the review is empty")
    return content


def generated_reviews(length: int, counts: Counts) -> Source:
    """Return texts of ``length`` bytes whose class is that of most of their markers, among meaningless words.

    Markers are evenly distributed and have letters of their own, so counting words or letters suffices. As a control,
    this data set needs no long range and does not distinguish attentions.
    """

    def generate(rng: np.random.Generator, count: int) -> Iterator[Example]:
        return (_review(rng, length) for _ in range(count))

    return Source.generated("text 1", counts, generate, length=length)


def _review(rng: np.random.Generator, length: int) -> Example:
    label = int(rng.integers(2))
    markers = 2 * (length // MARKED // 2) + 1
    right = int(rng.integers(markers // 2 + 1, markers + 1))
    classes = rng.permutation([label] * right + [1 - label] * (markers - right))
    spacing = length // markers
    text = bytearray()
    for number, kind in enumerate(classes, start=1):
        marker = CLASS_MARKERS[kind][rng.integers(len(CLASS_MARKERS[kind]))] + b" "
        text += b"".join(_words(rng, number * spacing - len(text) - len(marker))) + marker
    return Example((bytes(text[:length].ljust(length)),), label)


def _words(rng: np.random.Generator, size: int) -> Iterator[bytes]:
    """Generate words of two to seven letters, ``size`` bytes including a space after each."""
    letters = b"aeioubcdfghkmnprstvwy"
    while size > 0:
        length = min(int(rng.integers(3, 9)), size)
        yield bytes(letters[i] for i in rng.integers(len(letters), size=length - 1)) + b" "
        size -= length


PAIR_FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
NUM_TABLES, LETTERS = 16, b"abcdefghijklmnopqrstuvwxyz "


def papers(folder: Path) -> Source:
    """Read pairs of the ACL Anthology Network: per line a label, two names and two texts, without header or quoting."""
    return Source.files("retrieval 1", {split: folder / name for split, name in PAIR_FILES.items()}, read_pairs)


def read_pairs(path: Path) -> Iterator[Example]:
    """Read the pairs of a file; raise UserError with file and line for an invalid one."""
    number, content = 0, hashlib.sha256()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            content.update(line)
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != 5:
                raise UserError(f"{path}, line {number}: expected 5 tab-separated fields, got {len(fields)}")
            label, _, _, first, second = fields
            if label not in LABELS:
                raise UserError(f"{path}, line {number}: expected the label 0.0 or 1.0, got {label[:20]!r}")
            if not first.strip() or not second.strip() or b"\0" in line:
                raise UserError(f"{path}, line {number}: a text of the pair is empty or has a NUL character")
            yield Example((first, second), LABELS[label])
    if number == 0:
        raise UserError(f"{path} has no pairs")
    check_unchanged(path, content)


def generated_pairs(length: int, counts: Counts) -> Source:
    """Return pairs of texts of ``length`` bytes from the same or different of 16 letter transition tables."""
    letters = np.frombuffer(LETTERS, dtype=np.uint8)

    def generate(rng: np.random.Generator, count: int) -> Iterator[Example]:
        following = np.random.default_rng(3).dirichlet([0.3] * len(letters), size=(NUM_TABLES, len(letters)))
        shares = following.cumsum(axis=-1)
        labels, tables = rng.integers(2, size=count), np.empty((count, 2), dtype=int)
        tables[:, 0] = rng.integers(NUM_TABLES, size=count)
        other = (tables[:, 0] + rng.integers(1, NUM_TABLES, size=count)) % NUM_TABLES
        tables[:, 1] = np.where(labels == 1, tables[:, 0], other)
        texts = np.empty((count, 2, length), dtype=int)
        texts[..., 0] = rng.integers(len(letters), size=(count, 2))
        for place in range(1, length):
            rows = shares[tables, texts[..., place - 1]]  # [count, 2, letters]
            texts[..., place] = (rows > rng.random((count, 2, 1)) * rows[..., -1:]).argmax(axis=-1)
        for pair, label in zip(letters[texts], labels, strict=True):
            yield Example((pair[0].tobytes(), pair[1].tobytes()), int(label))

    return Source.generated("retrieval 1", counts, generate, length=length)
