"""Lines and discs, drawn at twice the resolution and reduced with a Lanczos filter, in steps of 1/255."""

from __future__ import annotations

import functools
import math

import numpy as np
from PIL import Image, ImageDraw

SCALE = 2


def reach(length: int, thickness: float, margin: int) -> int:
    """Return half the side of the patch of a dash."""
    return length + math.ceil(thickness) + margin


def dash(length: int, thickness: float, margin: int, angle: float, *, around: int = 0) -> np.ndarray:
    """Draw a line from the center of the patch, dilated by ``around`` pixels; values 0 to 1."""
    half = reach(length, thickness, margin)
    center, fine = SCALE * half, SCALE * around
    end = [math.ceil(center + SCALE * length * move(angle)) for move in (math.cos, math.sin)]
    line = Image.new("L", (2 * center + 1, 2 * center + 1))
    ImageDraw.Draw(line).line([(center, center), tuple(end)], fill=255, width=round(thickness * SCALE))
    thin = np.asarray(line)
    wide, padded = thin.copy(), np.pad(thin, fine)
    for y, x in ball(fine) + fine:
        np.maximum(wide, padded[y : y + len(thin), x : x + len(thin)], out=wide)
    return _reduced(wide, 2 * half + 1)


def ball(radius: int) -> np.ndarray:
    """Return the offsets of the pixels within a distance, [n, 2]."""
    box = np.argwhere(np.ones((2 * radius + 1, 2 * radius + 1))) - radius
    return box[(box**2).sum(axis=1) <= radius**2]


@functools.cache
def disc(side: int, y: int, x: int, radius: float) -> np.ndarray:
    """Draw a disc in an image of its own, values 0 to 1."""
    rows, columns = np.ogrid[: side * SCALE, : side * SCALE]
    inside = (rows - y * SCALE) ** 2 + (columns - x * SCALE) ** 2 <= (radius * SCALE) ** 2
    return _reduced(inside.astype(np.uint8) * 255, side)


def _reduced(fine: np.ndarray, side: int) -> np.ndarray:
    small = Image.fromarray(fine).resize((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small, dtype=np.float32) / 255
