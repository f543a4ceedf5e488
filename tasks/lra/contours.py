"""Dashed contours that grow in the free parts of many images at once.

A dash is stored as its start pixel and the index of its direction: first whole degrees, then the directions in which a
contour can continue, reversed, since such a dash is drawn from its far end.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SCALE = 2  # dashes and discs are drawn at twice the size and reduced, for smooth edges


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


FREE = 0.3
"""Maximum mask value of a free pixel."""
CROSSED = 1.8
"""Minimum sum of two masks that overlap."""
TRIES = 3  # ends of a next dash that are drawn before the contour counts as stuck


class Pen:
    """Rasterized dashes for a length, thickness and margin, by direction index.

    Attributes:
        reach: half the side of the patch of a dash.
        pictures, masks: [directions, side, side] patches: the dash, and the area it occupies including the margin.
        steps, angles: offsets [k, 2] from the pivot of a contour to possible ends of its next dash, and their
        directions [k].
        ball: offsets within the margin, [m, 2].
        taken: per whole degree, offsets [t, 2] of the pixels required by a first dash; shifted down and right by one
            pixel, as in the original.
    """

    def __init__(self, length: int, thickness: float, margin: int) -> None:
        self.length, self.margin, self.reach = length, margin, reach(length, thickness, margin)
        around = np.radians(np.arange(0, 360, 360 / (2 * math.pi * (length + margin))))
        circle = (length + margin) * np.stack([np.sin(around), np.cos(around)], axis=1)
        self.steps = np.unique(np.floor(circle).astype(int), axis=0)
        self.angles = np.arctan2(self.steps[:, 0], self.steps[:, 1])
        angles = [*np.radians(np.arange(-180, 180)), *(self.angles + math.pi)]
        self.pictures = np.stack([dash(length, thickness, margin, angle) for angle in angles])
        self.masks = np.stack([dash(length, thickness, margin, angle, around=margin) for angle in angles])
        self.ball = ball(margin)
        offsets = [np.argwhere(mask == 1.0) - self.reach + 1 for mask in self.masks[:360]]
        self.taken = [pixels[(pixels <= length + margin).all(axis=1)] for pixels in offsets]


pen = functools.cache(Pen)


def moved(places: np.ndarray, angles: np.ndarray, distance: float) -> np.ndarray:
    """Return the pixels [n, 2] at a distance from ``places``, rounded up in both coordinates."""
    return np.ceil(places + distance * np.stack([np.sin(angles), np.cos(angles)], axis=-1)).astype(int)


@dataclass
class Contours:
    """Contours with the same number of dashes (``count``).

    Attributes:
        dashes: [n, most, 3], row and column of the start, and direction index.
        pivots, angles: start [n, 2] and direction [n] of the last dash.
    """

    dashes: np.ndarray
    pivots: np.ndarray
    angles: np.ndarray
    count: int = 1

    @classmethod
    def empty(cls, number: int, most: int) -> Contours:
        return cls(np.zeros((number, most, 3), dtype=int), np.zeros((number, 2), dtype=int), np.zeros(number))


class Boards:
    """Square images under construction: the occupied area of each, 0 to 1, initially a frame of one pixel."""

    def __init__(self, number: int, side: int, pen: Pen) -> None:
        self.side, self.pen, self.edge = side, pen, pen.reach + 1
        self.padded = np.zeros((number, side + 2 * self.edge, side + 2 * self.edge), dtype=np.float32)
        self.masks = self.padded[:, self.edge : -self.edge, self.edge : -self.edge]
        close_frame(self.masks, 1)

    def _inside(self, places: np.ndarray) -> Any:
        return np.all((places >= 0) & (places < self.side), axis=-1)

    def _patches(self, dashes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the masks of dashes [n, 3] clipped to the image [n, p, p], with padded rows and columns."""
        span = np.arange(-self.pen.reach, self.pen.reach + 1)
        rows, columns = (dashes[:, axis, None] + span for axis in (0, 1))
        inside = [(x >= 0) & (x < self.side) for x in (rows, columns)]
        taken = self.pen.masks[dashes[:, 2]] * (inside[0][:, :, None] & inside[1][:, None])
        return taken, rows[:, :, None] + self.edge, columns[:, None] + self.edge

    def take(self, boards: np.ndarray, dashes: np.ndarray) -> None:
        """Add the masks of the dashes [n, 3] to the images ``boards`` [n]."""
        taken, rows, columns = self._patches(dashes)
        where = boards[:, None, None], rows, columns
        self.padded[where] = np.maximum(self.padded[where], taken)

    def free_tails(self, board: int, degree: int, frame: int) -> np.ndarray:
        """Return the pixels [n, 2], at least ``frame`` from the border, where a first dash needs free pixels only.

        The result is empty if the required pixels could be wholly outside, at a corner: the original mistakes OpenCV's
        marker for this case for a full image. Short thin dashes therefore start in few directions, and most distractors
        find no place.
        """
        offsets = self.pen.taken[degree]
        for corner in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            if not (offsets * corner >= 0).all(axis=1).any():
                return np.empty((0, 2), dtype=int)
        taken = np.zeros(self.padded.shape[1:], dtype=bool)
        inside = taken[self.edge : -self.edge, self.edge : -self.edge]
        np.greater(self.masks[board], FREE, out=inside)
        close_frame(inside, frame)
        blocked = np.zeros_like(inside)
        for y, x in offsets + self.edge:
            blocked |= taken[y : y + self.side, x : x + self.side]
        return np.argwhere(~blocked)

    def start(self, contours: Contours, row: int, tail: np.ndarray, degree: int) -> bool:
        """Start a contour; return False if its dash, or the point before it, would be outside."""
        angle = math.radians(degree - 180)
        head = moved(tail, np.array(angle), self.pen.length)
        pivot = moved(head, np.array(angle + math.pi), self.pen.length + self.pen.margin)
        if not self._inside(np.stack([tail, head, pivot])).all():
            return False
        contours.dashes[row, 0] = (*tail, degree)
        contours.pivots[row], contours.angles[row] = pivot, angle
        return True

    def extend(
        self, boards: np.ndarray, contours: Contours, rows: np.ndarray, continuity: float, rng: np.random.Generator
    ) -> np.ndarray:
        """Add a dash to the contours ``rows`` [n] in the images ``boards`` [n]; return which of them had room [n].

        The next dash ends at a pixel of the circle around the end of the last gap, with a probability of
        cos^2(min(continuity x turn, 90 degrees)) times the free area there; it must not overlap occupied pixels. The
        previous dash is then marked as occupied.
        """
        count = contours.count
        pivots = moved(contours.pivots[rows], contours.angles[rows], self.pen.length + 2 * self.pen.margin)
        ends = pivots[:, None] + self.pen.steps  # [n, k, 2]
        turn = np.abs(self.pen.angles - contours.angles[rows, None])
        turn = np.minimum(np.minimum(turn, 2 * math.pi - turn) * continuity, math.pi / 2)
        inside = self._inside(ends)
        weights = np.where(inside, np.cos(turn) ** 2 * (1.0 - self._near(boards, ends, inside)), 0.0)
        total = weights.sum(axis=1)
        shares = np.cumsum(weights, axis=1)
        extended = np.zeros(len(rows), dtype=bool)
        for _ in range(TRIES):
            pending = np.flatnonzero(~extended & (total >= 1e-4))
            chosen = (shares[pending] > rng.random((len(pending), 1)) * total[pending, None]).argmax(axis=1)
            dashes = np.column_stack([ends[pending, chosen], 360 + chosen])
            taken, y, x = self._patches(dashes)
            fits = (self.padded[boards[pending, None, None], y, x] + taken).max(axis=(1, 2)) < CROSSED
            done = pending[fits]
            self.take(boards[done], contours.dashes[rows[done], count - 1])
            contours.dashes[rows[done], count] = dashes[fits]
            contours.pivots[rows[done]], contours.angles[rows[done]] = pivots[done], self.pen.angles[chosen[fits]]
            extended[done] = True
        return extended

    def _near(self, boards: np.ndarray, ends: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Return the maximum mask value within a margin of each end [n, k]; 0 outside."""
        near = np.zeros(inside.shape, dtype=np.float32)
        row, k = inside.nonzero()
        around = ends[row, k][:, None] + self.pen.ball + self.edge
        near[row, k] = self.padded[boards[row, None], around[..., 0], around[..., 1]].max(axis=1)
        return near

    def drawn(self, dashes: np.ndarray) -> np.ndarray:
        """Draw dashes [n, 3] with a contrast of 1."""
        image = np.zeros(self.padded.shape[1:], dtype=np.float32)
        size = 2 * self.pen.reach + 1
        corner = self.edge - self.pen.reach
        for y, x, direction in dashes + np.array([corner, corner, 0]):
            patch = image[y : y + size, x : x + size]
            np.maximum(patch, self.pen.pictures[direction], out=patch)
        return image[self.edge : -self.edge, self.edge : -self.edge]


def close_frame(taken: np.ndarray, width: int) -> None:
    """Mark a frame of images [..., side, side] as occupied."""
    taken[..., :width, :] = taken[..., -width:, :] = 1
    taken[..., :width] = taken[..., -width:] = 1
