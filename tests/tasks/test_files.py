"""Files of every reader: damaged ones are refused in one line with file and place; ends of lines, dialects, links."""

import io
import json
import os
import pickle
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from cab import UserError
from tasks.bpe import read_bpe
from tasks.corpus.books import folder_books
from tasks.corpus.tokens import END, read_corpus
from tasks.files import read_image, warn_of_repeats
from tasks.glue.tables import FILE_LAYOUTS, read_table
from tasks.pcc.data import read_pcd
from tasks.sr.data import list_images
from tasks.tts.audio import RATE, read_wave
from tasks.tts.data import read_metadata
from tests.cab.runner.test_folder_hostile import Payload
from tests.helpers.tasks.layouts import ETT, HEADERS, grid, pcd, put, put_image, put_series, tone, words
from tests.helpers.tasks.records import RECORDS, ready

Change = bytes | str | Callable[[Path], object]
BOOK = "one two three four five six seven eight nine ten\nsecond line\n"
LISTOPS = "lra_release/lra_release/listops-1000/basic_train.tsv"
CIFAR, TSV = "cifar-10-batches-py", "lra/tsv_data/new_aan_pairs.eval.tsv"
PATHS = "lra_release/lra_release/pathfinder32/curv_contour_length_14"
LIST, IMAGE = f"{PATHS}/metadata/10.npy", f"{PATHS}/imgs/10/sample_1.png"
FACES, WAVE = "sr/ffhq_8_16", "tts/wavs/LJ001-0002.wav"
GRID, ETTH1 = "tts/TextGrid/LJ001-0002.TextGrid", "ETTh1.csv"
ODD = "one\rline\u2028of\x85all\x0bthese\x0cparts"
"""Characters that Python, but no published format, treats as ends of lines."""


def line(number: int, change: Callable[[str], str]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        lines = path.read_text().splitlines()
        lines[number - 1] = change(lines[number - 1])
        put(path, "\n".join(lines) + "\n")

    return damage


def picture(*shape: int) -> Change:
    return lambda path: put_image(path, np.zeros(shape, np.uint8))


def sound(samples: np.ndarray, rate: int = RATE, **form: str) -> Change:
    return lambda path: soundfile.write(path, samples, rate, **form)


def every(pattern: str, content: str | None = None) -> Change:
    return lambda folder: [put(p, content) if content is not None else p.unlink() for p in sorted(folder.glob(pattern))]


def split_list(*test: str) -> str:
    return json.dumps([{"taxonomy_id": "01", "train": ["a", "b"], "val": ["c"], "test": test}])


def photographs(*labels: int) -> bytes:
    return pickle.dumps({b"data": np.zeros((3, 3072), np.uint8), b"labels": [*labels]}, protocol=2)


def wave(*, data: int = 0, after: bytes = b"") -> bytes:
    """A wave whose header announces more bytes than it has."""
    content = np.zeros(4000, dtype="<i2").tobytes()
    body = struct.pack("<4s4sIHHIIHH", b"WAVE", b"fmt ", 16, 1, 1, 22050, 44100, 2, 16)
    body += struct.pack("<4sI", b"data", len(content) + data) + content + after
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def encoded(form: str, *, change: int = 0, **options: Any) -> bytes:
    """An image; ``change`` is added to the size that the header of a BMP announces."""
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, form, **options)
    content = bytearray(file.getvalue())
    if change:
        struct.pack_into("<I", content, 2, len(content) + change)
    return bytes(content)


