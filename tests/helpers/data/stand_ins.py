"""Small stand-ins for the files of the published data sets."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile

import numpy as np
from PIL import Image

BOOK = b"a book of at least ten words, so that nobody leaves it out of the ten"
GRID = b"alignment"


def zip_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def tar_of(files: dict[str, bytes], *, link: str = "", kind: bytes = tarfile.SYMTYPE) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:bz2") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        if link:
            entry = tarfile.TarInfo("top/link")
            entry.type, entry.linkname = kind, link
            archive.addfile(entry)
    return content.getvalue()


def image() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((40, 32, 3), 99, np.uint8)).save(file, "PNG")
    return file.getvalue()


def cloud(points: int) -> bytes:
    header = "VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\n"
    header += f"WIDTH {points}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {points}\nDATA ascii\n"
    return (header + "0.1 0.2 0.3\n" * points).encode()


def rows(columns: int, count: int) -> bytes:
    return ("\n".join([",".join(["x"] * columns)] * (count + 1)) + "\n").encode()


def shapes(folder: str) -> dict[str, bytes]:
    files = {}
    for part, name, views in (("train", "a", 8), ("val", "b", 1), ("test", "c", 1)):
        files[f"{folder}{part}/complete/01/{name}.pcd"] = cloud(9)
        files |= {f"{folder}{part}/partial/01/{name}/{view:02d}.pcd": cloud(3) for view in range(views)}
    return files


def wikitext(size: int) -> bytes:
    parts = ("train", "valid", "test")
    return zip_of({f"wikitext-{size}/wiki.{part}.tokens": b" a line \n" for part in parts})


def glue(archive_of: str) -> bytes:
    """A header and an example in each file, and beside them a folder of other files, as MNLI's archive has."""
    parts = ("dev_matched", "dev_mismatched") if archive_of == "MNLI" else ("dev",)
    files = {f"{archive_of}/{part}.tsv": b"an example\n" * (1 + (archive_of != "CoLA")) for part in ("train", *parts)}
    return zip_of({**files, f"{archive_of}/original/train.txt": b"x"})


def stand_ins() -> dict[str, dict[str, bytes]]:
    """Return the content of each item by data set."""
    speech = {f"LJSpeech-1.1/wavs/LJ00{n}-0001.wav": b"wave" for n in (1, 2)}
    speech["LJSpeech-1.1/metadata.csv"] = b"LJ001-0001|1|one\nLJ002-0001|2|two\n"
    splits = [{"taxonomy_id": "01", "train": ["a"], "val": ["b"], "test": ["c"]}]
    numbers = "\n".join([",".join(map(str, range(321)))] * 3).encode()
    parts = ("train", "val", "test")
    reviews = {f"aclImdb/{part}/{name}/1_9.txt": b"a film" for part in ("train", "test") for name in ("pos", "neg")}
    batches = dict.fromkeys((f"cifar-10-batches-py/{name}" for name in ("data_batch_1", "test_batch")), b"a pickle")
    return {
        "text": {"aclImdb_v1.tar.gz": tar_of(reviews)},
        "image": {"cifar-10-python.tar.gz": tar_of(batches)},
        **{name: {f"{file}.csv": rows(8, 4)} for name, file in (("etth1", "ETTh1"), ("etth2", "ETTh2"))},
        "ettm1": {"ETTm1.csv": rows(8, 4)},
        "ecl": {"electricity.txt.gz": gzip.compress(numbers)},
        "weather": {"WTH.csv": rows(13, 4)},
        "pg19": {
            "train_files.txt": b"train/1.txt\ntrain/2.txt\n",
            "validation_files.txt": b"validation/3.txt\n",
            "test_files.txt": b"test/4.txt\n",
            **{f"{part}.txt": BOOK for part in ("train/1", "train/2", "validation/3", "test/4")},
        },
        "multi_news": {f"{part}{kind}": b"text\n" for part in parts for kind in (".src.cleaned", ".tgt")},
        "ljspeech": {
            "LJSpeech-1.1.tar.bz2": tar_of(speech),
            "ljspeech_mfa.zip": zip_of({f"LJ00{n}-0001.TextGrid": GRID for n in (1, 2)}),
        },
        "pcn": {
            "PCN.json": json.dumps(splits).encode(),
            "ShapeNetCompletion.zip": zip_of(shapes("ShapeNetCompletion/")),
        },
        "ffhq": {"thumbnails128x128.zip": zip_of({f"thumbnails128x128/00000/{n}.png": image() for n in "12"})},
        "celebahq": {"archive.zip": zip_of({f"celeba_hq_256/0000{n}.jpg": image() for n in "12"})},
        "gpt2_bpe": {"vocab.json": b"{}", "merges.txt": b"#version\na b\n"},
        "bart_bpe": {"tokenizer.json": b"{}"},
        "mrpc": {f"{part}.tsv": b"a header\nan example\n" for part in ("train", "dev")},
        **{
            name: {f"{file}.zip": glue(file)}
            for name, file in (
                *(("cola", "CoLA"), ("sst2", "SST-2"), ("qqp", "QQP-clean"), ("mnli", "MNLI")),
                *(("qnli", "QNLIv2"), ("rte", "RTE"), ("stsb", "STS-B")),
            )
        },
        **{f"wikitext{size}": {f"wikitext-{size}-v1.zip": wikitext(size)} for size in (2, 103)},
    }


PUBLISHED = {"rows": 4, "training books": 2, "training shapes": 1, "training views": 8, "merges": 1}
PUBLISHED |= {"training reviews": 2, "test reviews": 2}
PUBLISHED |= dict.fromkeys(("clips", "texts", "alignments", "images", "low-resolution partners"), 2)
"""Counts of the stand-ins that are not 1."""
