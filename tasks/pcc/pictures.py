"""Point clouds before and after completion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np


def draw_clouds(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Plot clouds [B, N, 3], one row per shape and one column per kind; the second axis points up."""
    from matplotlib.figure import Figure

    count = len(next(iter(columns.values())))
    figure = Figure(figsize=(3 * len(columns), 3 * count), layout="constrained")
    for i in range(count):
        for j, (name, clouds) in enumerate(columns.items()):
            axis = figure.add_subplot(count, len(columns), i * len(columns) + j + 1, projection="3d")
            x, y, z = clouds[i][np.abs(clouds[i]).sum(axis=1) > 0].T
            axis.scatter(x, z, y, s=1.0, c=y, cmap="viridis")
            axis.set_aspect("equal")
            axis.set_axis_off()
            if i == 0:
                axis.set_title(name)
    figure.savefig(path, dpi=110)
