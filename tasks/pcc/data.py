"""Partial and complete point clouds: PCN's folders, or generated shapes."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, TypeAdapter
from torch import Tensor
from torch.utils.data import Dataset

from cab import UserError
from cab.data.sources import fetch_hint
from cab.errors import first_line
from cab.files.cache import checksums, prepared, progress, read_bytes
from cab.files.disk import listed, visible_files
from cab.files.numbers import is_finite
from cab.files.text_table import counted
from tasks.files import VAL_SPLITS, find_data, find_file, read_number, warn_of_left_out

TRAINING_VIEWS = 8
ALL_VIEWS = range(TRAINING_VIEWS)


class Clouds:
    """Point clouds of different sizes, concatenated in one array: cloud ``i`` is [n, 3]."""

    def __init__(self, points: np.ndarray, bounds: np.ndarray) -> None:
        self.points, self.bounds = points, bounds

    @classmethod
    def of(cls, clouds: Sequence[np.ndarray]) -> Clouds:
        bounds = np.cumsum([0, *map(len, clouds)])
        return cls(np.concatenate(clouds).astype(np.float32), bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self.points[self.bounds[index] : self.bounds[index + 1]]))


class Shapes(Dataset[dict[str, Tensor]]):
    """Shapes with their partial views: ``partial`` [B, P, 3] and ``complete`` [B, C, 3].

    In training, the view, its points and a mirror image are chosen at random; otherwise the first view and a fixed
    choice of points are used. A view with too few points is padded with zeros, as published.
    """

    def __init__(
        self, partial: Clouds, complete: Clouds, *, views: int, partial_points: int, complete_points: int, random: bool
    ) -> None:
        self.partial, self.complete, self.views = partial, complete, views
        self.partial_points, self.complete_points, self.random = partial_points, complete_points, random

    def __len__(self) -> int:
        return len(self.complete)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        pairs = [self._pair(index) for index in indices]
        partial, complete = (torch.stack(clouds) for clouds in zip(*pairs, strict=True))
        return {"partial": partial, "complete": complete}

    def _pair(self, index: int) -> tuple[Tensor, Tensor]:
        generator = None if self.random else torch.Generator().manual_seed(index)
        view = int(torch.randint(self.views, ())) if self.random else 0
        partial = subset(self.partial[index * self.views + view], self.partial_points, generator)
        complete = subset(self.complete[index], self.complete_points, generator)
        missing = self.partial_points - len(partial)
        partial = torch.nn.functional.pad(partial, (0, 0, 0, missing))
        if len(complete) < self.complete_points:
            complete = complete.repeat(-(-self.complete_points // len(complete)), 1)[: self.complete_points]
        if self.random:
            signs = torch.where(torch.rand(3) < 0.5, -1.0, 1.0)
            signs[1] = 1.0  # the vertical axis is not mirrored
            partial, complete = partial * signs, complete * signs
        return partial, complete


def subset(points: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Choose ``count`` points at random, or all if there are fewer."""
    if len(points) <= count:
        return points
    return points[torch.randperm(len(points), generator=generator)[:count]]


def read_pcn(
    data_root: Path | None, list_file: str, split: str, *, views: int
) -> tuple[Clouds, Clouds, dict[str, Any], list[tuple[str, str]]]:
    """Read the partial and complete clouds of a split (train, val, test) of PCN.

    Also return an identifier, and the checksum and the file of each complete cloud.

    Args:
        list_file: the split list, ``PCN.json`` of the official release or one in its format; see
            :func:`tasks.files.find_file`.
        views: partial views per shape.

    Raises:
        UserError: the list or one of its shapes is missing or invalid.
    """
    folder = find_data("pcn", data_root, *VAL_SPLITS).parent
    path = find_file("task.list_file", list_file, folder)
    digest = checksums([path])[path.name]
    classes = _read_list(path)
    shapes_of = {part: [(x.taxonomy_id, name) for x in classes for name in getattr(x, part)] for part in VAL_SPLITS}
    names = shapes_of[split]
    if not names:
        others = " or ".join(f"task.sample_part={part}" for part, shapes in shapes_of.items() if shapes)
        hint = f"; to score a sample on the shapes of another one, set {others}" if others else ""
        raise UserError(f"{path} has no shapes in split '{split}'{hint}")
    if wrong := next((name for name in names if "/" in "".join(name) or not all(name)), None):
        raise UserError(f"{path}: split '{split}' lists {wrong}, which are not names of a folder and a file")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: split '{split}' lists {max(names, key=names.count)[1]} more than once")
    complete = [folder / split / "complete" / taxonomy / f"{name}.pcd" for taxonomy, name in names]
    views_of = [folder / split / "partial" / taxonomy / name for taxonomy, name in names]
    partial = [path / f"{view:02d}.pcd" for path in views_of for view in range(views)]
    unused = [] if views == TRAINING_VIEWS else [path / f"{view:02d}.pcd" for path in views_of for view in ALL_VIEWS]
    missing = [path for path in (*complete, *partial) if not path.is_file()]
    if missing:
        raise UserError(
            f"missing of the files that {list_file} names: {listed(map(str, missing), shown=1)}; "
            f"{fetch_hint('pcn', data_root)}, or name a list of your own with task.list_file"
        )
    warn_of_left_out(folder / split, [*complete, *partial, *unused])
    seen, whole, about, contents = read_clouds(folder, partial, complete)
    return seen, whole, {"list": digest, "part": split, **about}, contents


