"""Low resolution, sampled images and truth in columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np


def draw_faces(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Plot one row per image and one column per kind; each column is [N, H, W, 3] uint8."""
    from matplotlib.figure import Figure

    count = len(next(iter(columns.values())))
    figure = Figure(figsize=(2.2 * len(columns), 2.2 * count + 0.3), layout="constrained")
    axes = figure.subplots(count, len(columns), squeeze=False)
    for j, (name, images) in enumerate(columns.items()):
        axes[0, j].set_title(name, fontsize="medium")
        for i, image in enumerate(images):
            axes[i, j].imshow(image, interpolation="nearest")
            axes[i, j].axis("off")
    figure.savefig(path, dpi=110)
