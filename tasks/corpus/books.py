"""Books in three parts: a folder in PG-19's layout, a data set on the Hugging Face Hub, or generated books."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from cab import UserError
from cab.files.cache import checksums

log = logging.getLogger(__name__)

PARTS = ("train", "validation", "test")
WIKITEXTS = ("wikitext103", "wikitext2")
WIKITEXT_FILES = ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt")
"""Published file names, with <unk> for rare words (``tokens``) or not (``raw``), and those of PyTorch's examples."""
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


class FileBooks(Books):
    """Text files of each part, one per book."""

    def __init__(self, files: dict[str, list[Path]]) -> None:
        self.files = files
        self.key = {part: checksums(paths) for part, paths in files.items()}

    def __str__(self) -> str:
        return str(self.files["train"][0].parent)

    def read(self, part: str) -> Iterator[str]:
        for path in self.files[part]:
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


class FolderBooks(FileBooks):
    """``<folder>/{train,validation,test}/*.txt``, the layout of PG-19.

    Raises:
        ValueError: a part is missing or empty, or a file is not UTF-8.
    """

    def __init__(self, folder: Path) -> None:
        files = {part: sorted((folder / part).glob("*.txt")) for part in PARTS}
        for part, paths in files.items():
            if not paths:
                from cab.data.sources import fetch_hint

                raise UserError(
                    f"no books at {folder / part}: PG-19's layout is train/, validation/ and test/ with <id>.txt; "
                    f"{fetch_hint('pg19', folder.parent)}, or use dataset=synthetic"
                )
        super().__init__(files)


class WikiText(FileBooks):
    """The three files of WikiText-103 or WikiText-2 (Merity et al. 2017), each a book of tokenized articles.

    The published word counts, which define per-word perplexity, include line ends: 217,646 in validation and 245,569 in
    test, with blank lines and headings.

    Raises:
        ValueError: a part is missing, or a file is not UTF-8.
    """

    counts_line_ends = True

    def __init__(self, name: str, data_root: Path | None) -> None:
        from tasks.files import find_data

        spellings = zip(PARTS, ("train", "valid", "test"), strict=True)
        super().__init__(
            {part: [find_data(name, data_root, *(file.format(x) for file in WIKITEXT_FILES))] for part, x in spellings}
        )


class HubBooks(Books):
    """A data set on the Hub with a column ``text``, streamed; its revision is part of the key."""

    def __init__(self, name: str) -> None:
        from tasks.files import stream

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
        return WikiText(dataset, data_root)
    from tasks.files import find_data  # generated books need no files

    return FolderBooks(find_data(dataset, data_root, "train").parent)
