"""Generated Pathfinder, texts, pairs and shapes: what they promise, and the same bytes in two processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from tasks.lra.contours import dash
from tasks.lra.pathfinder import PATHFINDER, PATHX, paint
from tasks.lra.task import LongRangeArena

SMALL = replace(PATHFINDER, side=16, seed_distance=3, segments=5, distractors=1)


def test_a_dash_is_drawn_as_by_the_original() -> None:
    """Of length 2 and thickness 0.5 to the right and downwards, by snakes.draw_line_n_mask of ab9c130."""
    picture, mask = dash(2, 0.5, 1, 0.0), dash(2, 0.5, 1, 0.0, around=1)
    assert picture[4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.53, 0.45, 0, 0], abs=0.006)
    assert mask[3] == pytest.approx([0, 0, 0.01, 0.08, 0.68, 0.8, 0.73, 0.11, 0], abs=0.006)
    assert mask[4] == pytest.approx([0, 0.01, 0, 0.61, 1, 1, 1, 0.72, 0.01], abs=0.006)
    down = dash(2, 0.5, 1, np.pi / 2)
    assert down[:, 4] == pytest.approx([0, 0, 0.01, 0, 0.4, 0.58, 0.45, 0, 0], abs=0.006)
    assert down[:, 5].max() == 0


def test_labels_say_whether_one_contour_has_both_discs() -> None:
    """Without distractors and far from each other, contours are what a wide enough brush joins."""
    wide = replace(PATHX, segments=4, distractors=0, seed_distance=24)
    images, labels = paint(np.random.default_rng(2), wide, 12)
    assert 2 < labels.sum() < 10
    right = sure = 0
    for image, label in zip(images, labels, strict=True):
        discs, count = ndimage.label(ndimage.binary_opening(image > 200, np.ones((3, 3))))
        joined, contours = ndimage.label(ndimage.binary_dilation(image > 40, np.ones((3, 3)), iterations=3))
        if count == 2 and contours == 2:  # they did not meet
            sure += 1
            first, second = (joined[tuple(np.argwhere(discs == n)[0])] for n in (1, 2))
            right += (first == second) == label
    assert sure > 4
    assert right == sure


def test_images_are_as_the_originals() -> None:
    """Shares of 600 images of snakes2.py at ab9c130, with LRA's settings: 34.2% of pixels above 0, 14.8% above 30."""
    images, labels = paint(np.random.default_rng(0), PATHFINDER, 48)
    assert (images > 0).mean() == pytest.approx(0.342, abs=0.012)
    assert (images > 30).mean() == pytest.approx(0.148, abs=0.008)
    assert images.mean() == pytest.approx(20.2, abs=1.2)
    assert images.max(axis=(1, 2)).tolist() == [255] * 48
    assert 14 <= labels.sum() <= 34


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
