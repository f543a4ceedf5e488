"""What all readers of files have in common: ends of lines, dialects, links, repeats."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.corpus.books import folder_books
from tasks.corpus.tokens import END, read_corpus
from tasks.files import read_image, warn_of_repeats
from tasks.sr.data import list_images
from tasks.tts.audio import read_wave
from tasks.tts.data import read_metadata
from tests.helpers.tasks.layouts import put
from tests.tasks.test_files_damaged import BOOK, encoded, wave

ODD = "one\rline\u2028of\x85all\x0bthese\x0cparts"
"""Characters that Python, but no published format, treats as ends of lines."""


def write_splits(folder: Path, content: bytes) -> None:
    for split in ("train", "validation", "test"):
        put(folder / split / "1.txt", content)


def metadata(folder: Path, end: str) -> list[str]:
    for clip in "ab":
        put(folder / f"wavs/{clip}.wav", "")
    put(folder / "metadata.csv", f"\ufeffa|x|a{end}b|x|{ODD}")
    return [text for _, text in read_metadata(folder)]


def books(folder: Path, end: str) -> list[str]:
    write_splits(folder, f"a{end}{ODD} {'word ' * 10}{end}".encode())
    corpus = read_corpus(folder_books(folder), tokenizer=None, vocab_size=300)
    tokens = corpus.read("test", 0, 10**6).tolist()
    assert tokens.count(END) == 2
    return [line.partition(" word")[0] for line in corpus.text(tokens).split("\n")][:2]


@pytest.mark.parametrize("read", [metadata, books])
def test_lines_end_at_line_feeds_alone(read: Callable[[Path, str], list[str]], tmp_path: Path) -> None:
    assert read(tmp_path, "\n") == read(tmp_path, "\r\n") == ["a", ODD]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (BOOK.replace("\n", "\r\n").encode("utf-8-sig"), BOOK),
        (BOOK.replace("\n", "\r").encode("utf-16"), BOOK),
        ("这是一本没有空格的书。".encode() * 30, "这是一本没有空格的书。" * 30),
    ],
)
def test_books_are_read_in_every_dialect(
    content: bytes, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_splits(tmp_path, content)
    assert [*folder_books(tmp_path).readable("train")] == [text]
    assert re.search("2 books .* once, 2 of .* split: .*validation/1.txt is .*train/1.txt", caplog.text)


@pytest.mark.parametrize("content", [wave(), wave(after=b"LIST\4\0\0\0abcd")])
def test_whole_files_are_read(content: bytes, tmp_path: Path) -> None:
    assert len(read_wave(put(tmp_path / "a.wav", content))) == 4000
    for form in ("PNG", "JPEG", "BMP", "WEBP"):
        path = put(tmp_path / form, encoded(form) + b"\0" * 16 * (form == "JPEG"))
        assert read_image(path, "RGB").shape == (8, 8, 3)


def test_folders_behind_links_are_read_once_and_numbers_in_names_are_numbers(tmp_path: Path) -> None:
    for place in [f"{folder}/{number}.png" for folder in ("far", "near/one") for number in (1, 2, 10)]:
        put(tmp_path / place, b"")
    (tmp_path / "near/two").symlink_to(tmp_path / "far")
    (tmp_path / "near/circle").symlink_to(tmp_path / "near")
    found = [str(path.relative_to(tmp_path / "near")) for path in list_images(tmp_path / "near")]
    assert found == [f"{folder}/{number}.png" for folder in ("one", "two") for number in (1, 2, 10)]


def test_repeated_items_are_counted_in_and_across_splits(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_repeats("books", {"train": [(1, "a"), (2, "b"), (1, "c")], "test": [(2, "b"), (3, "d")]})
    warn_of_repeats("books", {"train": [(1, "a")], "test": [(2, "a")]})
    assert caplog.messages == ["2 books occur more than once, 1 of them in another split: c is a, b is b"]
