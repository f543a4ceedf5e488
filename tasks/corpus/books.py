"""Books in three parts: a folder in PG-19's layout, a data set on the Hugging Face Hub, or generated books."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from cab import UserError
from cab.data.sources import fetch_hint
from cab.files.cache import checksums
from tasks.hub import stream

log = logging.getLogger(__name__)

PARTS = ("train", "validation", "test")
WIKITEXTS = ("wikitext103", "wikitext2")
LEAST_WORDS = 10
"""Books with fewer words are skipped, with a warning that counts them."""


class Books(ABC):
    """Stream books one at a time; ``key`` identifies their content.

    ``counts_line_ends``: whether per-word perplexity counts line ends as words.
    """

    key: dict[str, Any]
    counts_line_ends: ClassVar[bool] = False

    @abstractmethod
    def read(self, part: str) -> Iterator[str]:
        """Yield the text of each book of ``part``, one of :data:`PARTS`."""

    def readable(self, part: str) -> Iterator[str]:
        """Yield :meth:`read` without books of fewer than :data:`LEAST_WORDS` words.

        Raises:
            ValueError: no book is left.
        """
        kept = left_out = 0
        for text in self.read(part):
            if len(text[:2000].split()) < LEAST_WORDS:
                left_out += 1
                continue
            kept += 1
            yield text
        if left_out:
            log.warning("left out %d books of %s with fewer than %d words", left_out, part, LEAST_WORDS)
        if not kept:
            raise UserError(f"{self}: no book of {part} has {LEAST_WORDS} words or more")


class FolderBooks(Books):
    """``<folder>/{train,validation,test}/*.txt``, the layout of PG-19; ``bring`` says how to download it.

    Raises:
        ValueError: a part is missing or empty, or a file is not UTF-8.
    """

    def __init__(self, folder: Path, bring: str = fetch_hint("pg19", None)) -> None:
        self.folder = folder
        self.files = {part: sorted((folder / part).glob("*.txt")) for part in PARTS}
        for part, files in self.files.items():
            if not files:
                raise UserError(
                    f"no books at {folder / part}: {bring}; PG-19's layout is train/, validation/ and test/ with "
                    "<id>.txt; point data_root at its parent folder, or use dataset=synthetic"
                )
        self.key = {part: checksums(files) for part, files in self.files.items()}

    def __str__(self) -> str:
        return str(self.folder)

    def read(self, part: str) -> Iterator[str]:
        for path in self.files[part]:
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


class HubBooks(Books):
    """A data set on the Hub with a column ``text``, streamed; its revision is part of the key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._parts, self.key = stream(name, {part: part for part in PARTS})

    def __str__(self) -> str:
        return self.name

    def read(self, part: str) -> Iterator[str]:
        for row in self._parts[part]:
            yield row["text"]


class SyntheticBooks(Books):
    """Books that ``generate`` writes, a fixed number per part.

    Args:
        generate: returns the text of a book, which depends on its number only.
    """

    COUNTS: ClassVar[dict[str, int]] = {"train": 128, "validation": 8, "test": 8}
    VERSION = 2

    def __init__(self, generate: Callable[[int], str]) -> None:
        self.generate = generate
        digest = hashlib.sha256(generate(0).encode()).hexdigest()[:16]
        self.key = {"generator": self.VERSION, "first": digest, "counts": self.COUNTS}

    def __str__(self) -> str:
        return "the generated books"

    def read(self, part: str) -> Iterator[str]:
        first = sum(self.COUNTS[before] for before in PARTS[: PARTS.index(part)])
        for number in range(self.COUNTS[part]):
            yield self.generate(first + number)


def find_books(dataset: str, source: str | None, data_root: Path | None, *, synthetic: SyntheticBooks) -> Books:
    """Find a data set's books: ``synthetic``, on the Hub if ``source`` is given, or under ``data_root``.

    Raises:
        ValueError: no folder is given, or it has no books.
    """
    if dataset == "synthetic":
        return synthetic
    if source is not None:
        return HubBooks(source)
    if dataset in WIKITEXTS:
        if data_root is None:
            raise UserError(f"dataset '{dataset}' needs its files: {fetch_hint(dataset, None)}; then data_root=FOLDER")
        from tasks.corpus.wikitext import WikiText

        return WikiText(dataset, data_root)
    if data_root is None:
        raise UserError(
            f"dataset '{dataset}' needs its books: {fetch_hint(dataset, None)}; point data_root (or CAB_DATA) at a "
            "folder with lm/train, lm/validation and lm/test, or use dataset=synthetic"
        )
    folder = next((data_root / name for name in ("lm", "pg19") if (data_root / name / "train").is_dir()), data_root)
    return FolderBooks(folder, fetch_hint(dataset, data_root))
