"""Generated Pathfinder, texts, pairs and shapes: what they promise, and the same bytes in two processes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from cab import UserError
from tasks.lra.contours import Boards, dash, pen
from tasks.lra.images import GeneratedShapes
from tasks.lra.listops import GeneratedTrees, Shape
from tasks.lra.pathfinder import PATHFINDER, PATHX, GeneratedPaths, paint, targets
from tasks.lra.retrieval import GeneratedPairs
from tasks.lra.rows import Source
from tasks.lra.task import LongRangeArena
from tasks.lra.text import GeneratedReviews
from tests.cab.cli.command import ROOT

SMALL = replace(PATHFINDER, side=16, seed_distance=3, segments=5, distractors=1)
SOURCES: dict[str, Source] = {
    "listops": GeneratedTrees(Shape(4, 5, 5, 40), (20, 5, 5)),
    "text": GeneratedReviews(128, (20, 5, 5)),
    "retrieval": GeneratedPairs(32, (20, 5, 5)),
    "image": GeneratedShapes(12, (20, 5, 5)),
    "pathfinder": GeneratedPaths(SMALL, (20, 5, 5)),
}


def digests() -> dict[str, list[str]]:
    """By data set, a checksum of each part."""
    found = {}
    for name, source in SOURCES.items():
        parts = [[(b"|".join(texts), label) for texts, label in examples] for _, examples in source.examples()]
        assert sorted(map(len, parts)) == [5, 5, 20]
        found[name] = [hashlib.sha256(repr(part).encode()).hexdigest() for part in parts]
    return found


def test_two_processes_make_the_same_bytes() -> None:
    code = "import json; from tests.tasks.lra.test_generated import digests; print(json.dumps(digests()))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "", "PYTHONHASHSEED": "5", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(other.stdout) == digests()


def test_a_dash_is_drawn_as_by_the_original() -> None:
    """Of length 2 and thickness 0.5 to the right and downwards, by snakes.draw_line_n_mask of ab9c130."""
    picture, mask = dash(2, 0.5, 1, 0.0), dash(2, 0.5, 1, 0.0, around=1)
    assert picture[4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.53, 0.45, 0, 0], abs=0.006)
    assert mask[3] == pytest.approx([0, 0, 0.01, 0.08, 0.68, 0.8, 0.73, 0.11, 0], abs=0.006)
    assert mask[4] == pytest.approx([0, 0.01, 0, 0.61, 1, 1, 1, 0.72, 0.01], abs=0.006)
    down = dash(2, 0.5, 1, np.pi / 2)
    assert down[:, 4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.58, 0.45, 0, 0], abs=0.006)
    assert down[:, 5].max() == 0


@pytest.mark.parametrize("geometry", [SMALL, replace(PATHX, segments=5)], ids=["thin", "thick"])
def test_targets_keep_their_distance_and_go_on_smoothly(geometry: object) -> None:
    assert isinstance(geometry, type(PATHFINDER))
    margin = geometry.margins[0]
    drawn = targets(np.random.default_rng(1), geometry, margin)
    shape = pen(geometry.length, geometry.thickness, margin)
    for _ in range(10):
        one, other, mask = next(drawn)
        distance = np.hypot(*(one[0, :2] - other[0, :2]))
        assert distance == pytest.approx(geometry.seed_distance, abs=1)
        for dashes in (one, other):
            ends = dashes[1:, :2]
            assert ((ends >= 0) & (ends < geometry.side)).all()
            turns = np.diff(np.concatenate([[np.radians(dashes[0, 2] - 180)], shape.angles[dashes[1:, 2] - 360]]))
            assert (np.cos(turns) > np.cos(np.pi / 2 / geometry.continuity) - 1e-6).all()
            steps = np.hypot(*np.diff(ends, axis=0).T)
            assert np.abs(steps - geometry.length - 2 * margin).max() <= margin + 2
        assert mask.max() <= 1.0
        boards = Boards(1, geometry.side, shape)
        assert (boards.drawn(one[1:]) > 0.3).any()


def test_labels_say_whether_one_contour_has_both_discs() -> None:
    """Without distractors and far from each other, contours are what a wide enough brush joins."""
    wide = replace(PATHX, segments=4, distractors=0, seed_distance=24)
    images, labels = paint(np.random.default_rng(2), wide, 40)
    assert 8 < labels.sum() < 32
    right = sure = 0
    for image, label in zip(images, labels, strict=True):
        discs, count = ndimage.label(ndimage.binary_opening(image > 200, np.ones((3, 3))))
        joined, contours = ndimage.label(ndimage.binary_dilation(image > 40, np.ones((3, 3)), iterations=3))
        if count == 2 and contours == 2:  # they did not meet
            sure += 1
            first, second = (joined[tuple(np.argwhere(discs == n)[0])] for n in (1, 2))
            right += (first == second) == label
    assert sure > 20
    assert right == sure


def test_images_are_as_the_originals() -> None:
    """Shares of 600 images of snakes2.py at ab9c130, with LRA's settings: 34.2% of pixels above 0, 14.8% above 30."""
    images, labels = paint(np.random.default_rng(0), PATHFINDER, 48)
    assert (images > 0).mean() == pytest.approx(0.342, abs=0.012)
    assert (images > 30).mean() == pytest.approx(0.148, abs=0.008)
    assert images.mean() == pytest.approx(20.2, abs=1.2)
    assert images.max(axis=(1, 2)).tolist() == [255] * 48
    assert 14 <= labels.sum() <= 34


