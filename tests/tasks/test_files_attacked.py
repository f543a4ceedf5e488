"""Malformed and odd files of every reader: read right, repaired with a warning, or refused with file and place."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cab import UserError
from tasks.corpus.books import folder_books
from tasks.files import find_file, read_image
from tasks.glue.tables import LAYOUTS, read_table
from tasks.lra.images import read_batch
from tasks.lra.pathfinder import path_files
from tasks.lra.text import read_pairs, read_review
from tasks.pcc.data import read_pcd, read_pcn
from tasks.sr.data import list_images
from tests.tasks.pcc.test_pcc import cloud, write_pcn

Write = Callable[[Path], object]
BOOK = "one two three four five six seven eight nine ten\nsecond line\n"


def books(content: bytes, more: Write = lambda _: None) -> Write:
    def write(folder: Path) -> None:
        for split in ("train", "validation", "test"):
            (folder / split).mkdir()
            (folder / split / "1.txt").write_bytes(content)
        more(folder / "train")

    return write


@pytest.mark.parametrize(
    ("write", "text", "warning"),
    [
        (books(BOOK.encode("utf-8-sig")), BOOK, ""),
        (books(BOOK.encode("utf-16")), BOOK, ""),
        (books(BOOK.replace("\n", "\r\n").encode()), BOOK, ""),
        (books(BOOK.replace("\n", "\r").encode()), BOOK, ""),
        (books(("\n" * 3000 + BOOK).encode()), "\n" * 3000 + BOOK, ""),
        (books("这是一本没有空格的书。".encode() * 30), "这是一本没有空格的书。" * 30, ""),
        (
            books(BOOK.encode()),
            BOOK,
            "2 books occur more than once, 2 of .* split: .*validation/1.txt is .*train/1.txt",
        ),
    ],
)
def test_books_are_read_in_every_dialect(
    write: Write, text: str, warning: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    assert [*folder_books(tmp_path).readable("train")] == [text]
    assert re.search(warning, caplog.text)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (books(BOOK.encode("utf-16-le")), r"1\.txt, line 1: a NUL character"),
        (books(BOOK.encode("utf-32")), r"1\.txt, line 1: a NUL character"),
        (books(BOOK.encode() + b"\0"), r"1\.txt, line 3: a NUL character"),
        (books(b"caf\xe9 " * 20), r"1\.txt, line 1: byte 3 is not UTF-8"),
        (books(gzip.compress(BOOK.encode())), r"1\.txt, line 1: byte 1 is not UTF-8"),
        (books(BOOK.encode(), lambda path: (path / "2.txt").mkdir()), r"2\.txt is not a file"),
        (books(BOOK.encode(), lambda path: (path / "2.txt").symlink_to("far")), "is a link to far, which does not"),
        (books(b"\n" * 5000), "no book of train has 10 words"),
    ],
)
def test_files_that_are_no_books_are_named(write: Write, message: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(UserError, match=message):
        list(folder_books(tmp_path).readable("train"))


def split_list(change: dict[str, Any]) -> Write:
    def write(folder: Path) -> None:
        content = [{"taxonomy_id": "01", "train": ["a", "b"], "val": ["c"], "test": ["d"], **change}]
        (folder / "pcc" / "PCN.json").write_text(json.dumps(content))

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (split_list({"test": ["d", "d"]}), r"PCN\.json: split 'test' lists d more than once"),
        (split_list({"test": ["../01/d"]}), r"which are not names of a folder and a file"),
        (split_list({"test": ["/etc/d"]}), r"which are not names of a folder and a file"),
        (split_list({"test": "d"}), r"PCN\.json is not a split list, .*0\.test: .*got 'd'"),
        (
            split_list({"test": []}),
            r"no shapes in split 'test'; .* set task\.sample_part=train or task\.sample_part=val",
        ),
        (lambda folder: (folder / "pcc" / "PCN.json").write_text("[1, {"), r"PCN\.json is not a split list, .*EOF"),
    ],
)
def test_split_lists_are_checked(write: Write, message: str, tmp_path: Path) -> None:
    write_pcn(tmp_path)
    write(tmp_path)
    with pytest.raises(UserError, match=message):
        read_pcn(tmp_path, "PCN.json", "test", views=1)


def test_options_that_are_paths_have_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my data").mkdir()
    (tmp_path / "my data" / "a.json").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for value in ("a.json", "my data/a.json", "~/my data/a.json", str(tmp_path / "my data/a.json")):
        assert find_file("task.list_file", value, tmp_path / "my data").samefile(tmp_path / "my data/a.json")
    with pytest.raises(UserError, match=r"task\.list_file=b\.json: no file .*my data/b\.json or .*/b\.json"):
        find_file("task.list_file", "b.json", tmp_path / "my data")


def batch(**change: Any) -> bytes:
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}
    return pickle.dumps(content | {name.encode(): value for name, value in change.items()})


def lists(text: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        folder = path.parent / "curv_contour_length_14"
        for name in ("metadata", "imgs/0"):
            (folder / name).mkdir(parents=True)
        Image.fromarray(np.zeros((32, 32), np.uint8)).save(folder / "imgs/0/a.png")
        (folder / "metadata/0.npy").write_text(text)
        return path_files(path.parent, 32)

    return read


def frames(path: Path) -> object:
    first = Image.new("RGB", (8, 8))
    first.save(path, "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
    return read_image(path, "RGB")


COLA, STSB = LAYOUTS["cola"], LAYOUTS["stsb"]
HEAD = "sentence1\tsentence2\tscore\n"


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_pcd, cloud(b"1_0 2 3\n"), "line 11: expected three numbers, got '1_0 2 3'"),
        (read_pcd, cloud(b"1 2 3\n", WIDTH="7"), "has 1 point, and its header gives WIDTH 7 and HEIGHT 1"),
        (lambda path: read_table(path, COLA), b"a\t1\t\tb\rc\t0\t\td\r", "line 1: lines end with carriage returns"),
        (lambda path: read_table(path, STSB), HEAD.replace("2", "1").encode(), "column 'sentence1' occurs more than"),
        (lambda path: read_table(path, STSB), f"{HEAD}a\tb\t1_0\n".encode(), "line 2: the score must be a number"),
        (read_batch, batch() * 2, "data after the end of the batch"),
        (read_batch, batch(labels=[True, False]), "image 0: expected a label from 0 to 9, got True"),
        (read_batch, batch(data=np.zeros((0, 3072), np.uint8), labels=[]), "is not a CIFAR-10 batch"),
        (lambda path: [*read_pairs(path)], b"1.0\ta\tb\tc\0\td\n", "line 1: .* has a NUL character"),
        (read_review, "abc\ndef".encode("utf-16-le"), "line 1: a NUL character"),
        (lists("imgs/0 a.png 0 1\nimgs/0 a.png 0 1\n"), b"", r"0\.npy, line 2: .*a\.png is that of .*line 1 again"),
        (lists(""), b"", "no images in the lists"),
        (frames, b"", "has 2 frames; save one of them"),
    ],
)
def test_files_that_were_read_wrong_are_named(
    read: Callable[[Path], object], content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "file")


def test_a_byte_order_mark_is_no_part_of_a_review(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"\xef\xbb\xbffine")
    assert read_review(tmp_path / "1.txt") == b"fine"


def test_folders_behind_links_are_read_once(tmp_path: Path) -> None:
    for name in ("far", "near/one"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a.png")
    (tmp_path / "near" / "two").symlink_to(tmp_path / "far")
    (tmp_path / "near" / "again").symlink_to(tmp_path / "near" / "one")
    (tmp_path / "near" / "circle").symlink_to(tmp_path / "near")
    assert [str(path.relative_to(tmp_path / "near")) for path in list_images(tmp_path / "near")] == [
        "one/a.png",
        "two/a.png",
    ]
    (tmp_path / "near" / "b.png").symlink_to("nothing")
    with pytest.raises(UserError, match=r"b\.png is a link to nothing, which does not exist"):
        list_images(tmp_path / "near")
