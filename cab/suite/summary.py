"""Text summary of the suite's results: the gain from attention, and the share that each method retains."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from cab.suite.cells import CellScores

NAMES = {"none": "without attention", "local": "with a window (local)"}


def summarize_suite(scores: Iterable[CellScores]) -> list[str]:
    """Return one paragraph per cell that has results with and without attention, best method first."""
    return [_paragraph(cell) for cell in scores if {"vanilla", "none"} <= cell.scores.keys()]


def _paragraph(cell: CellScores) -> str:
    means = {name: mean(scores) for name, scores in cell.scores.items()}
    best, worst, where = means["vanilla"], means["none"], cell.cell
    way = "lower" if cell.sign < 0 else "higher"
    lines = [f"{where.task}, {where.backbone}, pattern {where.pattern}: {where.metric} ({way} is better)"]
    for name in sorted(means, key=lambda name: -means[name]):
        line = f"  {NAMES.get(name, name)}: {cell.value(means[name]):.4g}"
        if name not in ("vanilla", "none") and best > worst:
            line += f", {(means[name] - worst) / (best - worst):.0%} of vanilla's gain"
        lines.append(line)
    if cell.memory_bounded_baseline is not None:
        bound = cell.value(cell.memory_bounded_baseline)
        lines.append(f"  {where.memory_bounded_baseline} (bounded-memory baseline): {bound:.4g}")
    elif cell.trivial_baseline is not None:
        lines.append(f"  {where.trivial_baseline} (trivial baseline): {cell.value(cell.trivial_baseline):.4g}")
    return "\n".join(lines)
