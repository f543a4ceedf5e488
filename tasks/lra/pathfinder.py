"""Pathfinder: are two discs on the same dashed contour? After Linsley et al. (2018).

The geometry follows the generator of Long Range Arena's images (drewlinsley/pathfinder, ``snakes2.py`` at ab9c130, with
LRA's settings), in NumPy and with a seed. LRA's own images had no seed and cannot be reproduced.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cab import UserError
from cab.files.cache import checksums, digest_of
from cab.files.disk import listed, visible_files
from cab.files.text_table import counted
from tasks.files import SPLITS, read_image, read_lines, warn_of_left_out
from tasks.lra.contours import FREE, TRIES, Boards, Contours, disc, pen
from tasks.lra.rows import Counts, Example, Source, Splits, shuffled

log = logging.getLogger(__name__)

ATTEMPTS = 256
"""Pairs of contours started at once; few long ones are completed."""
HOPELESS = 200
"""Number of such attempts without success before an error is raised."""
IMAGES_AT_ONCE = 128
"""Images generated at once."""


@dataclass(frozen=True)
class Geometry:
    """Sizes in pixels.

    Attributes:
        length, thickness: size of a dash.
        margins: distances between dashes; each image uses one.
        segments, distractor_segments: dashes per target and per distractor.
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

    A pair without room is discarded; UserError if no pair seems to fit.
    """
    barren = 0
    while barren < HOPELESS:
        barren += 1
        boards = Boards(ATTEMPTS, geometry.side, pen(geometry.length, geometry.thickness, margin))
        one, other = (Contours.empty(ATTEMPTS, geometry.segments) for _ in range(2))
        begun = (
            _seed(boards, one, row, geometry, rng) and _seed_beside(boards, one, other, row, geometry, rng)
            for row in range(ATTEMPTS)
        )
        alive = np.flatnonzero([*begun])
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
    pending = np.arange(len(pictures))
    for _ in range(TRIES + 2):
        contours = Contours.empty(len(pictures), geometry.distractor_segments)
        masks = boards.masks[pending].copy()
        alive = np.array([row for row in pending.tolist() if _seed_anywhere(boards, contours, row, rng)], dtype=int)
        for count in range(1, geometry.distractor_segments):
            contours.count = count
            alive = alive[boards.extend(alive, contours, alive, geometry.continuity, rng)]
        boards.take(alive, contours.dashes[alive, -1])
        for row in alive:
            picture = geometry.distractor_contrast * boards.drawn(contours.dashes[row])
            np.maximum(pictures[row], picture, out=pictures[row])
        failed = ~np.isin(pending, alive)
        pending = pending[failed]
        boards.masks[pending] = masks[failed]


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


def generated_paths(geometry: Geometry, counts: Counts) -> Source:
    """Return images of :func:`paint`."""

    def generate(rng: np.random.Generator, count: int) -> Iterator[Example]:
        for start in range(0, count, IMAGES_AT_ONCE):
            images, labels = paint(rng, geometry, min(IMAGES_AT_ONCE, count - start))
            yield from (Example((image.tobytes(),), int(label)) for image, label in zip(images, labels, strict=True))

    return Source.generated("pathfinder 1", counts, generate, **asdict(geometry))


LISTS_FOLDER = "curv_contour_length_14/metadata"
"""The hardest level, for which results are published."""
LABEL_FIELD = 3
"""Index of the label field; folder, file and number precede it, the settings follow."""


def path_files(folder: Path, side: int) -> Source:
    """Read ``imgs/B/sample_N.png`` and ``metadata/B.npy`` (a text file), split into 80, 10 and 10 percent."""
    lists = sorted(visible_files(folder / LISTS_FOLDER, "*.npy"), key=lambda path: (len(path.stem), path.stem))
    if not lists:
        raise UserError(f"no lists of images (*.npy) in {folder / LISTS_FOLDER}")

    checksums(lists)
    entries = [entry for path in lists for entry in _entries(path, folder)]
    images = dict[Path, str]()
    for image, _, origin in entries:
        if image in images:
            raise UserError(f"{origin}: {image} is that of {images[image]} again")
        images[image] = origin
    warn_of_left_out(folder / Path(LISTS_FOLDER).parent / "imgs", images.keys())
    if empty := [str(image) for image, _, _ in entries if not image.stat().st_size]:
        log.warning("left out %s: %s", counted(len(empty), "empty image"), listed(empty))
    entries = [entry for entry in entries if entry[0].stat().st_size]
    if not entries:
        raise UserError(f"no images in the lists of {folder / LISTS_FOLDER}")

    def read() -> Splits:
        order = [entries[i] for i in shuffled(len(entries))]
        bounds = (0, int(0.8 * len(order)), int(0.9 * len(order)), len(order))
        for split, start, stop in zip(SPLITS, bounds, bounds[1:], strict=False):
            rows = order[start:stop]
            yield split, (Example((_read_image(path, side, origin),), label) for path, label, origin in rows)

    files = digest_of(checksums([*lists, *(image for image, _, _ in entries)]))
    return Source({"reader": "paths 2", "side": side, "files": files}, read)


def _entries(path: Path, folder: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield the image, the label, and file and line of each entry of a list."""
    for number, line in read_lines(path):
        origin, fields = f"{path}, line {number}", line.split(" ")
        if len(fields) <= LABEL_FIELD or fields[LABEL_FIELD] not in ("0", "1"):
            raise UserError(f"{origin}: expected a folder, a file, a number and a label, 0 or 1")
        image = folder / Path(LISTS_FOLDER).parent / fields[0] / fields[1]
        if not image.is_file():
            raise UserError(f"{origin}: {image} is missing")
        yield image, int(fields[LABEL_FIELD]), origin


def _read_image(path: Path, side: int, origin: str) -> bytes:
    image = read_image(path, "L")
    if image.shape != (side, side):
        raise UserError(f"{path} ({origin}) has {image.shape[1]} x {image.shape[0]} pixels, not {side} x {side}")
    return image.tobytes()
