"""Official images of Pathfinder and Path-X: PNG files, and text files with their labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from cab import UserError
from tasks.lra.rows import Example, shuffled, stamp

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
