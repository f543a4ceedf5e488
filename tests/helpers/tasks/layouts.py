"""Small files in the official layout of each published data set."""

import gzip
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import soundfile
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from tasks.files import VAL_SPLITS
from tasks.lra import images, listops
from tasks.lra.listops import Shape, generated_trees
from tasks.sr.data import degrade, render
from tasks.tts.audio import RATE

TEXT = "It was a cold bright day, and the clocks struck thirteen.\n\nNobody looked up; nobody ever did here.\n"
ARTICLE = " \n = Lobsters = \n \n The <unk> lobster weighs 0 @.@ 7 kg , or more . \n It may live 50 years . \n"
SOURCE = "First one. It goes on. NEWLINE_CHAR More here. ||||| Second one. It ends."
TARGET = "– Both say one thing. It goes on."
TREES = Shape(max_depth=4, max_arguments=5, min_length=5, max_length=40)
ETT = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
WEATHER = ["Visibility", "DryBulbFarenheit", "DryBulbCelsius", "WetBulbFarenheit", "DewPointFarenheit"]
WEATHER += ["DewPointCelsius", "RelativeHumidity", "WindSpeed", "WindDirection", "StationPressure", "Altimeter"]
WEATHER += ["WetBulbCelsius"]
AMERICAN = "%m/%d/%Y %H:%M"
PCD = "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH {n}\nHEIGHT 1\nPOINTS {n}\n"
MNLI = "index\tpromptID\tpairID\tgenre\tparse1\tparse2\tparse3\tparse4\tsentence1\tsentence2\tlabel1"
HEADERS = {
    "sst2": "sentence\tlabel",
    "mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": f"{MNLI}\tgold_label",
    "mnli dev": f"{MNLI}\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
}
"""Of the files of GLUE; CoLA's have none."""


