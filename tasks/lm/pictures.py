"""Generated samples, and perplexity by context length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path


def draw_contexts(contexts: Mapping[int, float], trained: int, title: str, path: Path) -> None:
    """Plot perplexity by context length and mark the training length; failed lengths are omitted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    points = [(length, ppl) for length, ppl in sorted(contexts.items()) if math.isfinite(ppl)]
    if points:
        axis.plot(*zip(*points, strict=True), marker="o")
    axis.axvline(trained, color="0.7", linestyle="--", label="training length")
    axis.set_xscale("log", base=2)
    axis.set_xlabel("context length (tokens)")
    axis.set_ylabel("perplexity")
    axis.set_title(title)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def write_samples(samples: Sequence[tuple[str, str]], path: Path) -> None:
    """Write prompts of the test part with the network's continuations."""
    path.write_text("\n\n".join(f"--- prompt\n{prompt}\n--- continued\n{text}" for prompt, text in samples) + "\n")
