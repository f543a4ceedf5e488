"""No part of what a user named is left out without a word: files of folders, and bytes of files."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cab import UserError
from tasks.corpus.books import folder_books, wikitext
from tasks.files import read_image, warn_of_left_out, warn_of_repeats
from tasks.lra.images import photographs
from tasks.lra.listops import tree_files
from tasks.lra.pathfinder import path_files
from tasks.lra.text import papers, reviews
from tasks.pcc.data import read_pcn
from tasks.sr.data import list_images, read_pairs
from tasks.sum.data import file_pairs
from tasks.tts.audio import read_wave
from tasks.tts.data import read_clips as read_utterances, split_at_end
from tests.tasks.pcc.test_pcc import write_pcn
from tests.tasks.sr.test_sr import write_images
from tests.tasks.test_files_attacked import BOOK, books
from tests.tasks.test_source import opened


def write_pairs(folder: Path) -> None:
    for split in ("train", "val", "test"):
        (folder / f"{split}.src").write_text("a\nb\n")
        (folder / f"{split}.tgt").write_text("c\nd\n")


def write_picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(path)


def write_pictures(folder: Path) -> None:
    for number in (1, 2, 10):
        write_picture(folder / f"{number}.png")


def write_reviews(folder: Path) -> None:
    for place in ("train/pos", "train/neg", "test/pos", "test/neg"):
        (folder / place).mkdir(parents=True)
        (folder / place / "0_1.txt").write_text(f"a review of {place}")


def write_paths(folder: Path) -> None:
    write_picture(folder / "curv_contour_length_14/imgs/1/sample_0.png")
    (folder / "curv_contour_length_14/metadata").mkdir()
    (folder / "curv_contour_length_14/metadata/1.npy").write_text("imgs/1 sample_0.png 0 1 x\n")


def write_trees(folder: Path) -> None:
    for name in ("train", "val", "test"):
        (folder / f"basic_{name}.tsv").write_text("Source\tTarget\n1\t1\n")


def write_papers(folder: Path) -> None:
    for name in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{name}.tsv").write_text("1.0\ta\tb\tc\td\n")


def write_batches(folder: Path) -> None:
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_text(name)


def write_wikitext(folder: Path) -> None:
    (folder / "wikitext-2").mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (folder / f"wikitext-2/wiki.{split}.tokens").write_text(f"{BOOK} {split}")


def write_clips(folder: Path) -> None:
    (folder / "tts/wavs").mkdir(parents=True)
    (folder / "tts/metadata.csv").write_text("".join(f"{clip}|x|a\n" for clip in "abc"))
    for clip in "abc":
        (folder / f"tts/wavs/{clip}.wav").write_text(clip)


def read_clips(folder: Path) -> None:
    """Read LJSpeech without the features."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tasks.tts.data._cached", lambda key, _: [SimpleNamespace(name=clip) for clip, _ in key["metadata"]]
        )
        read_utterances(folder / "tts", lambda clips: split_at_end(clips, 1))


def write_rows(folder: Path) -> None:
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text('{"text": "a"}\n')


def read_rows(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / ".cache")
        opened(str(folder))


READERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any], list[str]]] = {
    "books": (
        books(BOOK.encode()),
        folder_books,
        ["train/2.TXT", "train/more/2.txt", "train/2.txt.gz", "valid/1.txt", "part2.txt"],
    ),
    "pairs": (
        write_pairs,
        file_pairs,
        ["train2.src", "train2.tgt", "train.src.gz", "more/train.src", "val.src.cleaned.1"],
    ),
    "images": (write_pictures, list_images, ["3.tif", "a/4.gif", "5.npy", "6.png.part", "7"]),
    "reviews": (
        write_reviews,
        reviews,
        ["train/pos/1_9.TXT", "test/neg/2.text", "train/neg/more/3.txt", "test/pos/4.txt.gz", "train/neg/5"],
    ),
    "clouds": (
        write_pcn,
        lambda folder: read_pcn(folder, "PCN.json", "test", views=1),
        [
            f"pcc/test/{name}"
            for name in ("complete/01/z.pcd", "partial/01/z/00.pcd", "partial/01/d/99.pcd", "a.ply", "b/c")
        ],
    ),
    "trees": (
        write_trees,
        tree_files,
        ["basic_train2.tsv", "basic_train.tsv.gz", "more/basic_val.tsv", "basic_dev.tsv", "basic_test"],
    ),
    "papers": (
        write_papers,
        papers,
        [f"new_aan_pairs.{name}" for name in ("train2.tsv", "train.tsv.gz", "dev.tsv", "test", "eval.tsv.part")],
    ),
    "batches": (
        write_batches,
        photographs,
        ["data_batch_6", "data_batch_1.gz", "more/data_batch_2", "test_batch_2", "train_batch"],
    ),
    "wikitext": (
        write_wikitext,
        lambda folder: wikitext("wikitext2", folder),
        [
            f"wikitext-2/{name}"
            for name in ("train2.txt", "wiki.train.tokens.gz", "more/valid.txt", "test", "wiki.train.raw")
        ],
    ),
    "clips": (
        write_clips,
        read_clips,
        [
            f"tts/{name}"
            for name in ("wavs/d.wav", "wavs/a.flac", "wavs/more/a.wav", "wavs/b.wav.part", "TextGrid/d.TextGrid")
        ],
    ),
    "counterparts": (
        write_images,
        lambda folder: read_pairs("ffhq", folder, low=8, high=16),
        [
            f"sr/ffhq_8_16/{name}"
            for name in ("hr_16/9.tif", "sr_8_16/9.png", "sr_8_16/a/1.png", "hr_16/b.gif", "sr_8_16/1.npy")
        ],
    ),
    "source": (
        write_rows,
        read_rows,
        ["part2.txt", "train_more.csv", "train.bak", "more/part.txt", "rows.parquet"],
    ),
    "paths": (
        write_paths,
        lambda folder: path_files(folder, 8),
        [
            f"curv_contour_length_14/imgs/{name}"
            for name in ("1/sample_1.png", "2/sample_0.png", "1/a.jpg", "b.png", "1/c/d.png")
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_names_the_files_that_it_does_not_read(
    reader: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Five layouts each: another suffix, another folder, a second part, a compressed or an unfinished one."""
    write, read, leftovers = READERS[reader]
    write(tmp_path)
    (tmp_path / "README.md").write_text("no data")
    read(tmp_path)
    assert "left out" not in caplog.text
    for name in leftovers:
        caplog.clear()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("more")
        read(tmp_path)
        assert caplog.text.count("left out") == 1
        assert Path(name).name in caplog.text
        path.unlink()


def test_many_files_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        (tmp_path / f"{number:04d}.json").write_text("{}")
    warn_of_left_out(tmp_path, [tmp_path / "0001.json"])
    assert caplog.messages == [f"{tmp_path}: left out 0000.json, 0002.json, 0003.json and 996 more"]


def test_numbers_in_names_are_numbers(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    assert [path.stem for path in list_images(tmp_path)] == ["1", "2", "10"]


def test_repeated_items_are_counted_in_and_across_splits(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_repeats("books", {"train": [(1, "a"), (2, "b"), (1, "c")], "test": [(2, "b"), (3, "d")]})
    warn_of_repeats("books", {"train": [(1, "a")], "test": [(2, "a")]})
    assert caplog.messages == ["2 books occur more than once, 1 of them in another split: c is a, b is b"]


def wave(*, riff: int = 0, data: int = 0, after: bytes = b"", samples: int = 4000) -> bytes:
    """Return a wave whose headers announce more bytes than it has."""
    content = np.zeros(samples, dtype="<i2").tobytes()
    body = struct.pack("<4s4sIHHIIHH", b"WAVE", b"fmt ", 16, 1, 1, 22050, 44100, 2, 16)
    body += struct.pack("<4sI", b"data", len(content) + data) + content + after
    return struct.pack("<4sI", b"RIFF", len(body) + riff) + body


def encoded(form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, form)
    return file.getvalue()


def resized(form: str, place: int, change: int) -> bytes:
    content = bytearray(encoded(form))
    struct.pack_into("<I", content, place, struct.unpack_from("<I", content, place)[0] + change)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wave(data=-4000), "its header announces [\\d,]+ bytes less"),
        (wave(data=4000), "it lacks 4,000 bytes"),
        (wave(riff=100), "announces 8,144 bytes, it has 8,044"),
        (wave(riff=-100), "announces 7,944 bytes, it has 8,044"),
        (wave(after=b"data\2\0\0\0\0\0"), "not a wave|more than one chunk 'data'"),
        (wave(data=-1, after=b""), "are no sample"),
        (encoded("PNG") + b"more", "bytes, and its image"),
        (encoded("PNG")[:-6], "not an image|bytes, and its image"),
        (encoded("JPEG") + b"more", "bytes, and its image"),
        (resized("BMP", 2, 8), "bytes, and its image"),
        (resized("BMP", 2, -8), "bytes, and its image"),
        (resized("WEBP", 4, -8), "not an image|bytes, and its image"),
        (encoded("WEBP") + b"more", "bytes, and its image"),
    ],
)
def test_headers_announce_what_files_have(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_wave(path) if content.startswith(b"RIFF") and b"WAVE" in content else read_image(path, "RGB")


@pytest.mark.parametrize("content", [wave(), wave(after=b"LIST\4\0\0\0abcd")])
def test_sound_files_are_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    assert len(read_wave(tmp_path / "a.wav")) == 4000
    for form in ("PNG", "JPEG", "BMP", "WEBP"):
        (tmp_path / form).write_bytes(encoded(form) + b"\0" * 16 * (form == "JPEG"))
        assert read_image(tmp_path / form, "RGB").shape == (8, 8, 3)
