"""Images with a legend: fine textures that a low resolution cannot show, told by colours far away."""

from __future__ import annotations

import numpy as np

LEGEND = np.array([[205, 60, 60], [60, 90, 205], [60, 170, 80], [205, 180, 60]], dtype=np.float64)
"""Colours that stand for stripes across, stripes down, chequers, and nothing."""
CONTRAST = 55.0


def paint(number: int, low: int, high: int) -> np.ndarray:
    """Image ``number`` [high, high, 3] uint8, always the same.

    Four rows of plain colours, all with one texture, and in the upper left corner a patch of the legend: its colour
    says which. The period of a texture is one pixel of the low resolution: there it is all but invisible, so the
    texture of any place follows only from the corner.
    """
    rng = np.random.default_rng([7, number])
    row, cell = high // 4, high // low // 2
    kind = rng.integers(0, len(LEGEND))
    y, x = np.mgrid[0:high, 0:high] // max(cell, 1) % 2 * 2.0 - 1.0
    colours = np.repeat(rng.uniform(70, 185, size=(4, 3)), row, axis=0)
    image = colours[:, None] + CONTRAST * [y, x, x * y, np.zeros_like(x)][kind][:, :, None]
    image[:row, :row] = LEGEND[kind]
    return image.clip(0, 255).round().astype(np.uint8)
