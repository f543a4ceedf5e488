"""Images with a legend: fine textures that a low resolution cannot show, told by a colour elsewhere."""

from __future__ import annotations

import numpy as np

COLOURS = np.array([(red, green) for red in (50, 125, 200) for green in (50, 125, 200)], dtype=np.float64)
"""Red and green of a cell: six of these nine colours are in an image."""
NUM_COLOURS = 6
SAID = np.array([20, 90, 160, 230], dtype=np.float64)
"""Blue of a legend's cell: stripes across, stripes down, chequers, nothing."""
UNSAID = 125.0
CONTRAST = 50.0
"""So that no channel is cut off at 0 or 255: that would tell a texture by the mean of its cell."""


def render(number: int, low: int, high: int) -> np.ndarray:
    """Image ``number`` [high, high, 3] uint8, always the same.

    A pixel of the low resolution is a cell of one colour, by its red and green. The first row of cells is the legend:
    each colour of the image at least once, in random order, and its blue says a texture. All other cells have the
    texture of their colour, whose period is one cell: at low resolution it is invisible there, and faint in the cells
    beside it. It follows from the cell of the same colour in the first row, which may be at any distance.

    Without attention the best guess is one of four textures. Convolutions reach the whole image, but would have to
    bring six colours and what each means to every cell; a window of three cells reaches the legend from the second row.
    """
    rng = np.random.default_rng([8, number])
    cell = high // low
    count = min(NUM_COLOURS, low)
    colours = COLOURS[rng.permutation(len(COLOURS))[:count]]
    meant = rng.integers(len(SAID), size=count)
    legend = rng.permutation(np.concatenate([np.arange(count), rng.integers(count, size=low - count)]))
    which = np.concatenate([legend[None], rng.integers(count, size=(low - 1, low))])
    blue = np.full((low, low), UNSAID)
    blue[0] = SAID[meant[legend]]
    y, x = np.mgrid[0:high, 0:high] // max(cell // 2, 1) % 2 * 2.0 - 1.0
    textures = CONTRAST * np.stack([y, x, x * y, np.zeros_like(x)])
    plain = np.concatenate([colours[which], blue[:, :, None]], axis=2).repeat(cell, axis=0).repeat(cell, axis=1)
    kind = meant[which].repeat(cell, axis=0).repeat(cell, axis=1)
    texture = np.take_along_axis(textures, kind[None], axis=0)[0]
    texture[:cell] = 0.0
    return (plain + texture[:, :, None]).clip(0, 255).round().astype(np.uint8)