def read_clouds(
    folder: Path, partial: Sequence[Path], complete: Sequence[Path]
) -> tuple[Clouds, Clouds, dict[str, Any], list[tuple[str, str]]]:
    """Read partial and complete clouds below a folder, from the cache if available; see :func:`read_pcn`."""
    sums = checksums(complete)
    key = {"partial": checksums(partial), "complete": sums, "version": 1}

    def build(target: Path) -> None:
        for kind, files in (("partial", partial), ("complete", complete)):
            clouds = Clouds.of([read_cloud(path) for path in progress(files, f"reading {kind} clouds")])
            np.save(target / f"{kind}.npy", clouds.points)
            np.save(target / f"{kind}-bounds.npy", clouds.bounds)

    ready = prepared("pcc", {**key, "names": [str(path.relative_to(folder)) for path in partial]}, build)
    clouds = [
        Clouds(np.load(ready / f"{kind}.npy", mmap_mode="r"), np.load(ready / f"{kind}-bounds.npy"))
        for kind in ("partial", "complete")
    ]
    contents = zip(sums.values(), map(str, complete), strict=True)
    return clouds[0], clouds[1], {"shapes": len(complete), "clouds": ready.name}, list(contents)


def list_clouds(folder: Path) -> list[str]:
    """Return the names of the clouds in ``complete`` of a user's folder, each of which needs one in ``partial``."""
    complete = [path for path in visible_files(folder / "complete", "**/*") if path.suffix in (".pcd", ".npy")]
    names = [str(path.relative_to(folder / "complete")) for path in complete]
    partial = [folder / "partial" / name for name in names]
    if missing := [path for path in partial if not path.is_file()]:
        raise UserError(f"{missing[0]} is missing: every cloud in complete needs one in partial, of the same name")
    warn_of_left_out(folder, [*complete, *partial])
    return names


class _Class(BaseModel):
    """The names of the shapes of a class, in each split."""

    taxonomy_id: str
    train: Sequence[str] = ()
    val: Sequence[str] = ()
    test: Sequence[str] = ()


def _read_list(path: Path) -> list[_Class]:
    try:
        return TypeAdapter(list[_Class]).validate_json(read_bytes(path))
    except ValueError as error:
        form = "a list of {taxonomy_id, train, val, test} in JSON"
        raise UserError(f"{path} is not a split list, {form}: {first_line(error)}") from None


FORMAT = {"FIELDS": "x y z", "SIZE": "4 4 4", "TYPE": "F F F", "COUNT": "1 1 1"}
"""Header of the supported files, of version 0.7 of the format."""


def read_cloud(path: Path) -> np.ndarray:
    """Read the points of a .npy file, [N, 3] of any numbers, or of a .pcd file with :func:`read_pcd`."""
    if path.suffix != ".npy":
        return read_pcd(path)
    try:
        points = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False).astype(np.float32)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is not an array of numbers: {first_line(error)}") from None
    if points.ndim != 2 or points.shape[1] != 3 or not len(points) or not np.isfinite(points).all():
        raise UserError(f"{path} has shape {points.shape}; expected finite points x y z, [N, 3]")
    return points


def read_pcd(path: Path) -> np.ndarray:
    """Read the points of a file, [N, 3] float32; UserError if it is not a plain .pcd of finite points x y z."""
    content = read_bytes(path)
    header, start, lines = _header(path, content)
    for name, expected in FORMAT.items():
        if header.get(name, "").split() != expected.split():
            raise UserError(f"{path}: {name} must be {expected}, got '{header.get(name, '')}'")
    if header["DATA"] == "ascii":
        points, rest = _ascii(path, content[start:], lines), 0
    elif header["DATA"] == "binary":
        rows, rest = divmod(len(content) - start, 12)
        points = np.frombuffer(content, dtype="<f4", count=3 * rows, offset=start).reshape(rows, 3)
    else:
        raise UserError(f"{path}: DATA {header['DATA']} is not supported; convert it to ascii or binary")
    count = header.get("POINTS", "none")
    if count != str(len(points)) or rest or not len(points):
        raise UserError(
            f"{path} has {counted(len(points), 'point')}, and its header gives {count}: it is truncated or damaged"
        )
    width, height = (header.get(name, "") for name in ("WIDTH", "HEIGHT"))
    if width.isdecimal() and height.isdecimal() and int(width) * int(height) != len(points):
        raise UserError(
            f"{path} has {counted(len(points), 'point')}, and its header gives WIDTH {width} and HEIGHT {height}"
        )
    broken = ~is_finite(points).all(axis=1)
    if broken.any():
        number = int(broken.argmax())
        place = f"line {lines + number + 1}" if header["DATA"] == "ascii" else f"point {number + 1}"
        raise UserError(f"{path}, {place}: the point is NaN or infinite: {points[number].tolist()}")
    return points


