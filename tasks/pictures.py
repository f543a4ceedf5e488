"""Pictures of examples and predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def draw_grid(
    columns: Sequence[tuple[str, Sequence[Any]]],
    draw: Callable[[Any, Any], object],
    path: Path,
    *,
    size: tuple[float, float] = (2.2, 2.2),
    projection: str | None = None,
) -> None:
    """Draw one row per example and one column per kind, such as input, prediction and truth.

    Args:
        columns: title and items of each column.
        draw: draws an item on the axes of its panel.
        size: width and height of a panel, in inches.
        projection: projection of the axes, such as ``3d``.
    """
    from matplotlib.figure import Figure

    rows = len(columns[0][1])
    figure = Figure(figsize=(size[0] * len(columns), size[1] * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, len(columns), squeeze=False, subplot_kw={"projection": projection})
    for column, (title, items) in zip(axes.T, columns, strict=True):
        column[0].set_title(title, fontsize="medium")
        for panel, item in zip(column, items, strict=True):
            draw(panel, item)
    figure.savefig(path, dpi=110)


def draw_image(axes: Any, image: Any) -> None:
    """Draw an image [H, W] or [H, W, 3], uint8."""
    axes.imshow(image, interpolation="nearest", cmap="gray", vmin=0, vmax=255)
    axes.set_axis_off()
