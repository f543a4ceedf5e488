"""The official layouts of text, retrieval, image, Pathfinder and Path-X, with made-up content; and their damage."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cab import UserError
from tasks.lra import images
from tasks.lra.rows import Example, Rows
from tasks.lra.task import LongRangeArena


def read(dataset: str, root: Path, **options: Any) -> dict[str, list[Example]]:
    """By split, what a network would see."""
    task = LongRangeArena(dataset=dataset, **options)
    task.check()
    task.setup(root)

    def row(rows: Rows, number: int) -> Example:
        texts = [rows.text(number, each).tobytes() for each in range(rows.width)]
        return Example(tuple(texts), int(rows.labels[number]))

    return {split: [row(rows, number) for number in range(len(rows))] for split, rows in task.splits.items()}


def reviews(root: Path) -> Path:
    folder = root / "aclImdb"
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            (folder / split / label).mkdir(parents=True)
            for number in range(10):
                (folder / split / label / f"{number}_5.txt").write_text(f"{split} {label} {number} über\n")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("nobody's opinion")
    return folder


def test_reviews(tmp_path: Path) -> None:
    """A tenth of the training split is held out, or the test split chooses too, as published."""
    reviews(tmp_path)
    found = read("text", tmp_path)
    assert {split: len(rows) for split, rows in found.items()} == {"train": 18, "validation": 2, "test": 20}
    everything = [example for rows in found.values() for example in rows]
    assert len({example.texts for example in everything}) == 40
    assert all((b" pos " in texts[0]) == label for texts, label in everything)
    assert all(texts[0].startswith(b"test") for texts, _ in found["test"])
    assert found == read("text", tmp_path)
    published = read("text", tmp_path, validation_split="test")
    assert published["validation"] == published["test"] == found["test"]
    assert len(published["train"]) == 20


def pairs(root: Path) -> Path:
    folder = root / "lra" / "tsv_data"
    folder.mkdir(parents=True)
    for split, count in (("train", 4), ("eval", 2), ("test", 2)):
        lines = [f"{n % 2}.0\tP{n}\tQ{n}\tthe \"{split} {n}\tand 'another {n}" for n in range(count)]
        (folder / f"new_aan_pairs.{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_pairs_of_papers(tmp_path: Path) -> None:
    pairs(tmp_path)
    found = read("retrieval", tmp_path)
    assert found["train"][3] == ((b'the "train 3', b"and 'another 3"), 1)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [4, 2, 2]
    task = LongRangeArena(dataset="retrieval")
    task.setup(tmp_path)
    assert task.backbone_options("encoder")["pairs"]


def photographs(root: Path, protocol: int = 2) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, count in [(name, 4) for name in images.TRAIN] + [("test_batch", 3)]:
        data = rng.integers(0, 256, size=(count, 3072), dtype=np.uint8)
        batch = {b"data": data, b"labels": [n % 10 for n in range(count)], b"batch_label": name.encode()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    return folder


@pytest.mark.parametrize("protocol", [2, 4])
def test_photographs(protocol: int, tmp_path: Path) -> None:
    folder = photographs(tmp_path, protocol)
    found = read("image", tmp_path)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [18, 2, 3]
    data = pickle.loads((folder / "test_batch").read_bytes())[b"data"].astype(float)
    red, green, blue = data[1].reshape(3, 1024)
    expected = (0.2989 * red + 0.587 * green + 0.114 * blue) * 255.5 / 255
    assert np.abs(np.frombuffer(found["test"][1].texts[0], np.uint8) - np.floor(expected)).max() <= 1
    white = images.gray(np.full((1, 3, 1024), 255, np.uint8))
    assert white.min() == white.max() == 255


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch it-was-executed",)


def paths(root: Path, name: str = "pathfinder32", side: int = 32) -> Path:
    folder = root / "lra_release" / "lra_release" / name / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    for batch, count in ((0, 6), (10, 4), (2, 10)):
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for n in range(count):
            Image.fromarray(np.full((side, side), 10 * batch + n, np.uint8)).save(
                folder / f"imgs/{batch}/sample_{n}.png"
            )
            lines.append(f"imgs/{batch} sample_{n}.png {n} {n % 2} 1.0 14 4 2 0.5 1 1")
        (folder / "metadata" / f"{batch}.npy").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("dataset", "name", "side"), [("pathfinder", "pathfinder32", 32), ("pathx", "pathfinder128", 128)]
)
def test_paths(dataset: str, name: str, side: int, tmp_path: Path) -> None:
    folder = paths(tmp_path, name, side)
    (folder / "imgs/0/sample_3.png").write_bytes(b"")  # the release has such a file
    found = read(dataset, tmp_path, side=side)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [15, 2, 2]
    everything = [example for rows in found.values() for example in rows]
    assert len({texts[0][0] for texts, _ in everything}) == 19
    assert all(len(texts[0]) == side**2 and texts[0][0] % 2 == label for texts, label in everything)
    with pytest.raises(UserError, match=f"the images of {dataset} are {side} pixels wide, not 16"):
        LongRangeArena(dataset=dataset, side=16).check()


def overwrite(path: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / path).write_bytes(content)


def line(path: str, number: int, change: Callable[[str], str]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        lines = (folder / path).read_text().splitlines()
        lines[number - 1] = change(lines[number - 1])
        (folder / path).write_text("\n".join(lines) + "\n")

    return damage


def batch(**changes: Any) -> bytes:
    whole = {b"data": np.zeros((3, 3072), np.uint8), b"labels": [0, 1, 2]}
    return pickle.dumps({**whole, **{name.encode(): value for name, value in changes.items()}}, protocol=2)


TSV, LIST = "new_aan_pairs.eval.tsv", "metadata/10.npy"
DAMAGE: list[tuple[str, Callable[[Path], Path], Callable[[Path], object], str]] = [
    ("text", reviews, overwrite("test/pos/3_5.txt", b"one\ntwo \xff"), r"pos/3_5\.txt, line 2: byte \d+ is not"),
    ("text", reviews, lambda folder: [p.unlink() for p in (folder / "test/neg").iterdir()], r"no reviews .*test/neg"),
    ("retrieval", pairs, line(TSV, 2, lambda text: text.replace("\t", " ", 1)), r"eval\.tsv, line 2: expected 5"),
    ("retrieval", pairs, line(TSV, 1, lambda text: "2" + text[1:]), r"eval\.tsv, line 1: expected the label"),
    ("retrieval", pairs, overwrite(TSV, b""), "has no pairs"),
    ("image", photographs, overwrite("data_batch_3", pickle.dumps(Evil())), r"data_batch_3 .* refers to posix\.system"),
    ("image", photographs, overwrite("data_batch_3", batch()[:-40]), "data_batch_3 .* is damaged"),
    ("image", photographs, overwrite("test_batch", batch(labels=[0, 1])), "test_batch .* are not 2 rows of 3,072"),
    ("image", photographs, overwrite("test_batch", batch(labels=[0, 11, 2])), "test_batch, image 1: expected a label"),
    ("pathfinder", paths, line(LIST, 2, lambda text: text[:12]), r"10\.npy, line 2: expected a folder"),
    ("pathfinder", paths, line(LIST, 3, lambda text: text.replace(" 0 1.0", " 2 1.0")), r"line 3: expected a"),
    ("pathfinder", paths, lambda f: (f / "imgs/10/sample_1.png").unlink(), r"line 2: .*sample_1\.png is missing"),
    ("pathfinder", paths, overwrite("imgs/10/sample_1.png", b"\x89PNG"), r"sample_1\.png is not an image"),
    (
        "pathfinder",
        paths,
        lambda folder: Image.new("RGB", (32, 32)).save(folder / "imgs/10/sample_1.png"),
        r"sample_1\.png has mode RGB, not L",
    ),
    (
        "pathfinder",
        paths,
        lambda folder: Image.new("L", (32, 31)).save(folder / "imgs/10/sample_1.png"),
        r"sample_1\.png \(.*10\.npy, line 2\) has 32 x 31 pixels, not 32 x 32",
    ),
    ("pathfinder", paths, lambda f: [p.unlink() for p in (f / "metadata").iterdir()], "no lists of images"),
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "make", "damage", "said"), DAMAGE)
def test_damage_is_named(
    dataset: str,
    make: Callable[[Path], Path],
    damage: Callable[[Path], object],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    damage(make(tmp_path))
    with pytest.raises(UserError, match=said) as error:
        read(dataset, tmp_path)
    assert "\n" not in str(error.value)
    assert not Path("it-was-executed").exists()
