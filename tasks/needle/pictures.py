"""Retrieval accuracy by depth and length, and sample texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from tasks.needle.haystacks import Haystack, words


def draw_grid(grid: Mapping[int, Sequence[float]], trained: int, path: Path) -> None:
    """Plot accuracy by length (columns) and depth (rows), with the training length marked."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axis = figure.subplots()
    values = np.array(list(grid.values())).T
    axis.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value < 0.6 else "black")
    axis.set_xticks(range(len(grid)), [f"{length}\n(trained)" if length == trained else f"{length}" for length in grid])
    axis.set_yticks(range(len(values)), [f"{100 * row // len(values)}%" for row in range(len(values))])
    axis.set_xlabel("length, tokens")
    axis.set_ylabel("depth of the fact, from")
    axis.set_title("Fraction of correct answers")
    figure.savefig(path, dpi=110)


def write_answers(batch: Haystack, guesses: Tensor, path: Path) -> None:
    """Write texts with the network's answers as [truth|prediction]."""
    lines = []
    for row, depths, predicted in zip(batch.tokens.tolist(), batch.depths.tolist(), guesses.tolist(), strict=True):
        hay = len(row) - 2 * batch.num_queries
        lines.append(words(row[:hay]))
        for number, (depth, guess) in enumerate(zip(depths, predicted, strict=True)):
            name, truth = row[hay + 2 * number : hay + 2 * number + 2]
            lines.append(f"  {words([name])} [{words([truth])}|{words([guess])}] at {depth:.0%}")
    path.write_text("\n".join(lines) + "\n")
