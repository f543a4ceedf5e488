"""Symmetric furniture made of boxes: hidden parts follow from the visible side."""

from __future__ import annotations

import numpy as np

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