large = line(7, lambda text: text.replace(",8", ",1e200", 1))  # whose deviation overflows
FRAMES = {"save_all": True, "append_images": [Image.new("RGB", (8, 8), "red")]}
RTE, STSB = HEADERS["rte"], HEADERS["stsb"]
GOOD = grid(("sil", 0, 0.1), ("HH", 0.1, 0.2), ("sp", 0.2, 0.3), ("AH0", 0.3, 0.5), ("", 0.5, 0.6))
DAMAGE: dict[str, list[tuple[str, Change, str]]] = {
    "glue rte": [
        ("glue/RTE/train.tsv", f"{RTE}\n0\ta\tb\tentailment\n1\ta\tb\n", "line 3: 3 columns, expected 4"),
        ("glue/RTE/train.tsv", RTE, "has no example"),
    ],
    "lm pg19": [
        ("train/1.txt", BOOK.encode("utf-16-le"), "line 1: a NUL character"),
        ("", every("train/*", "\n" * 5000), "no book of train has 10 words"),
    ],
    "sum multi_news": [
        ("sum/test.tgt", "a\n", r"test\.src\.cleaned and test\.tgt differ"),
        ("sum/train.src.cleaned", "a\n ||||| \nc\nd\ne\nf\n", "line 2: the document"),
    ],
    "lstf etth1": [
        (ETTH1, line(9, lambda text: f"x{text[19:]}"), "line 9, column 'date': 'x' is not a date like 2016"),
        (ETTH1, line(9, lambda text: text.replace("07:00", "07:15")), "line 9, .*07:15:00' is not 60 .* 06:00:00'"),
        (ETTH1, line(9, lambda text: f"{text[:-3]}six{text[-2:]}"), "line 9, column 'LULL': 'six' is not "),
        (ETTH1, line(1, lambda text: text.replace("HUFL", "OT")), "line 1: the column 'OT' occurs more than once"),
        (ETTH1, lambda path: put_series(path, ETT, 14_399), "14,399 rows.*needs 14,400"),
        (ETTH1, large, "line 7, column 'HULL': '.*' is too large to be standardized"),
    ],
    "lra listops": [
        (LISTOPS, line(3, lambda text: text + "7"), "line 3: expected a tree, a tab and a digit, got"),
        (LISTOPS, line(4, lambda text: text.replace("]", "", 1)), "line 4: unbalanced brackets"),
    ],
    "lra text": [("", every("aclImdb/test/neg/*"), "no reviews .*test/neg")],
    "lra retrieval": [
        (TSV, line(2, lambda text: text.replace("\t", " ", 1)), "line 2: expected 5"),
        (TSV, "1.0\ta\tb\t\td\n", "line 1: a text of the pair is empty"),
    ],
    "lra image": [
        (f"{CIFAR}/data_batch_3", pickle.dumps(Payload(Path("it-was-executed"))), r"refers to posix\.system"),
        (f"{CIFAR}/test_batch", photographs(0, 1), "are not 2 rows of 3,072"),
        (f"{CIFAR}/test_batch", photographs(0, 11, 2), "image 1: expected a label"),
    ],
    "lra pathfinder": [
        (LIST, line(3, lambda text: text.replace(" 0 1.0", " 2 1.0")), "line 3: expected a"),
        (LIST, lambda p: put(p, p.read_text() * 2), r"line 5: .*sample_0\.png is that of .*line 1 again"),
        (IMAGE, Path.unlink, r"line 2: .*sample_1\.png is missing"),
        (IMAGE, picture(31, 32), r"10\.npy, line 2\) has 32 x 31 pixels, not 32 x 32"),
    ],
    "pcc pcn": [
        ("pcc/PCN.json", split_list("d", "d"), "split 'test' lists d more than once"),
        ("pcc/PCN.json", split_list("../01/d"), "which are not names of a folder and a file"),
        ("", every("pcc/train/partial/01/b/0[35].pcd"), r"b/03\.pcd and 1 more"),
    ],
    "sr ffhq": [
        (f"{FACES}/hr_16/00001.png", picture(16, 17, 3), "is 17 x 16 pixels, not 16 x 16"),
        (f"{FACES}/sr_8_16/00001.png", Path.unlink, r"sr_8_16/00001\.png is missing"),
    ],
    "tts ljspeech": [
        (WAVE, sound(tone(), 16000), "has 16000 Hz"),
        (WAVE, sound(np.append(tone(), np.nan), subtype="FLOAT"), r"sample \d+ is NaN"),
        (WAVE, lambda path: os.truncate(path, 5000), r"is damaged: it lacks [\d,]+ bytes"),
        (WAVE, b"no wave", "is not a wave"),
        (WAVE, wave(data=-4000), "announces 4,000 bytes"),
        (WAVE, wave(data=-1), "are no sample"),
        (GRID, "nothing", "0 tiers 'phones' in TextGrid's long form"),
        (GRID, GOOD[: len(GOOD) * 3 // 4], "line 20: .* has 2 intervals instead of 5, or others"),
        (GRID, grid(("QQ", 0, 0.1)), "line 28: unknown phone 'QQ'"),
        (GRID, grid(("HH", 0, 0.3), ("AH0", 0.2, 0.4)), "line 29: phone 'AH0' from 0.2 to 0.4 s is not between 0.3 s"),
        (GRID, grid(("HH", 0, 300), end=0.3), "from 0 to 300 s is not between 0 s, .* and 0.3 s, the end of the tier"),
        (GRID, grid(("sil", 0, 0.3)), "contains only silence"),
        (GRID, grid(("S", 0, 1)), r"is of 1\.00 s, but its wave has 0\.3\d s"),
        ("tts/metadata.csv", line(8, lambda _: "LJ001-0000|a|a"), "line 8: the clip LJ001-0000 is that of line 1"),
        ("", every("tts/TextGrid/LJ001-0004.TextGrid"), "but not of LJ001-0004"),
    ],
}


@pytest.mark.parametrize(
    ("data", "place", "change", "message"), [(data, *row) for data, rows in DAMAGE.items() for row in rows]
)
def test_a_damaged_file_of_a_data_set_is_named(data, place, change, message, tmp_path, monkeypatch):
    """And nothing in it is executed."""
    monkeypatch.chdir(tmp_path)
    task, dataset = data.split()
    RECORDS[task].data[dataset].write(tmp_path)  # type: ignore[misc]
    change(tmp_path / place) if callable(change) else put(tmp_path / place, change)
    with pytest.raises(UserError, match=message) as error:
        ready(task, tmp_path, dataset=dataset)
    assert Path(place).name in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path("it-was-executed").exists()


cola, stsb = (partial(read_table, layout=FILE_LAYOUTS[name]) for name in ("cola", "stsb"))
rgb = partial(read_image, mode="RGB")
FILES = [
    ("a.tsv", cola, "gj04\t1\t\ta\ngj04\t\t*\tb\n", "line 2: unknown label '' .known: 0, 1"),
    ("a.tsv", cola, b"a\t1\t\tb\rc\t0\t\td\r", "line 1: lines end with carriage returns"),
    ("a.tsv", stsb, f"{STSB}\n0\tm\tn\t2012\t17\tx\tx\ta\tb\t5.2\n", "line 2: the score must be a number from 0 to 5"),
    ("a.tsv", stsb, STSB.replace("sentence2", "sentence1"), "column 'sentence1' occurs more than"),
    ("b.pcd", read_pcd, pcd(b"\0" * 24, "binary", n=2).replace(b"4 4 4", b"8 8 8"), "SIZE must be 4 4 4, got '8 8 8'"),
    ("b.pcd", read_pcd, pcd(b"\0" * 13, "binary", n=1), "truncated or damaged"),
    ("b.pcd", read_pcd, pcd(b"1 2 3\n1_0 2 3\n", n=2), "line 12: expected three numbers, got '1_0 2 3'"),
    ("b.pcd", read_pcd, pcd(b"1 2 3\n1 nan 3\n", n=2), "line 12: the point is NaN or infinite"),
    ("a.bmp", rgb, encoded("BMP", change=-8), "bytes, and its image"),
    ("a.bmp", rgb, encoded("WEBP") + b"more", "bytes, and its image"),
    ("a.bmp", rgb, encoded("WEBP", **FRAMES), "has 2 frames"),
    ("t.json", read_bpe, words({"a": 1, "b": 1}), "has 3 entries with 2 ids"),
    ("t.json", read_bpe, "[", "be read"),
]
"""Files that no record of a task has, and those that are read after the task is ready."""


@pytest.mark.parametrize(("name", "read", "change", "message"), FILES)
def test_a_damaged_file_is_named(name, read, change, message, tmp_path):
    with pytest.raises(UserError, match=message) as error:
        read(put(tmp_path / name, change))
    assert name in str(error.value)
    assert "\n" not in str(error.value)


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
def test_lines_end_at_line_feeds_alone(read, tmp_path):
    assert read(tmp_path, "\n") == read(tmp_path, "\r\n") == ["a", ODD]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (BOOK.replace("\n", "\r\n").encode("utf-8-sig"), BOOK),
        (BOOK.replace("\n", "\r").encode("utf-16"), BOOK),
        ("这是一本没有空格的书。".encode() * 30, "这是一本没有空格的书。" * 30),
    ],
)
def test_books_are_read_in_every_dialect(content, text, tmp_path, caplog):
    write_splits(tmp_path, content)
    assert [*folder_books(tmp_path).readable("train")] == [text]
    assert re.search("2 books .* once, 2 of .* split: .*validation/1.txt is .*train/1.txt", caplog.text)


