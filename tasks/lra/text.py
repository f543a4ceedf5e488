"""Text: is a film review positive or negative, given its bytes? And a stand-in that can be solved by counting words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cab import UserError
from tasks.lra.rows import PARTS, Example, shuffled, stamp

INSIDE = "train/pos"
HELD_OUT = 10
"""One of this many training reviews is held out for validation."""
CLASSES = ("neg", "pos")
MARKERS = ((b"quexo", b"xaqu", b"oquix", b"axeq"), (b"jizul", b"zujal", b"lajiz", b"uzlij"))
MARKED = 32
"""Bytes of generated text per marker, on average."""


@dataclass(frozen=True)
class Reviews:
    """IMDB's folders ``{train,test}/{pos,neg}/*.txt`` (Maas et al. 2011).

    Args:
        folder: path of ``aclImdb``.
        validation_split: hold out a tenth of the training part for validation; otherwise validate on the test part, as
            published.
    """

    folder: Path
    validation_split: bool = True

    @property
    def key(self) -> dict[str, Any]:
        files = [path for part in ("train", "test") for path, _ in self._files(part)]
        return {"reader": "reviews 1", "files": stamp(files), "held_out": self.validation_split}

    def _files(self, part: str) -> list[tuple[Path, int]]:
        found = []
        for label, name in enumerate(CLASSES):
            files = sorted((self.folder / part / name).glob("*.txt"))
            if not files:
                raise UserError(f"no reviews (*.txt) in {self.folder / part / name}")
            found += [(path, label) for path in files]
        return found

    def examples(self) -> Iterable[tuple[str, Iterable[Example]]]:
        train, test = self._files("train"), self._files("test")
        order = shuffled(len(train)) if self.validation_split else list(range(len(train)))
        kept = max(1, len(train) // HELD_OUT) if self.validation_split else 0
        validation = [train[i] for i in order[:kept]] if self.validation_split else test
        for part, files in zip(PARTS, ([train[i] for i in order[kept:]], validation, test), strict=True):
            yield part, (Example((read_review(path),), label) for path, label in files)


def read_review(path: Path) -> bytes:
    """Return the bytes of a review; raise UserError with the file if it is empty or not text."""
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text; the file is damaged, download it again") from None
    if not content.strip():
        raise UserError(f"{path}, line 1: the review is empty")
    return content


@dataclass(frozen=True)
class GeneratedReviews:
    """Texts of ``length`` bytes whose class is that of most of their markers, among meaningless words.

    Markers are evenly distributed and have letters of their own, so counting words or letters suffices. As a control,
    this data set needs no long range and does not distinguish attentions.
    """

    length: int
    counts: tuple[int, int, int]

    @property
    def key(self) -> dict[str, Any]:
        return {"generator": "text 1", **asdict(self)}

    def examples(self) -> Iterable[tuple[str, Iterable[Example]]]:
        for number, part in enumerate(PARTS):
            rng = np.random.default_rng(number)
            yield part, (self._text(rng) for _ in range(self.counts[number]))

    def _text(self, rng: np.random.Generator) -> Example:
        label = int(rng.integers(2))
        markers = 2 * (self.length // MARKED // 2) + 1
        right = int(rng.integers(markers // 2 + 1, markers + 1))
        classes = rng.permutation([label] * right + [1 - label] * (markers - right))
        between = self.length // markers
        text = bytearray()
        for number, kind in enumerate(classes, start=1):
            marker = MARKERS[kind][rng.integers(len(MARKERS[kind]))] + b" "
            text += b"".join(_words(rng, number * between - len(text) - len(marker))) + marker
        return Example((bytes(text[: self.length].ljust(self.length)),), label)


def _words(rng: np.random.Generator, size: int) -> Iterator[bytes]:
    """Generate words of two to seven letters, ``size`` bytes including a space after each."""
    letters = b"aeioubcdfghkmnprstvwy"
    while size > 0:
        length = min(int(rng.integers(3, 9)), size)
        yield bytes(letters[i] for i in rng.integers(len(letters), size=length - 1)) + b" "
        size -= length
