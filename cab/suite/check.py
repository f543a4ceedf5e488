"""Does the suite measure attention? What each of its cells must show before its scores are worth a rank."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cab.records.results import MINI_DIR, whole_records
from cab.suite.cells import CellScores, collect

LEAST_DEVIATIONS = 10.0
"""Between no attention and vanilla, in pooled standard deviations of their seeds."""
LEAST_WAY = 0.2
"""Of the way from the trivial answer to the best attention that removing attention must cost."""
LEAST_RESOLVED = 0.5
"""Of the pairs of attentions, resolved at 95%."""
MOST_SEED_SPREAD = 0.1
"""From seed to seed, as a part of the spread between attentions."""
WINDOW_DEVIATIONS = 5.0
"""That vanilla must be ahead of a bounded attention to beat it clearly."""
WINDOWED = "local"
BOUNDED_STATES = ("linear", "cosformer", "performer", "abc", "s4d")
"""Attentions that decode from a state of constant size."""
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Verdict:
    """What a cell shows, and why it does not measure attention, if so.

    Attributes:
        deviations: between none and vanilla, pooled.
        way: what removing attention costs, as a part of the way from trivial to best.
        resolved: part of the pairs of attentions whose order is resolved.
        seed_spread: pooled deviation of seeds over the deviation between attentions.
        behind: how many deviations each bounded attention is behind vanilla.
        failures: one line each; none for a cell that measures attention.
    """

    cell: str
    attentions: int
    seeds: int
    deviations: float | None
    way: float | None
    resolved: float | None
    seed_spread: float | None
    behind: Mapping[str, float]
    failures: tuple[str, ...]


def check_cell(scores: CellScores) -> Verdict:
    """The verdict on one cell."""
    known = {name: values for name, values in scores.scores.items() if len(values) >= LEAST_SEEDS}
    seeds = min((len(values) for values in known.values()), default=0)
    if not {"none", "vanilla"} <= known.keys():
        missing = f"no {LEAST_SEEDS} seeds of both none and vanilla"
        return Verdict(str(scores.cell), len(known), seeds, None, None, None, None, {}, (missing,))
    means = {name: statistics.fmean(values) for name, values in known.items()}
    deviations = distance(known["vanilla"], known["none"])
    best = max(means.values())
    trivial_baseline = scores.trivial_baseline
    way = None if trivial_baseline is None else (means["vanilla"] - means["none"]) / (best - trivial_baseline)
    resolved = resolved_pairs(known)
    spread = seed_spread(known)
    names = (WINDOWED, *BOUNDED_STATES)
    behind = {name: distance(known["vanilla"], known[name]) for name in names if name in known}
    failures = []
    if deviations < LEAST_DEVIATIONS:
        failures.append(f"none is {deviations:.1f} deviations behind vanilla, not {LEAST_DEVIATIONS:g}")
    if way is None:
        failures.append(f"no record has the baseline {scores.cell.trivial_baseline}")
    elif way < LEAST_WAY:
        failures.append(f"removing attention costs {way:.0%} of the way from trivial to best, not {LEAST_WAY:.0%}")
    if scores.memory_bounded_baseline is not None and means["vanilla"] <= scores.memory_bounded_baseline:
        failures.append(f"vanilla does not beat {scores.cell.memory_bounded_baseline}")
    if resolved < LEAST_RESOLVED:
        failures.append(f"{resolved:.0%} of the pairs are resolved, not {LEAST_RESOLVED:.0%}")
    if spread > MOST_SEED_SPREAD:
        failures.append(f"seeds spread {spread:.2f} as far as attentions, not {MOST_SEED_SPREAD:g}")
    if scores.cell.long_memory and behind.get(WINDOWED, WINDOW_DEVIATIONS) < WINDOW_DEVIATIONS:
        failures.append(f"{WINDOWED} is {behind[WINDOWED]:.1f} deviations behind vanilla, not {WINDOW_DEVIATIONS:g}")
    return Verdict(str(scores.cell), len(known), seeds, deviations, way, resolved, spread, behind, tuple(failures))


@functools.cache
def cells_that_fail(field: Path = MINI_DIR) -> dict[tuple[str, str, str], str]:
    """Task, backbone and pattern of the cells that the records in ``field`` judge and that fail, and why they do."""
    checked = {cell.cell.key: check_cell(cell) for cell in collect(record for _, record in whole_records(field, []))}
    judged = {key: verdict for key, verdict in checked.items() if verdict.deviations is not None}
    return {key: "; ".join(verdict.failures) for key, verdict in judged.items() if verdict.failures}


def check_suite(verdicts: Sequence[Verdict]) -> list[str]:
    """What the cells together lack: a causal one in which a window loses, and one in which a bounded state does."""
    lacking = []
    causal = [verdict for verdict in verdicts if verdict.cell.endswith(("CS", "CC"))]
    if not any(verdict.behind.get(WINDOWED, 0.0) >= WINDOW_DEVIATIONS for verdict in causal):
        lacking.append(f"no causal cell in which {WINDOWED} loses clearly")
    for pattern in ("CS", "CC"):
        cells = [verdict for verdict in causal if verdict.cell.endswith(pattern)]
        behind = (verdict.behind.get(name, 0.0) for verdict in cells for name in BOUNDED_STATES)
        if not any(value >= WINDOW_DEVIATIONS for value in behind):
            lacking.append(f"no cell of pattern {pattern} in which a state of constant size loses clearly")
    return lacking


def distance(better: Sequence[float], worse: Sequence[float]) -> float:
    """Difference of the means in pooled standard deviations."""
    pooled = ((statistics.variance(better) + statistics.variance(worse)) / 2) ** 0.5
    difference = statistics.fmean(better) - statistics.fmean(worse)
    return difference / pooled if pooled else float("inf") * difference if difference else 0.0


def resolved_pairs(scores: Mapping[str, Sequence[float]]) -> float:
    """Part of the pairs of attentions whose means differ at 95%, by Welch's test; 1 of no pairs."""
    from scipy.stats import ttest_ind

    pairs = list(itertools.combinations(scores.values(), 2))
    differ = [
        statistics.fmean(a) != statistics.fmean(b) and ttest_ind(a, b, equal_var=False).pvalue < 0.05 for a, b in pairs
    ]
    return sum(differ) / len(differ) if differ else 1.0


def seed_spread(scores: Mapping[str, Sequence[float]]) -> float:
    """Pooled deviation of the seeds over the deviation of the attentions' means."""
    within = statistics.fmean(statistics.variance(values) for values in scores.values()) ** 0.5
    between = statistics.stdev(statistics.fmean(values) for values in scores.values())
    return within / between if between else float("inf")
