"""What a language model says, and how its perplexity depends on the context."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path


def draw_contexts(contexts: Mapping[int, float], trained: int, title: str, path: Path) -> None:
    """Perplexity against context length; the length of training is marked, impossible lengths are left out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    points = [(length, ppl) for length, ppl in sorted(contexts.items()) if math.isfinite(ppl)]
    if points:
        axis.plot(*zip(*points, strict=True), marker="o")
    axis.axvline(trained, color="0.7", linestyle="--", label="trained at this length")
    axis.set_xscale("log", base=2)
    axis.set_xlabel("context length, tokens")
    axis.set_ylabel("perplexity")
    axis.set_title(title)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def write_samples(samples: Sequence[tuple[str, str]], path: Path) -> None:
    """Prompts of the test part and what the network writes after them."""
    path.write_text("\n\n".join(f"--- prompt\n{prompt}\n--- continued\n{text}" for prompt, text in samples) + "\n")
