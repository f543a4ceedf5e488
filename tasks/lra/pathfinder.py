"""Pathfinder: are two discs on the same dashed contour? After Linsley et al. (2018).

The geometry follows the generator of Long Range Arena's images (drewlinsley/pathfinder, ``snakes2.py`` at ab9c130, with
LRA's settings), in NumPy and with a seed. LRA's own images had no seed and cannot be reproduced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from cab import UserError
from tasks.lra.contours import FREE, TRIES, Boards, Contours, disc, pen
from tasks.lra.rows import PARTS, Example, shuffled, stamp

ATTEMPTS = 256
"""Pairs of contours started at once; few long ones are completed."""
HOPELESS = 200
"""Number of such attempts without success before an error is raised."""
BLOCK = 128
"""Images generated at once."""


@dataclass(frozen=True)
class Geometry:
    """Sizes in pixels.

    Attributes:
        side: side of the image.
        length, thickness: size of a dash.
        margins: distances between dashes; each image uses one.
        segments, distractor_segments: dashes per target and per distractor.
        distractors: number of distractors attempted.
        seed_distance: distance between the first ends of both targets.
        continuity: preference for straight continuation.
        contrast, distractor_contrast: brightness of targets and distractors; discs have 1.
        disc_radius: radius of the discs.
    """

    side: int = 32
    length: int = 2
    thickness: float = 0.5
    margins: tuple[int, ...] = (1,)
    segments: int = 14
    distractor_segments: int = 4
    distractors: int = 5
    seed_distance: int = 7
    continuity: float = 1.0
    contrast: float = 1.5
    distractor_contrast: float = 2.0
    disc_radius: float = 1.5


PATHFINDER = Geometry()
PATHX = Geometry(128, 5, 1.5, (2, 3), 14, 4, 8, 20, 1.8, 0.9, 0.9, 3.0)


def paint(rng: np.random.Generator, geometry: Geometry, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [count, side, side] uint8 and labels [count]: 1 if both discs are on one contour."""
    labels, margins = rng.integers(2, size=count), rng.choice(geometry.margins, size=count)
    images = np.zeros((count, geometry.side, geometry.side), dtype=np.uint8)
    for margin in geometry.margins:
        rows = np.flatnonzero(margins == margin)
        boards = Boards(len(rows), geometry.side, pen(geometry.length, geometry.thickness, margin))
        pictures = []
        for board, (one, other, mask) in zip(range(len(rows)), targets(rng, geometry, margin), strict=False):
            boards.masks[board] = mask
            picture = geometry.contrast * boards.drawn(np.concatenate([one, other]))
            first = int(rng.integers(2))
            second = first if labels[rows[board]] else 1 - first
            for y, x, _ in ((one, other)[first][0], (one, other)[second][-1]):
                np.maximum(picture, disc(geometry.side, int(y), int(x), geometry.disc_radius), out=picture)
            pictures.append(picture)
        for _ in range(geometry.distractors):
            _add_distractors(boards, pictures, geometry, rng)
        for row, picture in zip(rows, pictures, strict=True):
            images[row] = picture / picture.max() * 255 + 0.5
    return images, labels


