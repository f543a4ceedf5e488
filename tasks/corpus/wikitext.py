"""WikiText-103 and WikiText-2 (Merity et al. 2017): three files of tokenized Wikipedia articles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cab import UserError
from cab.data.sources import fetch_hint
from cab.files.cache import checksums
from tasks.corpus.books import PARTS, Books

SPELLINGS = {"train": "train", "validation": "valid", "test": "test"}
ENDINGS = ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt")
"""Published file names, with <unk> for rare words (``tokens``) or not (``raw``), and those of PyTorch's examples."""
FOLDERS = {
    "wikitext103": ("wikitext-103", "wikitext-103-raw", "wikitext103"),
    "wikitext2": ("wikitext-2", "wikitext-2-raw", "wikitext2"),
}


class WikiText(Books):
    """The files of a folder, one book per part.

    The published word counts, which define per-word perplexity, include line ends: 217,646 in validation and 245,569 in
    test, with blank lines and headings.

    Raises:
        ValueError: a part is missing, or a file is not UTF-8.
    """

    counts_line_ends = True

    def __init__(self, name: str, data_root: Path) -> None:
        self.files = {part: _find(name, data_root, SPELLINGS[part]) for part in PARTS}
        self.key = {part: checksums([file]) for part, file in self.files.items()}

    def __str__(self) -> str:
        return str(self.files["train"].parent)

    def read(self, part: str) -> Iterator[str]:
        path = self.files[part]
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


def _find(name: str, data_root: Path, part: str) -> Path:
    tried = [data_root / folder / ending.format(part) for folder in (*FOLDERS[name], ".") for ending in ENDINGS]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        raise UserError(
            f"no {ENDINGS[0].format(part)}, {ENDINGS[1].format(part)} or {ENDINGS[2].format(part)} of {name} at "
            f"{data_root / FOLDERS[name][0]}: {fetch_hint(name, data_root)}; or use dataset=synthetic"
        )
    return found
