"""The official layouts of text, retrieval, image, Pathfinder and Path-X, with made-up content."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cab import UserError
from tasks.lra import images
from tasks.lra.rows import Example, Rows
from tasks.lra.task import LongRangeArena
from tests.helpers.tasks.layouts import write_batches, write_papers, write_paths, write_reviews


def read(dataset: str, root: Path, **options: Any) -> dict[str, list[Example]]:
    """By split, what a network would see."""
    task = LongRangeArena(dataset=dataset, **options)
    task.check()
    task.setup(root)

    def row(rows: Rows, number: int) -> Example:
        texts = [rows.text(number, each).tobytes() for each in range(rows.width)]
        return Example(tuple(texts), int(rows.labels[number]))

    return {split: [row(rows, number) for number in range(len(rows))] for split, rows in task.splits.items()}


def test_reviews(tmp_path: Path) -> None:
    """A tenth of the training split is held out, or the test split chooses too, as published."""
    write_reviews(tmp_path)
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


def test_pairs_of_papers(tmp_path: Path) -> None:
    write_papers(tmp_path)
    found = read("retrieval", tmp_path)
    assert found["train"][3] == ((b'the "train 3', b"and 'another 3"), 1)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [4, 2, 2]
    task = LongRangeArena(dataset="retrieval")
    task.setup(tmp_path)
    assert task.backbone_options("encoder")["pairs"]


@pytest.mark.parametrize("protocol", [2, 4])
def test_photographs(protocol: int, tmp_path: Path) -> None:
    folder = write_batches(tmp_path, protocol) / "cifar-10-batches-py"
    found = read("image", tmp_path)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [18, 2, 3]
    data = pickle.loads((folder / "test_batch").read_bytes())[b"data"].astype(float)
    red, green, blue = data[1].reshape(3, 1024)
    expected = (0.2989 * red + 0.587 * green + 0.114 * blue) * 255.5 / 255
    assert np.abs(np.frombuffer(found["test"][1].texts[0], np.uint8) - np.floor(expected)).max() <= 1
    white = images.gray(np.full((1, 3, 1024), 255, np.uint8))
    assert white.min() == white.max() == 255


@pytest.mark.parametrize(
    ("dataset", "name", "side"), [("pathfinder", "pathfinder32", 32), ("pathx", "pathfinder128", 128)]
)
def test_paths(dataset: str, name: str, side: int, tmp_path: Path) -> None:
    folder = write_paths(tmp_path, name, side) / "lra_release/lra_release" / name / "curv_contour_length_14"
    (folder / "imgs/0/sample_3.png").write_bytes(b"")  # the release has such a file
    found = read(dataset, tmp_path, side=side)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [15, 2, 2]
    everything = [example for rows in found.values() for example in rows]
    assert len({texts[0][0] for texts, _ in everything}) == 19
    assert all(len(texts[0]) == side**2 and texts[0][0] % 2 == label for texts, label in everything)
    with pytest.raises(UserError, match=f"the images of {dataset} are {side} pixels wide, not 16"):
        LongRangeArena(dataset=dataset, side=16).check()
