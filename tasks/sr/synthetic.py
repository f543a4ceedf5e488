"""Images with a legend: fine textures, invisible at low resolution, identified by a color elsewhere."""

from __future__ import annotations

import numpy as np

COLORS = np.array([(red, green) for red in (50, 125, 200) for green in (50, 125, 200)], dtype=np.float64)
"""Red and green of a cell: an image has six of these nine colors."""
NUM_COLORS = 6
SAID = np.array([20, 90, 160, 230], dtype=np.float64)
"""Blue of a legend cell: horizontal stripes, vertical stripes, checkerboard, no texture."""
UNSAID = 125.0
CONTRAST = 50.0
"""Avoids clipping at 0 or 255, which would reveal a texture by the mean of its cell."""


def render(number: int, low: int, high: int) -> np.ndarray:
    """Generate image ``number`` [high, high, 3] uint8, deterministically.

    A low-resolution pixel is a cell of one color, given by its red and green. The first row of cells is the legend:
    each color of the image at least once, in random order, with a texture encoded in blue. All other cells have the
    texture of their color, with a period of one cell: it is invisible at low resolution in the cell, and faint in
    neighboring cells. It follows from the legend cell of the same color, at any distance.

    Without attention the best guess is one of four textures. Convolutions reach the whole image, but would have to
    transport six colors and their textures to every cell; a window of three cells reaches the legend from the second
    row only.
    """
    rng = np.random.default_rng([8, number])
    cell = high // low
    count = min(NUM_COLORS, low)
    colors = COLORS[rng.permutation(len(COLORS))[:count]]
    meant = rng.integers(len(SAID), size=count)
    legend = rng.permutation(np.concatenate([np.arange(count), rng.integers(count, size=low - count)]))
    which = np.concatenate([legend[None], rng.integers(count, size=(low - 1, low))])
    blue = np.full((low, low), UNSAID)
    blue[0] = SAID[meant[legend]]
    y, x = np.mgrid[0:high, 0:high] // max(cell // 2, 1) % 2 * 2.0 - 1.0
    textures = CONTRAST * np.stack([y, x, x * y, np.zeros_like(x)])
    plain = np.concatenate([colors[which], blue[:, :, None]], axis=2).repeat(cell, axis=0).repeat(cell, axis=1)
    kind = meant[which].repeat(cell, axis=0).repeat(cell, axis=1)
    texture = np.take_along_axis(textures, kind[None], axis=0)[0]
    texture[:cell] = 0.0
    return (plain + texture[:, :, None]).clip(0, 255).round().astype(np.uint8)