@pytest.mark.parametrize("content", [wave(), wave(after=b"LIST\4\0\0\0abcd")])
def test_whole_files_are_read(content, tmp_path):
    assert len(read_wave(put(tmp_path / "a.wav", content))) == 4000
    for form in ("PNG", "JPEG", "BMP", "WEBP"):
        assert read_image(put(tmp_path / form, encoded(form) + b"\0" * 16 * (form == "JPEG")), "RGB").shape == (8, 8, 3)


def test_folders_behind_links_are_read_once_and_numbers_in_names_are_numbers(tmp_path):
    for place in [f"{folder}/{number}.png" for folder in ("far", "near/one") for number in (1, 2, 10)]:
        put(tmp_path / place, b"")
    (tmp_path / "near/two").symlink_to(tmp_path / "far")
    (tmp_path / "near/circle").symlink_to(tmp_path / "near")
    found = [str(path.relative_to(tmp_path / "near")) for path in list_images(tmp_path / "near")]
    assert found == [f"{folder}/{number}.png" for folder in ("one", "two") for number in (1, 2, 10)]


def test_repeated_items_are_counted_in_and_across_splits(caplog):
    warn_of_repeats("books", {"train": [(1, "a"), (2, "b"), (1, "c")], "test": [(2, "b"), (3, "d")]})
    warn_of_repeats("books", {"train": [(1, "a")], "test": [(2, "a")]})
    assert caplog.messages == ["2 books occur more than once, 1 of them in another split: c is a, b is b"]