def targets(
    rng: np.random.Generator, geometry: Geometry, margin: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Generate pairs of contours grown alternately, each as dashes [segments, 3], with their common mask, indefinitely.

    A pair without room is discarded.

    Raises:
        ValueError: no pair seems to fit.
    """
    barren = 0
    while barren < HOPELESS:
        barren += 1
        boards = Boards(ATTEMPTS, geometry.side, pen(geometry.length, geometry.thickness, margin))
        one, other = (Contours.empty(ATTEMPTS, geometry.segments) for _ in range(2))
        begun = [
            row for row in range(ATTEMPTS) if _seed(boards, one, row, geometry, rng) and _seed_beside(
                boards, one, other, row, geometry, rng
            )
        ]  # fmt: skip
        alive = np.array(begun, dtype=int)
        for count in range(1, geometry.segments):
            for contours in (one, other):
                contours.count = count
                alive = alive[boards.extend(alive, contours, alive, geometry.continuity, rng)]
        boards.take(alive, other.dashes[alive, -1])  # without the last dash of the other contour, as in the original
        for row in alive:
            barren = 0
            yield one.dashes[row], other.dashes[row], boards.masks[row]
    raise UserError(
        f"two contours of {geometry.segments} dashes do not fit into {geometry.side} x {geometry.side} pixels"
    )


@functools.cache
def _free_middle(geometry: Geometry, margin: int, degree: int) -> np.ndarray:
    """Return the pixels of an empty image where the first dash may start."""
    empty = Boards(1, geometry.side, pen(geometry.length, geometry.thickness, margin))
    return empty.free_tails(0, degree, 2 * geometry.seed_distance)


def _seed(boards: Boards, contours: Contours, row: int, geometry: Geometry, rng: np.random.Generator) -> bool:
    """Start a contour in the middle of an empty image."""
    for _ in range(TRIES):
        degree = int(rng.integers(360))
        free = _free_middle(geometry, boards.pen.margin, degree)
        if not len(free):
            return False
        if boards.start(contours, row, free[rng.integers(len(free))], degree):
            return True
    return False


def _seed_beside(
    boards: Boards, one: Contours, other: Contours, row: int, geometry: Geometry, rng: np.random.Generator
) -> bool:
    """Start the other contour at ``seed_distance`` from the first."""
    for _ in range(TRIES):
        degree, around = int(rng.integers(360)), math.radians(int(rng.integers(360)))
        step = geometry.seed_distance * np.array([math.sin(around), math.cos(around)])
        if boards.start(other, row, np.rint(one.dashes[row, 0, :2] + step).astype(int), degree):
            return True
    return False


def _add_distractors(boards: Boards, pictures: list[np.ndarray], geometry: Geometry, rng: np.random.Generator) -> None:
    """Add a distractor to each image if one of five attempts finds room."""
    left = np.arange(len(pictures))
    for _ in range(TRIES + 2):
        contours = Contours.empty(len(pictures), geometry.distractor_segments)
        before = boards.masks[left].copy()
        alive = np.array([row for row in left.tolist() if _seed_anywhere(boards, contours, row, rng)], dtype=int)
        for count in range(1, geometry.distractor_segments):
            contours.count = count
            alive = alive[boards.extend(alive, contours, alive, geometry.continuity, rng)]
        boards.take(alive, contours.dashes[alive, -1])
        for row in alive:
            picture = geometry.distractor_contrast * boards.drawn(contours.dashes[row])
            np.maximum(pictures[row], picture, out=pictures[row])
        failed = ~np.isin(left, alive)
        left = left[failed]
        boards.masks[left] = before[failed]


def _seed_anywhere(boards: Boards, contours: Contours, row: int, rng: np.random.Generator) -> bool:
    """Start a contour at a free pixel, unless the image is nearly full."""
    if (boards.masks[row] <= FREE).mean() < 0.01:
        return False
    for _ in range(TRIES):
        degree = int(rng.integers(360))
        free = boards.free_tails(row, degree, 1)
        if not len(free):
            return False
        if boards.start(contours, row, free[rng.integers(len(free))], degree):
            return True
    return False


@dataclass(frozen=True)
class GeneratedPaths:
    """``counts`` images per part; the random numbers depend on the part only."""

    geometry: Geometry
    counts: tuple[int, int, int]

    @property
    def key(self) -> dict[str, Any]:
        return {"generator": "pathfinder 1", **asdict(self.geometry), "counts": self.counts}

    def examples(self) -> Iterable[tuple[str, Iterable[Example]]]:
        for number, part in enumerate(PARTS):
            yield part, self._images(number)

    def _images(self, part: int) -> Iterator[Example]:
        rng = np.random.default_rng(part)
        for start in range(0, self.counts[part], BLOCK):
            images, labels = paint(rng, self.geometry, min(BLOCK, self.counts[part] - start))
            for image, label in zip(images, labels, strict=True):
                yield Example((image.tobytes(),), int(label))


INSIDE = "curv_contour_length_14/metadata"
"""The hardest level, for which results are published."""
LABEL = 3
"""Index of the label field; folder, file and number precede it, the settings follow."""


class Named(NamedTuple):
    """An image, its label, and the file and line that name it."""

    path: Path
    label: int
    origin: str


@dataclass(frozen=True)
class PathFiles:
    """``imgs/B/sample_N.png`` and ``metadata/B.npy`` (a text file), split into 80, 10 and 10 percent.

    Empty files, of which the release contains one, are skipped.
    """

    folder: Path
    side: int

    @property
    def key(self) -> dict[str, Any]:
        return {"reader": "paths 1", "side": self.side, "files": stamp(self._lists())}

    def _lists(self) -> list[Path]:
        lists = sorted((self.folder / INSIDE).glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
        if not lists:
            raise UserError(f"no lists of images (*.npy) in {self.folder / INSIDE}")
        return lists

    def examples(self) -> Iterable[tuple[str, Iterable[Example]]]:
        named = [each for path in self._lists() for each in self.read_list(path)]
        order = [named[i] for i in shuffled(len(named))]
        first, second = int(0.8 * len(order)), int(0.9 * len(order))
        for part, rows in (("train", order[:first]), ("validation", order[first:second]), ("test", order[second:])):
            yield part, (Example((self.read_image(each).tobytes(),), each.label) for each in rows)

    def read_list(self, path: Path) -> list[Named]:
        """Read a list of images; raise UserError with file and line if it is invalid."""
        named = []
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            fields = line.split(" ")
            if len(fields) <= LABEL or fields[LABEL] not in ("0", "1"):
                raise UserError(f"{path}, line {number}: expected a folder, a file, a number and a label, 0 or 1")
            image = self.folder / Path(INSIDE).parent / fields[0] / fields[1]
            if not image.is_file():
                raise UserError(f"{path}, line {number}: {image} is missing")
            if image.stat().st_size:
                named.append(Named(image, int(fields[LABEL]), f"{path}, line {number}"))
        return named

    def read_image(self, named: Named) -> np.ndarray:
        """Return the pixels [side, side] uint8."""
        try:
            with Image.open(named.path) as image:
                image.load()
                if image.mode != "L" or image.size != (self.side, self.side):
                    size = f"{image.size[0]} x {image.size[1]} pixels of mode {image.mode}"
                    raise UserError(
                        f"{named.path} ({named.origin}) has {size}, not {self.side} x {self.side} of mode L"
                    )
                return np.asarray(image)
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise UserError(
                f"{named.path} ({named.origin}) is not an image that can be read ({type(error).__name__})"
            ) from None
