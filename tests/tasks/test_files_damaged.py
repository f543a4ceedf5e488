"""Damaged and odd files of every reader are refused in one line with file and place, or left out with a warning."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from cab import UserError
from tasks.bpe import read_bpe
from tasks.files import read_image
from tasks.glue.tables import LAYOUTS, read_table
from tasks.lra.listops import HEADER
from tasks.lstf.data import read_series
from tasks.pcc.data import read_pcd
from tasks.sr.data import list_images
from tasks.tts.audio import RATE, read_wave
from tasks.tts.phonemes import read_phones
from tests.helpers.data.own import write_own_folders
from tests.helpers.data.text_grid import grid
from tests.helpers.official_layout import ETT, WEATHER, write as write_series
from tests.helpers.tasks import layouts
from tests.helpers.tasks.layouts import pcd, put, put_image, tone
from tests.helpers.tasks.records import ready
from tests.tasks.test_bpe import words
from tests.tasks.test_source import opened, own

Change = bytes | str | Callable[[Path], object]
Row = tuple[str, Change, str]
BOOK = "one two three four five six seven eight nine ten\nsecond line\n"
LISTOPS = "lra_release/lra_release/listops-1000/basic_train.tsv"
IMDB, CIFAR, TSV = "aclImdb/test", "cifar-10-batches-py", "lra/tsv_data/new_aan_pairs.eval.tsv"
PATHS = "lra_release/lra_release/pathfinder32/curv_contour_length_14"
LIST, FACE = f"{PATHS}/metadata/10.npy", "sr/ffhq_8_16/hr_16/00001.png"
PAIR, WAVE = "sum/train", "tts/wavs/LJ001-0002.wav"


def nothing(folder: Path) -> Path:
    return folder


def of_task(task: str, dataset: str = "") -> Callable[[Path], object]:
    return lambda folder: ready(task, folder, **({"dataset": dataset} if dataset else {}))


def table(dataset: str) -> Callable[[Path], object]:
    return lambda folder: read_table(folder / "train.tsv", LAYOUTS[dataset])


def write_photos(folder: Path) -> None:
    for number in (1, 2, 10):
        put_image(folder / f"{number}.png", np.zeros((8, 8), np.uint8))


def write_rows(folder: Path) -> None:
    for split in ("train", "validation", "test"):
        put(folder / f"{split}.jsonl", '{"text": "a"}\n')


def own_folder(task: str, folder: str) -> tuple[Callable[[Path], object], Callable[[Path], object]]:
    return write_own_folders, lambda root: own(task, root / folder)


READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "books": (layouts.write_books, of_task("lm")),
    "wikitext": (lambda f: layouts.write_wikitext(f, name="wikitext-2"), of_task("lm", "wikitext2")),
    "rows": (write_rows, lambda folder: list(opened(str(folder)).read("test"))),
    "pairs": (layouts.write_pairs, of_task("sum")),
    "trees": (layouts.write_trees, of_task("lra", "listops")),
    "reviews": (layouts.write_reviews, of_task("lra", "text")),
    "papers": (layouts.write_papers, of_task("lra", "retrieval")),
    "batches": (layouts.write_batches, of_task("lra", "image")),
    "paths": (layouts.write_paths, of_task("lra", "pathfinder")),
    "clouds": (layouts.write_pcn, of_task("pcc")),
    "photos": (write_photos, list_images),
    "faces": (layouts.write_faces, of_task("sr")),
    "clips": (layouts.write_clips, of_task("tts")),
    "own clouds": own_folder("pcc", "shapes"),
    "own photos": own_folder("sr", "photos"),
    "own clips": own_folder("tts", "voice"),
    **{f"table of {name}": (nothing, table(name)) for name in LAYOUTS},
    "series": (nothing, lambda folder: read_series("etth1", folder)),
    "weather": (nothing, lambda folder: read_series("weather", folder)),
    "pcd": (nothing, lambda folder: read_pcd(folder / "b.pcd")),
    "wave": (nothing, lambda folder: read_wave(folder / "a.wav")),
    "image": (nothing, lambda folder: read_image(folder / "image", "RGB")),
    "alignment": (nothing, lambda folder: read_phones(folder / "a.TextGrid")),
    "tokenizer": (nothing, lambda folder: read_bpe(folder / "t.json")),
}
LEFT_OUT = {  # below a folder: another suffix, another folder, a second part, a compressed or an unfinished one
    "books": ("", "train/2.TXT train/more/2.txt train/2.txt.gz valid/1.txt part2.txt"),
    "wikitext": ("wikitext-2/", "train2.txt wiki.train.tokens.gz more/valid.txt test wiki.train.raw"),
    "rows": ("", "part2.txt train_more.csv train.bak more/part.txt rows.parquet"),
    "pairs": ("sum/", "train2.src train2.tgt train.src.gz more/train.src val.src.cleaned.1"),
    "trees": (LISTOPS[:-15], "basic_train2.tsv basic_train.tsv.gz more/basic_val.tsv basic_dev.tsv basic_test"),
    "reviews": ("aclImdb/", "train/pos/1_9.TXT test/neg/2.text train/neg/more/3.txt test/pos/4.txt.gz train/neg/5"),
    "papers": (TSV[:-8], "train2.tsv train.tsv.gz dev.tsv test eval.tsv.part"),
    "batches": (f"{CIFAR}/", "data_batch_6 data_batch_1.gz more/data_batch_2 test_batch_2 train_batch"),
    "paths": (f"{PATHS}/imgs/", "10/sample_4.png 3/sample_0.png 10/a.jpg b.png 10/c/d.png"),
    "clouds": ("pcc/test/", "complete/01/z.pcd partial/01/z/00.pcd partial/01/d/99.pcd a.ply b/c"),
    "photos": ("", "3.tif a/4.gif 5.npy 6.png.part 7"),
    "faces": ("sr/ffhq_8_16/", "hr_16/9.tif sr_8_16/9.png sr_8_16/a/1.png hr_16/b.gif sr_8_16/1.npy"),
    "clips": ("tts/", "wavs/d.wav wavs/a.flac wavs/more/a.wav wavs/b.wav.part TextGrid/d.TextGrid"),
}


@pytest.fixture(autouse=True)
def _libraries_keep_nothing(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))


@pytest.mark.parametrize("reader", LEFT_OUT)
def test_each_reader_names_the_files_that_it_does_not_read(
    reader: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write, read = READERS[reader]
    write(tmp_path)
    put(tmp_path / "README.md", "no data")
    read(tmp_path)
    assert "left out" not in caplog.text
    folder, names = LEFT_OUT[reader]
    for name in names.split():
        caplog.clear()
        path = put(tmp_path / f"{folder}{name}", "more")
        read(tmp_path)
        assert caplog.text.count("left out") == 1
        assert path.name in caplog.text
        path.unlink()


# --- changes of a file ----------------------------------------------------------------------------------------------


def line(number: int, change: Callable[[str], str]) -> Change:
    def damage(path: Path) -> None:
        lines = path.read_text().splitlines()
        lines[number - 1] = change(lines[number - 1])
        put(path, "\n".join(lines) + "\n")

    return damage


def head(count: int, *others: str) -> Change:
    """The first lines, and others after them."""
    return lambda path: put(path, "\n".join([*path.read_text().splitlines()[:count], *others]))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut(size: int) -> Change:
    return lambda path: os.truncate(path, size)


def picture(*shape: int) -> Change:
    return lambda path: put_image(path, np.zeros(shape, np.uint8))


def sound(samples: np.ndarray, rate: int = RATE, **form: str) -> Change:
    return lambda path: soundfile.write(path, samples, rate, **form)


def every(pattern: str, content: bytes | str | None) -> Change:
    """Replace or remove the files of a pattern."""
    return lambda folder: [put(p, content) if content is not None else p.unlink() for p in sorted(folder.glob(pattern))]


def split_list(**change: Any) -> str:
    return json.dumps([{"taxonomy_id": "01", "train": ["a", "b"], "val": ["c"], "test": ["d"], **change}])


def photographs(**change: Any) -> bytes:
    whole = {b"data": np.zeros((3, 3072), np.uint8), b"labels": [0, 1, 2]}
    return pickle.dumps({**whole, **{name.encode(): value for name, value in change.items()}}, protocol=2)


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch it-was-executed",)


def wave(*, riff: int = 0, data: int = 0, after: bytes = b"") -> bytes:
    """A wave whose headers announce more bytes than it has."""
    content = np.zeros(4000, dtype="<i2").tobytes()
    body = struct.pack("<4s4sIHHIIHH", b"WAVE", b"fmt ", 16, 1, 1, 22050, 44100, 2, 16)
    body += struct.pack("<4sI", b"data", len(content) + data) + content + after
    return struct.pack("<4sI", b"RIFF", len(body) + riff) + body


def encoded(form: str, place: int = 0, change: int = 0) -> bytes:
    """An image; ``change`` is added to the size that its header announces at ``place``."""
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, form)
    content = bytearray(file.getvalue())
    if change:
        struct.pack_into("<I", content, place, struct.unpack_from("<I", content, place)[0] + change)
    return bytes(content)


def frames(path: Path) -> None:
    Image.new("RGB", (8, 8)).save(path, "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])


def series(*lines: str, at: int = 9) -> bytes:
    """An ETT file whose lines from ``at`` (the header is line 1) are replaced."""
    usual = [",".join(["date", *ETT]), *(f"2016-07-01 {hour:02d}:00:00,1,2,3,4,5,6,7" for hour in range(20))]
    usual[at - 1 : at - 1 + len(lines)] = lines
    return ("\n".join(usual) + "\n").encode()


def large(row: int, value: str) -> Change:
    def damage(path: Path) -> None:
        write_series(path, ETT, 17_420)
        line(row, lambda text: ",".join([*text.split(",")[:2], value, *text.split(",")[3:]]))(path)  # type: ignore[operator]

    return damage


def edition(columns: list[str], rows: int) -> Change:
    return lambda path: write_series(path, columns, rows)


HEAD = "\t".join(layouts.HEADERS["stsb"].split())
RTE = "\t".join(layouts.HEADERS["rte"].split())
STSB = f"{HEAD}\n0\tm\tn\t2012\t17\tx\tx\ta\tb\t"
MNLI = "\t".join([*layouts.HEADERS["mnli"].split(), "\n7", *"pqrstuvwab", "neutral", "neutral"]).replace("\t\n", "\n")
GOOD = grid(("sil", 0, 0.1), ("HH", 0.1, 0.2), ("sp", 0.2, 0.3), ("AH0", 0.3, 0.5), ("", 0.5, 0.6))
SHORT = '"ooTextFile"\n"TextGrid"\n0\n0.6\n<exists>\n1\n"IntervalTier"\n"phones"\n0\n0.6\n1\n0\n0.6\n"HH"\n'
DAMAGE: dict[str, list[Row]] = {
    "books": [
        ("train/1.txt", BOOK.encode("utf-16-le"), "line 1: a NUL character"),
        ("train/1.txt", BOOK.encode("utf-32"), "line 1: a NUL character"),
        ("train/1.txt", f"{BOOK}\0", "line 3: a NUL character"),
        ("train/1.txt", b"caf\xe9 " * 20, "line 1: byte 3 is not UTF-8"),
        ("train/1.txt", gzip.compress(BOOK.encode()), "line 1: byte 1 is not UTF-8"),
        ("train/9.txt", Path.mkdir, "is not a file"),
        ("train/9.txt", lambda path: path.symlink_to("far"), "is a link to far, which does not"),
        ("", every("train/*", "\n" * 5000), "no book of train has 10 words"),
        ("", every("validation/*", "Word"), "no book of validation"),
        ("", every("test/*", None), "no books at .*test.*cab data download pg19"),
    ],
    "wikitext": [
        ("wikitext-2/wiki.test.tokens", b"caf\xe9 \n", "line 1: byte 3 is not UTF-8"),
        (
            "",
            every("wikitext-2/*.train.*", None),
            r"no wiki\.train\.tokens or .*raw or train\.txt in wikitext-2, ",
        ),
    ],
    "rows": [
        (
            "",
            every("test.jsonl", '{"text": "a"}\n{"text": null}\n'),
            "test, row 2: .*'text' is not a text: None",
        ),
        ("", every("test.jsonl", '{"text": "a"}\n{"text"'), "cannot read .*test: .*JSON"),
    ],
    "pairs": [
        ("sum/val.tgt", remove, r"no val\.tgt"),
        ("sum/test.tgt", "a\n", r"test\.src\.cleaned and test\.tgt differ"),
        (f"{PAIR}.tgt", "a\nb\n\nd\ne\nf\n", "line 3: the summary"),
        (f"{PAIR}.src.cleaned", "a\n ||||| \nc\nd\ne\nf\n", "line 2: the document"),
        (f"{PAIR}.tgt", b"caf\xe9\n" * 6, "line 1: byte 3 is not UTF-8"),
    ],
    "trees": [
        (LISTOPS, line(1, lambda _: "Source,Target"), "line 1: expected the header Source, Target"),
        (LISTOPS, head(1), "has no trees after its header"),
        (LISTOPS, line(3, lambda text: text.split("\t")[0]), "line 3: expected a tree, a tab and a digit"),
        (LISTOPS, line(3, lambda text: text + "7"), "line 3: expected a tree, a tab and a digit, got"),
        (LISTOPS, line(4, lambda text: text.replace("]", "", 1)), "line 4: unbalanced brackets"),
        (LISTOPS, head(1, "[AVG 1 2 ]\t1"), r"line 2: '\[AVG' is not a digit, operator or bracket"),
        (LISTOPS, head(1, "( )\t1"), "line 2: unbalanced brackets"),
        (LISTOPS, f"{HEADER}\n1\t1\n".encode() + b"caf\xe9\n", "line 3: byte 3 is not UTF-8 text"),
    ],
    "reviews": [
        (f"{IMDB}/pos/3_5.txt", b"one\ntwo \xff", r"line 2: byte \d+ is not"),
        (f"{IMDB}/pos/3_5.txt", "abc\ndef".encode("utf-16-le"), "line 1: a NUL character"),
        ("", every(f"{IMDB}/neg/*", None), "no reviews .*test/neg"),
    ],
    "papers": [
        (TSV, line(2, lambda text: text.replace("\t", " ", 1)), "line 2: expected 5"),
        (TSV, line(1, lambda text: "2" + text[1:]), "line 1: expected the label"),
        (TSV, b"1.0\ta\tb\tc\0\td\n", "line 1: .* has a NUL character"),
        (TSV, b"", "has no pairs"),
    ],
    "batches": [
        (f"{CIFAR}/data_batch_3", pickle.dumps(Evil()), r"refers to posix\.system"),
        (f"{CIFAR}/data_batch_3", photographs()[:-40], "is damaged"),
        (f"{CIFAR}/data_batch_3", photographs() * 2, "data after the end of the batch"),
        (f"{CIFAR}/test_batch", photographs(labels=[0, 1]), "are not 2 rows of 3,072"),
        (f"{CIFAR}/test_batch", photographs(labels=[0, 11, 2]), "image 1: expected a label"),
        (f"{CIFAR}/test_batch", photographs(labels=[True] * 3), "image 0: expected a label from 0 to 9, got True"),
        (f"{CIFAR}/test_batch", photographs(data=np.zeros((0, 3072), np.uint8), labels=[]), "is not a CIFAR-10 batch"),
    ],
    "paths": [
        (LIST, line(2, lambda text: text[:12]), "line 2: expected a folder"),
        (LIST, line(3, lambda text: text.replace(" 0 1.0", " 2 1.0")), "line 3: expected a"),
        (LIST, lambda p: put(p, p.read_text() * 2), r"line 5: .*sample_0\.png is that of .*line 1 again"),
        (f"{PATHS}/imgs/10/sample_1.png", remove, r"line 2: .*sample_1\.png is missing"),
        (f"{PATHS}/imgs/10/sample_1.png", b"\x89PNG", "is not an image"),
        (f"{PATHS}/imgs/10/sample_1.png", picture(32, 32, 3), "has mode RGB, not L"),
        (f"{PATHS}/imgs/10/sample_1.png", picture(31, 32), r"10\.npy, line 2\) has 32 x 31 pixels, not 32 x 32"),
        ("", every(f"{PATHS}/metadata/*", None), "no lists of images"),
        ("", every(f"{PATHS}/metadata/*", ""), "no images in the lists"),
    ],
    "clouds": [
        ("pcc/PCN.json", split_list(test=["d", "d"]), "split 'test' lists d more than once"),
        ("pcc/PCN.json", split_list(test=["../01/d"]), "which are not names of a folder and a file"),
        ("pcc/PCN.json", split_list(test=["/etc/d"]), "which are not names of a folder and a file"),
        ("pcc/PCN.json", split_list(test="d"), r"is not a split list, .*0\.test: .*got 'd'"),
        ("", lambda folder: put(folder / "pcc/PCN.json", split_list(test=[])), r"no shapes in split 'test'; .* set"),
        ("pcc/PCN.json", "[1, {", "is not a split list, .*EOF"),
        ("", every("pcc/train/partial/01/b/0[35].pcd", None), r"b/03\.pcd and 1 more"),
    ],
    "photos": [("b.png", lambda path: path.symlink_to("nothing"), "is a link to nothing, which does not exist")],
    "faces": [
        (FACE, cut(60), "is not an image"),
        (FACE, picture(16, 16), "has mode L"),
        (FACE, picture(16, 17, 3), "is 17 x 16 pixels, not 16 x 16"),
        ("sr/ffhq_8_16/sr_8_16/00001.png", remove, r"sr_8_16/00001\.png is missing"),
    ],
    "clips": [
        (WAVE, b"no wave", "is not a wave"),
        (WAVE, b"", "is not a wave"),
        (WAVE, sound(tone(), 16000), "has 16000 Hz"),
        (WAVE, sound(np.stack([tone(), tone()], axis=1)), "has 22050 Hz and shape"),
        (WAVE, sound(tone()[:100]), "has 100 samples"),
        (WAVE, sound(np.append(tone(), np.nan), subtype="FLOAT"), r"sample \d+ is NaN"),
        (WAVE, cut(5000), r"is damaged: it lacks [\d,]+ bytes"),
        (WAVE, remove, r"metadata\.csv, line 3: wavs/LJ001-0002\.wav is missing"),
        ("", lambda f: sound(tone(1.0))(f / WAVE), r"0002\.TextGrid is of 0\.34 s, but its wave has 1\.\d+ s"),  # type: ignore[operator]
        ("tts/metadata.csv", line(8, lambda _: "LJ001-0000|a|a"), "line 8: the clip LJ001-0000 is that of line 1"),
        ("tts/metadata.csv", line(4, lambda _: "LJ001-0003|"), r"line 4: expected id\|text"),
        ("", lambda f: remove(f / "tts/TextGrid/LJ001-0004.TextGrid"), "but not of LJ001-0004"),
    ],
    "own clouds": [
        ("shapes/partial/3.npy", remove, r"partial/3.npy is missing: every cloud in complete needs one in partial"),
        ("shapes/complete/3.npy", b"x y z", "is not an array of numbers"),
    ],
    "own photos": [("photos/3.png", b"no image", "is not an image that can be read")],
    "own clips": [
        ("voice/metadata.csv", remove, "is missing; write a line id"),
        ("voice/metadata.csv", b"clip0|Say it.\n", r"line 1: expected id\|text\|normalized text"),
        ("voice/wavs/clip3.wav", remove, "line 4: wavs/clip3.wav is missing"),
    ],
    "table of cola": [
        ("train.tsv", "gj04\t1\t\ta\ngj04\t\t*\tb\n", "line 2: unknown label '' .known: 0, 1"),
        ("train.tsv", b"a\t1\t\tb\rc\t0\t\td\r", "line 1: lines end with carriage returns"),
    ],
    "table of rte": [
        ("train.tsv", f"{RTE}\n0\ta\tb\tentailment\n1\ta\tb\n", "line 3: 3 columns, expected 4"),
        ("train.tsv", f"{RTE}\n0\ta\tb\tentailment\n\n1\ta\tb\tentailment\n", "line 3: 1 column,"),
        ("train.tsv", "0\ta\tb\tentailment\n", "no column 'sentence1' .columns: 0, a, b, entailment.: download"),
    ],
    "table of mnli": [("train.tsv", f"{MNLI}\t\t\t\n", "line 2: 16 columns, expected 12")],
    "table of stsb": [
        ("train.tsv", f"{STSB}5.2\n", "line 2: the score must be a number from 0 to 5, got '5.2'"),
        ("train.tsv", f"{STSB}nan\n", "line 2: the score must be a number from 0 to 5, got 'nan'"),
        ("train.tsv", f"{STSB}1_0\n", "line 2: the score must be a number"),
        ("train.tsv", HEAD.replace("sentence2", "sentence1"), "column 'sentence1' occurs more than"),
    ],
    "table of sst2": [("train.tsv", "sentence\tlabel\n", "has no example")],
    "series": [
        ("ETTh1.csv", series("x,1,2,3,4,5,6,7"), "line 9, column 'date': 'x' is not a date like 2016.*repair"),
        ("ETTh1.csv", series("2016-07-01 06:00:00,1,2,3,4,5,6,7"), "line 9, .*01 06:00:00' is not 60 min.* after"),
        ("ETTh1.csv", series("2016-07-01 07:15:00,1,2,3,4,5,6,7"), "line 9, .*07:15:00' is not 60 .* 06:00:00'"),
        ("ETTh1.csv", series("2016-07-01 07:00:00,1,,3,4,5,6,7"), "line 9, column 'HULL': 'nan' is not .*repair"),
        ("ETTh1.csv", series("2016-07-01 07:00:00,1,2,3,4,5,six,7"), "line 9, column 'LULL': 'six' is not .*repair"),
        ("ETTh1.csv", series("2016-07-01 07:00:00,1,2,3,4,5,6,7,8"), "line 9 has 9 columns, line 1 8.*download"),
        (
            "ETTh1.csv",
            series(f"{','.join(ETT)},date", at=1),
            "the column 'date', .* 7 after 'HUFL': HULL,.*; correct",
        ),
        ("ETTh1.csv", series(f"date,{','.join(ETT[:-1])},Oil", at=1), "'OT'; found 7 after 'date': .*Oil; correct"),
        ("ETTh1.csv", series().replace(b"HUFL", b"OT", 1), "line 1: the column 'OT' occurs more than once"),
        ("ETTh1.csv", series().replace(b"7\n", b"7,\n"), "line 2 has 9 columns, line 1 8"),
        ("ETTh1.csv", series().replace(b"7\n", b"True\n"), "line 2, column 'OT': 'True' is not a finite number"),
        ("ETTh1.csv", series().replace(b"7\n", b"1_000\n"), "line 2, column 'OT': '1_000' is not a finite number"),
        ("ETTh1.csv", series().replace(b"\n", b"\n\n", 2), "line 2 has 1 column, line 1 8"),
        ("ETTh1.csv", series().replace(b",", b";"), "expected the column 'date'"),
        ("ETTh1.csv", series()[:-4], "line 21 has 7 columns, line 1 8"),
        ("ETTh1.csv", series() * 2, "line 22, column 'HUFL': 'HUFL' is not a finite number"),
        ("ETTh1.csv", edition(ETT, 14_399), "14,399 rows.*needs 14,400.*download"),
        # a deviation that overflows would make its channel constant; a value that overflows float32 is infinite
        ("ETTh1.csv", large(7, "1e200"), "line 7, column 'HULL': '.*' is too large to be standardized"),
        ("ETTh1.csv", large(16_000, "1e39"), "line 16000, column 'HULL': '.*' is too large to be standardized"),
        ("ETTh1.csv", large(16_000, "1e308"), "line 16000, column 'HULL': '.*' is too large to be standardized"),
        *(
            (name, content, "(download|correct)")
            for name in ("ETTh1.csv", "ETTh1.csv.gz")
            for content in (b"", b"\n", b"\x1f\x8b\x08junk", b"\xff\xfe\x00date")
        ),
    ],
    "weather": [
        ("WTH.csv", edition(WEATHER, 35_063), "35,063 rows.*needs 35,064.*download"),
        ("WTH.csv", edition([*WEATHER[:-1], "OT"], 9), "the target 'WetBulbCelsius'; .*correct"),
        ("WTH.csv", edition(WEATHER[2:], 9), "then 12 columns .* found 10.*correct"),
    ],
    "pcd": [
        ("b.pcd", b"hello\nworld\n", "not a .pcd file"),
        *(
            ("b.pcd", pcd(b"\0" * 24, "binary", n=2, **{name: value}), message)
            for name, value, message in (
                ("FIELDS", "x y rgb", "FIELDS must be x y z, got 'x y rgb'"),
                ("SIZE", "8 8 8", "SIZE must be 4 4 4, got '8 8 8'"),
                ("TYPE", "I I I", "TYPE must be F F F, got 'I I I'"),
                ("COUNT", "1 1 2", "COUNT must be 1 1 1, got '1 1 2'"),
                ("POINTS", "many", "has 2 points, and its header gives many"),
            )
        ),
        ("b.pcd", pcd(b"", "binary_compressed"), "binary_compressed"),
        ("b.pcd", pcd(b"\0" * 24, "binary", n=5), "has 2 points, and its header gives 5"),
        ("b.pcd", pcd(b"\0" * 13, "binary", n=1), "truncated or damaged"),
        ("b.pcd", pcd(b"1 2 3\n4 5 6\n0.7", n=3), "line 13: expected three numbers, got '0.7'"),
        ("b.pcd", pcd(b"1 2 3\n", n=3), "has 1 point, and its header gives 3"),
        ("b.pcd", pcd(b"1 2 3\n4 5 6\n", n=1), "has 2 points, and its header gives 1"),
        ("b.pcd", pcd(b"1 2 3\n", WIDTH="7"), "has 1 point, and its header gives WIDTH 7 and HEIGHT 1"),
        ("b.pcd", pcd(b"1 2 3 4\n"), "line 11: expected three numbers, got '1 2 3 4'"),
        ("b.pcd", pcd(b"1 2 3\n1 two 3\n", n=2), "line 12: expected three numbers"),
        ("b.pcd", pcd(b"1_0 2 3\n"), "line 11: expected three numbers, got '1_0 2 3'"),
        ("b.pcd", pcd(b"1 2 3\n1 nan 3\n", n=2), "line 12: the point is NaN or infinite"),
        ("b.pcd", pcd(b"", "binary", n=0), "has 0 points, and its header gives 0"),
    ],
    "wave": [
        ("a.wav", wave(data=-4000), "its header announces 4,000 bytes less"),
        ("a.wav", wave(data=4000), "it lacks 4,000 bytes"),
        ("a.wav", wave(riff=100), "announces 8,144 bytes, it has 8,044"),
        ("a.wav", wave(riff=-100), "announces 7,944 bytes, it has 8,044"),
        ("a.wav", wave(after=b"data\2\0\0\0\0\0"), "not a wave|more than one chunk 'data'"),
        ("a.wav", wave(data=-1), "are no sample"),
    ],
    "image": [
        ("image", encoded("PNG") + b"more", "bytes, and its image"),
        ("image", encoded("PNG")[:-6], "not an image|bytes, and its image"),
        ("image", encoded("JPEG") + b"more", "bytes, and its image"),
        ("image", encoded("BMP", 2, 8), "bytes, and its image"),
        ("image", encoded("BMP", 2, -8), "bytes, and its image"),
        ("image", encoded("WEBP", 4, -8), "not an image|bytes, and its image"),
        ("image", encoded("WEBP") + b"more", "bytes, and its image"),
        ("image", frames, "has 2 frames; save one of them"),
    ],
    "alignment": [
        ("a.TextGrid", content, message)
        for content, message in (
            ("", "0 tiers 'phones'"),
            ("nothing", "0 tiers 'phones' in TextGrid's long form"),
            (SHORT, "0 tiers 'phones' in TextGrid's long form"),
            (GOOD + GOOD, "2 tiers 'phones'"),
            (GOOD[: len(GOOD) * 3 // 4], "line 20: .* has 2 intervals instead of 5, or others"),
            (GOOD.replace("size = 2\n", "size = 3\n"), "has 2 tiers, its header gives 3"),
            (GOOD.replace("size = 5", "size = 4"), "has 5 intervals instead of 4"),
            (GOOD.replace("size = 5", "size = 6"), "has 5 intervals instead of 6"),
            (GOOD.replace("size = 5", f"size = {'9' * 5000}"), "0 tiers 'phones'"),
            (GOOD.replace("size = 1\n", "size = 2\n"), "tier 'words' has 1 interval instead of 2"),
            (GOOD.replace("size = 1\n", "size = 0\n"), "tier 'words' has 1 interval instead of 0"),
            (
                f"{GOOD}        intervals [6]:\n            xmin = 0.6\n",
                "5 intervals instead of 5, or others than 1 to 5",
            ),
            (GOOD.replace("intervals [3]", "intervals [4]"), "has 5 intervals instead of 5, or others than 1 to 5"),
            (grid(("QQ", 0, 0.1)), "line 28: unknown phone 'QQ'"),
            (grid(("<pad>", 0, 0.1)), "unknown phone '<pad>'"),
            (grid(('""', 0, 0.1)), "unknown phone '\"\"'"),
            (grid(("HH", 0, 0.3), ("AH0", 0.2, 0.4)), "line 29: phone 'AH0' from 0.2 to 0.4 s is not between 0.3 s"),
            (grid(("AH0", 0.2, 0.4), ("HH", 0, 0.2), end=0.4), "phone 'HH' from 0 to 0.2 s is not between 0.4 s"),
            (grid(("HH", 0.3, 0.1), end=0.4), "phone 'HH' from 0.3 to 0.1 s"),
            (grid(("HH", 0, 300), end=0.3), "from 0 to 300 s is not between 0 s, .* and 0.3 s, the end of the tier"),
            (grid(("HH", -1, 0.3)), "line 26: the time '-1' is not a number of seconds from 0"),
            *((grid(("HH", 0, x), end=0.3), f"the time '{x}' is not a number") for x in ("nan", "inf", "1e400", "0,3")),
            (grid(("sil", 0, 0.3)), "contains only silence"),
            (GOOD.replace("HH", "H\0H"), "line 32: a NUL character"),
        )
    ],
    "tokenizer": [
        ("t.json", words({"a": 1, "b": 1}), "has 3 entries with 2 ids up to 1"),
        ("t.json", words({"a": 4_000_000_000}), "2 ids up to 4,000,000,000"),
        ("t.json", words({"a": -1}), "invalid value: integer `-1`"),
        ("t.json", words({"a": 1})[:50], "EOF while parsing"),
        ("t.json", words({"a": 1}) * 2, "trailing characters"),
        ("t.json", "", "EOF while parsing"),
        ("t.json", "[" * 10_000, "is not a tokenizer that can be read"),
        ("", nothing, "no tokenizer at"),
    ],
}


@pytest.mark.parametrize(
    ("reader", "number"), [(reader, number) for reader, rows in DAMAGE.items() for number in range(len(rows))]
)
def test_damage_is_named(reader: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the file, and nothing in it is executed."""
    monkeypatch.chdir(tmp_path)
    (write, read), (place, change, message) = READERS[reader], DAMAGE[reader][number]
    write(tmp_path)
    change(tmp_path / place) if callable(change) else put(tmp_path / place, change)
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path)
    assert Path(place).name in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path("it-was-executed").exists()