def test_texts_are_told_by_their_markers() -> None:
    task = LongRangeArena(dataset="text_synthetic", length=256, examples=800, test_examples=100)
    task.check()
    task.setup(None)
    rows = task.parts["test"]
    assert {len(rows.text(row)) for row in range(100)} == {256}
    for row in range(100):
        words = rows.text(row).tobytes().split()
        votes = [
            1 if word in (b"jizul", b"zujal", b"lajiz", b"uzlij") else -1
            for word in words
            if b"q" in word or b"z" in word
        ]
        assert len(votes) == 9
        assert (sum(votes) > 0) == bool(rows.labels[row])
    assert task.baselines()["bag_of_words"]["accuracy"] > 90


def test_pairs_are_told_by_their_statistics() -> None:
    task = LongRangeArena(dataset="retrieval_synthetic", length=128, examples=300, test_examples=200)
    task.check()
    task.setup(None)
    found = task.baselines()
    assert found["majority"]["accuracy"] < 60
    assert found["byte_pairs"]["accuracy"] > 85
    batch = task.training_set.__getitems__([0, 1])
    assert [tuple(ids.shape) for ids in batch.texts] == [(2, 128), (2, 128)]


def test_shapes_are_not_told_by_their_mean() -> None:
    task = LongRangeArena(dataset="image_synthetic", side=12, examples=600, test_examples=300)
    task.check()
    task.setup(None)
    assert len(set(task.parts["train"].labels.tolist())) == 10
    assert task.baselines()["nearest_mean"]["accuracy"] < 45
    assert task.training_set.__getitems__([3]).texts[0].shape == (1, 144)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": "text_synthetic", "length": 40}, "length of a generated text must be at least 64, got 40"),
        ({"dataset": "pathx_synthetic", "side": 32}, "contours need task.side of at least 64, got 32"),
        ({"dataset": "image_synthetic", "brackets": "dropped"}, "task.brackets applies to listops, not to image"),
        (
            {"dataset": "listops_synthetic", "zero_pixel_is_padding": True},
            "task.zero_pixel_is_padding applies to image, pathfinder, pathx, not to listops",
        ),
        ({"dataset": "text", "validation_split": "all"}, "task.validation_split must be train or test"),
    ],
)
def test_wrong_options(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        LongRangeArena(**options).check()  # type: ignore[arg-type]


def test_black_as_padding_is_not_attended_to() -> None:
    task = LongRangeArena(
        dataset="pathfinder_synthetic", side=16, segments=4, examples=8, test_examples=4, zero_pixel_is_padding=True
    )
    task.check()
    assert task.config_variant == "black padding"
    task.setup(None)
    ids = task.training_set.__getitems__([0, 1]).texts[0]
    hidden = task._hidden(ids)
    assert hidden is not None
    assert hidden.equal(ids == 1)
    ids[0] = 1
    assert not task._hidden(ids)[0].any()  # type: ignore[index]
    task.zero_pixel_is_padding = False
    assert task._hidden(ids) is None
