"""Books in three splits: a folder in PG-19's layout, a source, or generated books."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cab import UserError
from cab.files.cache import checksums, digest_of
from cab.files.disk import visible_files
from cab.files.text_table import counted
from tasks.files import SPLITS, find_data, read_text, warn_of_left_out, warn_of_repeats
from tasks.source import Rows

log = logging.getLogger(__name__)

WIKITEXTS = ("wikitext103", "wikitext2")
WIKITEXT_FILES = ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt")
"""Published file names, with <unk> for rare words (``tokens``) or not (``raw``), and those of PyTorch's examples."""
MIN_WORDS, MIN_CHARACTERS = 10, 200
"""Books with fewer words and, as some languages do not separate them, fewer characters are skipped, with a warning."""
NUM_BOOKS = {"train": 128, "validation": 8, "test": 8}
"""Generated books per split."""
GENERATOR_VERSION = 2  # increase when the generated text changes


@dataclass(frozen=True)
class Books:
    """Books that are read one at a time.

    Attributes:
        name: name in messages.
        key: identification of the content.
        read: yields the text of each book of a split, one of :data:`SPLITS`.
        counts_line_ends: whether per-word perplexity counts line ends as words.
    """

    name: str
    key: dict[str, Any]
    read: Callable[[str], Iterator[str]]
    counts_line_ends: bool = False

    def readable(self, split: str) -> Iterator[str]:
        """Yield the books with :data:`MIN_WORDS` words or more; raise UserError without such a book."""
        kept = skipped = 0
        for text in (text.replace("\r\n", "\n") for text in self.read(split)):
            words = text.lstrip()[:2000].split()
            if len(words) < MIN_WORDS and sum(map(len, words)) < MIN_CHARACTERS:
                skipped += 1
                continue
            kept += 1
            yield text
        if skipped:
            log.warning("left out %s of %s with fewer than %d words", counted(skipped, "book"), split, MIN_WORDS)
        if not kept:
            raise UserError(f"{self.name}: no book of {split} has {MIN_WORDS} words or more")


def find_books(dataset: str, source: Rows | None, data_root: Path | None, *, generate: Callable[[int], str]) -> Books:
    """Return the texts of ``source`` if it is given, else generated or published books; UserError for missing files."""
    if source is not None:
        return Books(source.name, source.key, lambda split: (text for [text] in source.read(split)))
    if dataset == "synthetic":
        return generated_books(generate)
    if dataset in WIKITEXTS:
        return wikitext(dataset, data_root)
    return folder_books(find_data(dataset, data_root, "train").parent)


def folder_books(folder: Path) -> Books:
    """Read ``<folder>/{train,validation,test}/*.txt``, the layout of PG-19."""
    files = {split: visible_files(folder / split, "*.txt") for split in SPLITS}
    for split, paths in files.items():
        if not paths:
            from cab.data.sources import fetch_hint

            raise UserError(
                f"no books at {folder / split}: PG-19's layout is train/, validation/ and test/ with <id>.txt; "
                f"{fetch_hint('pg19', folder.parent)}, or use dataset=synthetic"
            )
    warn_of_left_out(folder, [path for paths in files.values() for path in paths])
    return _book_files(files)


def wikitext(name: str, data_root: Path | None) -> Books:
    """Read the three files of WikiText-103 or WikiText-2 (Merity et al. 2017), each as one book.

    The published word counts, which define per-word perplexity, include line ends: 217,646 in validation and 245,569 in
    test, with blank lines and headings.
    """
    spellings = zip(SPLITS, ("train", "valid", "test"), strict=True)
    files = {
        split: [find_data(name, data_root, *(file.format(x) for file in WIKITEXT_FILES))] for split, x in spellings
    }
    for parent in {path.parent for [path] in files.values()}:
        warn_of_left_out(parent, [path for [path] in files.values()], r"(?i)train|valid|test")
    return _book_files(files, counts_line_ends=True)


def _book_files(files: dict[str, list[Path]], *, counts_line_ends: bool = False) -> Books:
    def read(split: str) -> Iterator[str]:
        for path in files[split]:
            yield read_text(path)

    sums = {split: checksums(paths) for split, paths in files.items()}
    key = {split: digest_of(values) for split, values in sums.items()}
    places = {split: map(str, paths) for split, paths in files.items()}
    warn_of_repeats("books", {split: zip(sums[split].values(), places[split], strict=True) for split in files})
    return Books(str(files["train"][0].parent), key, read, counts_line_ends)


def generated_books(generate: Callable[[int], str]) -> Books:
    """Return :data:`NUM_BOOKS` books; ``generate`` writes one, which depends on its number only."""

    def read(split: str) -> Iterator[str]:
        start = sum(NUM_BOOKS[earlier] for earlier in SPLITS[: SPLITS.index(split)])
        return map(generate, range(start, start + NUM_BOOKS[split]))

    digest = hashlib.sha256(generate(0).encode()).hexdigest()[:16]
    return Books("the generated books", {"generator": GENERATOR_VERSION, "first": digest, "counts": NUM_BOOKS}, read)
