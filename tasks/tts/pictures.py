"""Spectrograms of predictions and targets, and waves to listen to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.tts.audio import RATE


def draw_spectrograms(
    names: Sequence[str], spoken: Sequence[np.ndarray], targets: Sequence[np.ndarray], path: Path
) -> None:
    """Plot one row per utterance: prediction and target, log-mel frames [F, 80]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.4 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 2, squeeze=False)
    for row, name, *pair in zip(axes, names, spoken, targets, strict=True):
        low, high = pair[1].min(), pair[1].max()
        for axis, kind, mel in zip(row, ("predicted", "target"), pair, strict=True):
            axis.imshow(mel.T, origin="lower", aspect="auto", vmin=low, vmax=high, cmap="magma")
            axis.set_title(f"{name}, {kind}", fontsize="medium")
            axis.set_xlabel("frame")
            axis.set_ylabel("mel bin")
    figure.savefig(path, dpi=110)


def write_waves(names: Sequence[str], waves: Sequence[np.ndarray], folder: Path) -> None:
    """Write <name>.wav of each wave."""
    import soundfile

    for name, wave in zip(names, waves, strict=True):
        soundfile.write(folder / f"{name}.wav", wave, RATE)