def put(path: Path, content: str | bytes) -> Path:
    """Write a file, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_lines(path: Path, lines: Iterable[str], end: str = "\n") -> Path:
    return put(path, "".join(f"{line}{end}" for line in lines))


def put_image(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "PNG")
    return path


def write_books(folder: Path, **changes: str) -> Path:
    """PG-19: books by split; ``changes`` replaces books by name."""
    books = {"train/1": TEXT * 8, "train/2": "Another book, of ten words or more, so it stays.\n" * 6}
    books |= {"validation/3": TEXT * 2, "test/4": TEXT * 2 + "Zürich and Δelphi are new.\n", "test/5": TEXT}
    for name, text in books.items():
        put(folder / f"{name}.txt", changes.get(f"book{name[-1]}", text))
    return folder


def write_wikitext(folder: Path, ending: str = "wiki.{}.tokens", name: str = "wikitext-103") -> Path:
    for split, text in (("train", ARTICLE * 40), ("valid", ARTICLE * 3), ("test", ARTICLE * 5 + " A crab . \n")):
        put(folder / name / ending.format(split), text)
    return folder


def write_pairs(folder: Path, count: int = 6) -> Path:
    """Multi-News: a document and a summary per line."""
    for split in VAL_SPLITS:
        put_lines(folder / f"sum/{split}.src.cleaned", [f"{SOURCE} Number {i} of {split}." for i in range(count)])
        put_lines(folder / f"sum/{split}.tgt", [f"{TARGET} {i}" for i in range(count)])
    return folder


def write_table(folder: Path, dataset: str, *lines: str, file: str = "train") -> Path:
    """A table of GLUE with the header of the official file."""
    header = HEADERS.get(f"{dataset} {file[:3]}", HEADERS.get(dataset))
    return put_lines(folder / f"{file}.tsv", [header, *lines] if header else lines)


def write_rte(folder: Path) -> Path:
    pairs = [("hers", "entailment"), ("lost", "not_entailment")] * 8
    lines = [f'{i}\tanna "keeps" a lamp .\tit is {word} .\t{label}' for i, (word, label) in enumerate(pairs)]
    for split in ("train", "dev"):
        write_table(folder / "glue/RTE", "rte", *lines, file=split)
    return folder


def write_trees(folder: Path) -> Path:
    """ListOps: with the parentheses of the official files."""
    for split, examples in generated_trees(TREES, (20, 5, 5)).read():
        lines = [f"( {' '.join(listops.SYMBOL_TEXTS[x] for x in texts[0])} )\t{label}" for texts, label in examples]
        path = folder / "lra_release/lra_release/listops-1000" / listops.FILES[split]
        put_lines(path, [listops.HEADER, *lines], end="\r\n")
    return folder


def write_reviews(folder: Path) -> Path:
    """IMDb: a review per file, and reviews without a label."""
    for place in ("train/neg", "train/pos", "test/neg", "test/pos"):
        for number in range(10):
            put(folder / "aclImdb" / place / f"{number}_5.txt", f"{place.replace('/', ' ')} {number} über\n")
    put(folder / "aclImdb/train/unsup/0_0.txt", "nobody's opinion")
    return folder


def write_papers(folder: Path) -> Path:
    """AAN: pairs of papers."""
    for split, count in (("train", 4), ("eval", 2), ("test", 2)):
        lines = [f"{n % 2}.0\tP{n}\tQ{n}\tthe \"{split} {n}\tand 'another {n}" for n in range(count)]
        put_lines(folder / f"lra/tsv_data/new_aan_pairs.{split}.tsv", lines)
    return folder


def write_batches(folder: Path) -> Path:
    """CIFAR-10: pickled batches."""
    rng = np.random.default_rng(0)
    for name, count in [*((name, 4) for name in images.TRAIN_FILES), ("test_batch", 3)]:
        data = rng.integers(0, 256, size=(count, 3072), dtype=np.uint8)
        batch = {b"data": data, b"labels": [n % 10 for n in range(count)], b"batch_label": name.encode()}
        put(folder / "cifar-10-batches-py" / name, pickle.dumps(batch, protocol=2))
    return folder


def write_paths(folder: Path, name: str = "pathfinder32", side: int = 32) -> Path:
    """Pathfinder: images, and lists of them with their labels."""
    home = folder / "lra_release/lra_release" / name / "curv_contour_length_14"
    for batch, count in ((0, 6), (10, 4), (2, 10)):
        for n in range(count):
            put_image(home / f"imgs/{batch}/sample_{n}.png", np.full((side, side), 10 * batch + n, np.uint8))
        lines = [f"imgs/{batch} sample_{n}.png {n} {n % 2} 1.0 14 4 2 0.5 1 1" for n in range(count)]
        put_lines(home / f"metadata/{batch}.npy", lines)
    return folder


def put_series(path: Path, columns: list[str], rows: int, *, freq: str = "h", dates: str = "%Y-%m-%d %H:%M:%S") -> None:
    """Write a series, compressed if its name ends in ``.gz``, with (7 r + 3 c) mod 10 in row r and channel c."""
    lines = [",".join(["date", *columns])]
    cycle = [",".join(str((7 * row + 3 * channel) % 10) for channel in range(len(columns))) for row in range(10)]
    when = pd.date_range("2016-07-01", periods=rows, freq=freq).strftime(dates)
    lines += [f"{date},{cycle[row % 10]}" for row, date in enumerate(when)]
    content = ("\n".join(lines) + "\n").encode()
    put(path, gzip.compress(content, 1) if path.suffix == ".gz" else content)


def write_series(root: Path) -> Path:
    """LSTF: the published series."""
    for name in ("ETTh1.csv", "ETTh2.csv"):
        put_series(root / "lstf" / name, ETT, 17_420)
    put_series(root / "lstf/ETTm1.csv.gz", ETT, 69_680, freq="15min")
    put_series(root / "lstf/WTH.csv", WEATHER, 35_064, dates=AMERICAN)
    return root


def pcd(data: bytes, kind: str = "ascii", n: int = 1) -> bytes:
    """A cloud whose header announces ``n`` points."""
    return f"{PCD.format(n=n)}DATA {kind}\n".encode() + data


def write_pcd(path: Path, points: np.ndarray, *, binary: bool = True) -> Path:
    rows = "".join(" ".join(f"{v:.9g}" for v in point) + "\n" for point in points.astype(np.float32))
    data = points.astype("<f4").tobytes() if binary else rows.encode()
    return put(path, pcd(data, "binary" if binary else "ascii", len(points)))


def write_pcn(folder: Path) -> Path:
    """PCN: two shapes to train on, one for each other split."""
    rng = np.random.default_rng(3)
    names = {"train": ["a", "b"], "val": ["c"], "test": ["d"]}
    put(folder / "pcc/PCN.json", json.dumps([{"taxonomy_id": "01", "taxonomy_name": "x", **names}]))
    for split, shapes in names.items():
        for shape in shapes:
            complete = rng.uniform(0.1, 0.5, size=(60, 3))
            write_pcd(folder / f"pcc/{split}/complete/01/{shape}.pcd", complete)
            for view in range(8 if split == "train" else 1):
                path = folder / f"pcc/{split}/partial/01/{shape}/{view:02d}.pcd"
                write_pcd(path, complete[: 20 + view], binary=False)
    return folder


def write_faces(folder: Path, count: int = 5) -> Path:
    """SR3: images of 16 pixels, and the same from 8."""
    for i in range(count):
        image = render(i, 8, 16)
        put_image(folder / f"sr/ffhq_8_16/hr_16/{i:05d}.png", image)
        put_image(folder / f"sr/ffhq_8_16/sr_8_16/{i:05d}.png", degrade(image, 8))
    return folder


def tone(seconds: float = 0.4, pitch: float = 180.0) -> np.ndarray:
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.3 * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 8))).astype(np.float32)


def write_clips(folder: Path, *, alignments: bool = True) -> Path:
    """LJSpeech: eight short clips of two chapters."""
    (folder / "tts/wavs").mkdir(parents=True)
    names = [f"LJ00{1 + i // 6}-{i:04d}" for i in range(8)]
    put_lines(folder / "tts/metadata.csv", [f'{name}|Say "it" {i}|Say "it" twice.' for i, name in enumerate(names)])
    for i, name in enumerate(names):
        soundfile.write(folder / f"tts/wavs/{name}.wav", tone(0.3 + 0.02 * i, 120 + 10 * i), RATE)
        if alignments:
            phones = ("sil", 0.0, 0.05), ("S", 0.05, 0.1), ("EY1", 0.1, 0.21), ("T", 0.21, 0.28)
            put(folder / f"tts/TextGrid/{name}.TextGrid", grid(*phones, end=0.3 + 0.02 * i))
    return folder


def words(vocabulary: dict[str, int], **settings: Any) -> str:
    """A file of a tokenizer of words."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    content = json.loads(tokenizer.to_str()) | settings
    content["model"]["vocab"] = {"<unk>": 0, **vocabulary}
    return json.dumps(content)


def grid(*phones: tuple[str, object, object], end: float | None = None) -> str:
    """An alignment as the Montreal Forced Aligner writes it, of ``end`` seconds; by default, up to the last phone."""
    stop = float(str(phones[-1][2])) if end is None else end
    text = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = {stop}\n'
    text += "tiers? <exists>\nsize = 2\nitem []:\n"
    for number, (name, rows) in enumerate((("words", [("hello", 0, stop)]), ("phones", phones)), start=1):
        text += f'    item [{number}]:\n        class = "IntervalTier"\n        name = "{name}"\n        xmin = 0\n'
        text += f"        xmax = {stop}\n        intervals: size = {len(rows)}\n"
        for i, (phone, start, until) in enumerate(rows, start=1):
            text += f"        intervals [{i}]:\n            xmin = {start}\n            xmax = {until}\n"
            text += f'            text = "{phone}"\n'
    return text
