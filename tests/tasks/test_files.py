"""What all readers of files have in common: ends of lines, dialects, links, warnings, caches of what has changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cab import UserError
from cab.data.check import take_inventory
from cab.data.sources import data_set
from tasks.corpus.books import folder_books
from tasks.corpus.tokens import END, read_corpus
from tasks.files import find_data, find_file, read_image, warn_of_left_out, warn_of_repeats
from tasks.glue.tables import LAYOUTS, read_table
from tasks.lra.listops import HEADER, read_trees
from tasks.lra.pathfinder import path_files
from tasks.lra.rows import SYMBOLS, prepare
from tasks.lra.text import read_review
from tasks.pcc.data import read_pcn
from tasks.sr.data import list_images, read_pairs
from tasks.sum.data import file_pairs
from tasks.tts.audio import read_wave
from tasks.tts.data import read_metadata
from tests.helpers.tasks.layouts import put, put_image, write_paths, write_pcd, write_pcn
from tests.tasks.test_files_damaged import BOOK, encoded, wave, write_photos

ODD = "one\rline\u2028of\x85all\x0bthese\x0cparts"
"""Characters that Python, but no published format, treats as ends of lines."""


def write_splits(folder: Path, content: bytes) -> None:
    for split in ("train", "validation", "test"):
        put(folder / split / "1.txt", content)


def pairs(folder: Path, end: str) -> list[str]:
    for split in ("train", "val", "test"):
        put(folder / f"{split}.src", f"a{end}{ODD}{end}")
        put(folder / f"{split}.tgt", f"b{end}c{end}")
    return [text for text, _ in file_pairs(folder).read("test")]


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


def sentences(folder: Path, end: str) -> list[str]:
    put(folder / "train.tsv", f"\ufeffx\t1\t\ta{end}x\t0\t\t{ODD}")
    return [text for [text] in read_table(folder / "train.tsv", LAYOUTS["cola"]).texts]


def trees(folder: Path, end: str) -> list[str]:
    path = put(folder / "a.tsv", end.join([HEADER, "[MAX 1 2 ]\t2", "3\t3", ""]))
    return ["a" if label == 2 else ODD for _, label in read_trees(path)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("read", [pairs, metadata, books, sentences, trees])
def test_lines_end_at_line_feeds_alone(read: Callable[[Path, str], list[str]], end: str, tmp_path: Path) -> None:
    assert read(tmp_path, end) == ["a", ODD]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (BOOK.encode("utf-8-sig"), BOOK),
        (BOOK.encode("utf-16"), BOOK),
        (BOOK.replace("\n", "\r\n").encode(), BOOK),
        (BOOK.replace("\n", "\r").encode(), BOOK),
        (("\n" * 3000 + BOOK).encode(), "\n" * 3000 + BOOK),
        ("这是一本没有空格的书。".encode() * 30, "这是一本没有空格的书。" * 30),
    ],
)
def test_books_are_read_in_every_dialect(
    content: bytes, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_splits(tmp_path, content)
    assert [*folder_books(tmp_path).readable("train")] == [text]
    assert re.search("2 books .* once, 2 of .* split: .*validation/1.txt is .*train/1.txt", caplog.text)


def test_a_byte_order_mark_is_no_part_of_a_review(tmp_path: Path) -> None:
    assert read_review(put(tmp_path / "1.txt", b"\xef\xbb\xbffine")) == b"fine"


@pytest.mark.parametrize("content", [wave(), wave(after=b"LIST\4\0\0\0abcd")])
def test_whole_files_are_read(content: bytes, tmp_path: Path) -> None:
    assert len(read_wave(put(tmp_path / "a.wav", content))) == 4000
    for form in ("PNG", "JPEG", "BMP", "WEBP"):
        path = put(tmp_path / form, encoded(form) + b"\0" * 16 * (form == "JPEG"))
        assert read_image(path, "RGB").shape == (8, 8, 3)


def test_options_that_are_paths_have_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "my data/a.json", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for value in ("a.json", "my data/a.json", "~/my data/a.json", str(tmp_path / "my data/a.json")):
        assert find_file("task.list_file", value, tmp_path / "my data").samefile(tmp_path / "my data/a.json")
    with pytest.raises(UserError, match=r"task\.list_file=b\.json: no file .*my data/b\.json or .*/b\.json"):
        find_file("task.list_file", "b.json", tmp_path / "my data")


def test_folders_behind_links_are_read_once_and_numbers_in_names_are_numbers(tmp_path: Path) -> None:
    write_photos(tmp_path / "far")
    write_photos(tmp_path / "near/one")
    (tmp_path / "near/two").symlink_to(tmp_path / "far")
    (tmp_path / "near/again").symlink_to(tmp_path / "near/one")
    (tmp_path / "near/circle").symlink_to(tmp_path / "near")
    found = [str(path.relative_to(tmp_path / "near")) for path in list_images(tmp_path / "near")]
    assert found == [f"{folder}/{number}.png" for folder in ("one", "two") for number in (1, 2, 10)]


def test_an_inventory_does_not_count_hidden_files(tmp_path: Path) -> None:
    for name in ("1.txt", "._1.txt"):
        put(tmp_path / "lm/train" / name, BOOK)
    assert take_inventory(data_set("pg19"), tmp_path).findings[0].actual == 1


def test_a_folder_of_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    for folder, text in ((tmp_path, f"no ETTh1.csv in .* of {tmp_path}: "), (tmp_path / "x", "data_root=.*x does not")):
        with pytest.raises(UserError, match=text):
            find_data("etth1", folder, "ETTh1.csv")


def test_many_files_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        put(tmp_path / f"{number:04d}.json", "{}")
    warn_of_left_out(tmp_path, [tmp_path / "0001.json"])
    assert caplog.messages == [f"{tmp_path}: left out 0000.json, 0002.json, 0003.json and 996 more"]


def test_repeated_items_are_counted_in_and_across_splits(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_repeats("books", {"train": [(1, "a"), (2, "b"), (1, "c")], "test": [(2, "b"), (3, "d")]})
    warn_of_repeats("books", {"train": [(1, "a")], "test": [(2, "a")]})
    assert caplog.messages == ["2 books occur more than once, 1 of them in another split: c is a, b is b"]


def picture(path: Path, value: int, side: int = 16) -> None:
    put_image(path, np.full((side, side, 3)[: 3 if side == 16 else 2], value, np.uint8))
    os.utime(path, (1, 1))


def cloud(root: Path, value: int) -> float:
    path = write_pcd(root / "pcc/test/partial/01/d/00.pcd", np.full((20, 3), value))
    os.utime(path, (1, 1))
    return float(read_pcn(root, "PCN.json", "test", views=1)[0][0][0, 0])


def face(root: Path, value: int) -> int:
    picture(root / "sr/ffhq/A/0.png", value)
    picture(root / "sr/ffhq/B/0.png", 5)
    return int(read_pairs("ffhq", root, low=8, high=16)[0].truth[0, 0, 0, 0])


def contour(root: Path, value: int) -> int:
    folder = root / "lra_release/lra_release/pathfinder32"
    for name in range(10):
        picture(folder / f"curv_contour_length_14/imgs/2/sample_{name}.png", value, 32)
    return int(np.fromfile(prepare(path_files(folder, 32))[0] / "train" / SYMBOLS, np.uint8).max())


@pytest.mark.parametrize(("write", "read"), [(write_pcn, cloud), (Path.absolute, face), (write_paths, contour)])
def test_what_has_changed_is_read_again(
    write: Callable[[Path], Path], read: Callable[[Path, int], int], tmp_path: Path
) -> None:
    """Even a file with the name, the size and the time of modification of before; of several with one name, each."""
    write(tmp_path)
    for value in (201, 202, 203):
        assert read(tmp_path, value) == value
