"""What all readers of files have in common: ends of lines, hidden files, and caches of what has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cab import UserError
from cab.data.check import take_inventory
from cab.data.sources import data_set
from tasks.corpus.books import folder_books
from tasks.corpus.tokens import END, read_corpus
from tasks.files import read_lines
from tasks.glue.tables import LAYOUTS, read_table
from tasks.lra.listops import HEADER, read_trees
from tasks.lra.pathfinder import path_files
from tasks.lra.rows import SYMBOLS, Source, prepare
from tasks.lra.text import reviews
from tasks.pcc.data import read_pcn
from tasks.sr.data import list_images, read_pairs
from tasks.sum.data import file_pairs
from tasks.tts.data import read_metadata
from tests.tasks.lra.test_lra_files import paths, reviews as write_reviews
from tests.tasks.pcc.test_pcc import write_pcd, write_pcn
from tests.tasks.sr.test_sr import write_images

ODD = "one\rline\u2028of\x85all\x0bthese\x0cparts"
"""Characters that Python, but no published format, treats as ends of lines."""


def pairs(folder: Path, end: str) -> list[str]:
    for split in ("train", "val", "test"):
        (folder / f"{split}.src").write_bytes(f"a{end}{ODD}{end}".encode())
        (folder / f"{split}.tgt").write_bytes(f"b{end}c{end}".encode())
    return [text for text, _ in file_pairs(folder).read("test")]


def metadata(folder: Path, end: str) -> list[str]:
    (folder / "wavs").mkdir()
    for clip in "ab":
        (folder / "wavs" / f"{clip}.wav").touch()
    (folder / "metadata.csv").write_bytes(f"\ufeffa|x|a{end}b|x|{ODD}".encode())
    return [text for _, text in read_metadata(folder)]


def books(folder: Path, end: str) -> list[str]:
    for split in ("train", "validation", "test"):
        (folder / split).mkdir()
        (folder / split / "1.txt").write_bytes(f"a{end}{ODD} {'word ' * 10}{end}".encode())
    corpus = read_corpus(folder_books(folder), tokenizer=None, vocab_size=300)
    tokens = corpus.read("test", 0, 10**6).tolist()
    assert tokens.count(END) == 2
    return [line.partition(" word")[0] for line in corpus.text(tokens).split("\n")][:2]


def sentences(folder: Path, end: str) -> list[str]:
    (folder / "train.tsv").write_bytes(f"\ufeffx\t1\t\ta{end}x\t0\t\t{ODD}".encode())
    return [text for [text] in read_table(folder / "train.tsv", LAYOUTS["cola"]).texts]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("read", [pairs, metadata, books, sentences])
def test_lines_end_at_line_feeds_alone(read: Callable[[Path, str], list[str]], end: str, tmp_path: Path) -> None:
    assert read(tmp_path, end) == ["a", ODD]


def test_trees_may_end_in_either_way(tmp_path: Path) -> None:
    for end in ("\n", "\r\n"):
        (tmp_path / "a.tsv").write_bytes(end.join([HEADER, "[MAX 1 2 ]\t2", ""]).encode())
        assert [label for _, label in read_trees(tmp_path / "a.tsv")] == [2]
    (tmp_path / "a.tsv").write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 2: byte 3 is not UTF-8 text"):
        list(read_lines(tmp_path / "a.tsv"))


def picture(path: Path, value: int, side: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3)[: 3 if side == 16 else 2], value, np.uint8)).save(path, format="PNG")
    os.utime(path, (1, 1))


def test_hidden_files_are_no_data(tmp_path: Path) -> None:
    """Companions of macOS, and the checkpoints of notebooks."""
    ffhq, lm = write_images(tmp_path) / "sr" / "ffhq", tmp_path / "lm"
    lm.mkdir()
    books(lm, "\n")
    picture(ffhq / "0.png", 1)
    picture(ffhq / ".ipynb_checkpoints" / "0-checkpoint.png", 1)
    folders = {reviews: write_reviews(tmp_path), pathfinder: paths(tmp_path).parent}
    keys = [read(folder).key for read, folder in folders.items()]
    for name in ("sr/ffhq/._0.png", "lm/train/._1.txt", "aclImdb/test/pos/._1.txt"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7\xb0")
    (folders[pathfinder] / "curv_contour_length_14/metadata/._0.npy").write_bytes(b"\xb0")
    assert list_images(ffhq) == [ffhq / "0.png"]
    assert len(list(folder_books(lm).read("train"))) == 1
    assert keys == [read(folder).key for read, folder in folders.items()]
    assert take_inventory(data_set("pg19"), tmp_path).findings[0].actual == 1


def pathfinder(folder: Path) -> Source:
    return path_files(folder, 32)


def cloud(root: Path, value: int) -> float:
    write_pcd(path := root / "pcc/test/partial/01/d/00.pcd", np.full((20, 3), value))
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
    return int(np.fromfile(prepare(pathfinder(folder))[0] / "train" / SYMBOLS, np.uint8).max())


@pytest.mark.parametrize(("write", "read"), [(write_pcn, cloud), (Path.absolute, face), (paths, contour)])
def test_what_has_changed_is_read_again(
    write: Callable[[Path], Path], read: Callable[[Path, int], int], tmp_path: Path
) -> None:
    """Even a file with the name, the size and the time of modification of before; of several with one name, each."""
    write(tmp_path)
    for value in (201, 202, 203):
        assert read(tmp_path, value) == value
