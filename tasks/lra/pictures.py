"""Predictions as text and images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from tasks.lra.rows import NOTHING, Batch

SHOWN = 400
"""Symbols shown per sequence."""


def write_answers(batch: Batch, guesses: Tensor, words: Sequence[str] | None, path: Path) -> None:
    """Write the start of each sequence and [truth|prediction]; without ``words``, symbols are bytes of text."""
    text = []
    for row, guess in enumerate(guesses.tolist()):
        for ids in batch.texts:
            symbols = [i - 1 for i in ids[row].tolist() if i != NOTHING]
            shown = symbols[:SHOWN]
            begin = bytes(shown).decode(errors="replace") if words is None else " ".join(words[i] for i in shown)
            text.append(" ".join(begin.split()) + (" ..." if len(symbols) > SHOWN else ""))
        text.append(f"[{int(batch.labels[row])}|{guess}]\n")
    path.write_text("\n".join(text))


def draw_images(batch: Batch, guesses: Tensor, side: int, path: Path) -> None:
    """Plot each image with its label and prediction."""
    images = (batch.texts[0] - 1).clamp(min=0).view(-1, side, side).cpu().numpy()
    figure = Figure(figsize=(1.5 * len(images), 1.9), layout="constrained")
    for axes, image, label, guess in zip(
        figure.subplots(1, len(images), squeeze=False)[0], images, batch.labels.tolist(), guesses.tolist(), strict=True
    ):
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        axes.set_title(f"{label} | {guess}")
        axes.set_axis_off()
    figure.suptitle("truth | prediction", fontsize="small")
    figure.savefig(path)