def _header(path: Path, content: bytes) -> tuple[dict[str, str], int, int]:
    """Return the header's entries, the offset of the data, and the number of header lines."""
    match = re.match(rb"(?:.*\n){0,20}?DATA .*\n", content)
    if match is None:
        raise UserError(f"{path} is not a .pcd file: no line 'DATA' in its header")
    lines = match[0].decode("ascii", "replace").splitlines()
    entries = (line.strip().partition(" ") for line in lines if not line.startswith("#"))
    return {name: value.strip() for name, _, value in entries}, match.end(), len(lines)


def _ascii(path: Path, content: bytes, lines: int) -> np.ndarray:
    points = []
    for number, row in enumerate(content.decode("ascii", "replace").rstrip().split("\n"), start=lines + 1):
        try:
            x, y, z = map(read_number, row.split())
        except ValueError:
            raise UserError(f"{path}, line {number}: expected three numbers, got '{row[:60]}'") from None
        points.append((x, y, z))
    with np.errstate(over="ignore"):  # too large numbers are infinite, and refused
        return np.array(points, dtype=np.float32)


Box = tuple[np.ndarray, np.ndarray]  # center and half sides


def generate_shape(number: int, *, points: int = 2048) -> tuple[np.ndarray, np.ndarray]:
    """Generate shape ``number`` deterministically: the visible points, and all [points, 3].

    A table, chair or lamp of random proportions with left-right symmetry; tables and lamps also have front-back
    symmetry. It is seen from one side: about half of its points, those nearest to a random horizontal direction. Hidden
    legs, wings and backs have the sizes of visible ones.
    """
    rng = np.random.default_rng([11, number])
    boxes = (table, chair, lamp)[number % 3](rng)
    areas = np.array([_area(half) for _, half in boxes])
    counts = rng.multinomial(points, areas / areas.sum())
    cloud = np.concatenate([_on_surface(box, count, rng) for box, count in zip(boxes, counts, strict=True)])
    angle = rng.uniform(0, 2 * np.pi)
    depth = cloud @ np.array([np.cos(angle), 0.0, np.sin(angle)])
    seen = cloud[depth > np.quantile(depth, rng.uniform(0.45, 0.55))]
    return seen.astype(np.float32), cloud.astype(np.float32)


def table(rng: np.random.Generator) -> list[Box]:
    """Draw a table of random proportions."""
    width, depth, height = rng.uniform([0.25, 0.15, 0.2], [0.45, 0.3, 0.4])
    leg = rng.uniform(0.015, 0.05)
    top = _box([0, height, 0], [width, 0.02, depth])
    x, z = width - leg, depth - leg
    return [top, *(_box([sx * x, 0, sz * z], [leg, height, leg]) for sx in (-1, 1) for sz in (-1, 1))]


def chair(rng: np.random.Generator) -> list[Box]:
    """Draw a chair of random proportions."""
    width, height, back = rng.uniform([0.15, 0.15, 0.15], [0.25, 0.3, 0.3])
    leg = rng.uniform(0.015, 0.04)
    x = width - leg
    parts = [_box([0, 0, 0], [width, 0.02, width]), _box([0, back, -width], [width, back, 0.02])]
    return parts + [_box([sx * x, -height, sz * x], [leg, height, leg]) for sx in (-1, 1) for sz in (-1, 1)]


def lamp(rng: np.random.Generator) -> list[Box]:
    """Draw a lamp of random proportions."""
    base, shade, height = rng.uniform([0.1, 0.08, 0.25], [0.2, 0.25, 0.4])
    tall = rng.uniform(0.05, 0.12)
    pole = _box([0, 0, 0], [0.02, height, 0.02])
    return [_box([0, -height, 0], [base, 0.02, base]), pole, _box([0, height, 0], [shade, tall, shade])]


def _box(center: list[float], half: list[float]) -> Box:
    return np.array(center, dtype=np.float64), np.array(half, dtype=np.float64)


def _area(half: np.ndarray) -> float:
    x, y, z = half
    return float(x * y + y * z + z * x)


def _on_surface(box: Box, count: int, rng: np.random.Generator) -> np.ndarray:
    center, half = box
    faces = np.array([half[1] * half[2], half[2] * half[0], half[0] * half[1]])
    points = rng.uniform(-half, half, size=(count, 3))
    axis = rng.choice(3, size=count, p=faces / faces.sum())
    points[np.arange(count), axis] = half[axis] * rng.choice([-1.0, 1.0], size=count)
    return center + points
