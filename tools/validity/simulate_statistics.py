"""Simulate the suite's intervals and verdicts, and print error rates and power as Markdown tables.

``python -m tools.validity.simulate_statistics 400`` prints the tables of
docs/concepts/scoring-and-statistics.md (minutes on one core). Means and standard deviations over seeds are those of
the bundled reference results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cab.records.files import REFERENCE_DIRS
from cab.results.cells import ANCHORS, NO_ATTENTION, SOFTMAX
from cab.results.load import load_results
from cab.results.retained import CEILING, Judged, by_cell, judged, points_of, suite_runs
from cab.results.statistics import Verdict

SEEDS = (3, 4, 5, 8)
DRAWN = (3, 4, 5, 14)
"""Seeds of a learner that solves a cell by chance."""
CHANCES = (0.95, 0.8, 0.5)
EQUAL_DEVIATION = 5.0
"""Standard deviation of the attentions that are as good as softmax attention."""


class Truth(NamedTuple):
    """True K, standard deviation over seeds in points, and number of seeds of an attention in one cell."""

    mean: float
    deviation: float
    seeds: int = 3


class Situation(NamedTuple):
    """An attention in a cell, and the anchors."""

    label: str
    truth: Truth
    anchor_deviation: float = 1.0
    anchor_seeds: int = 5


SITUATIONS = (
    Situation("graded, three seeds", Truth(50, 4)),
    Situation("graded, five seeds", Truth(50, 4, 5)),
    Situation("near the ceiling", Truth(99.8, 0.05), 0.02),
    Situation("three seeds of each anchor with the same variance", Truth(60, 3), 3.0, 3),
)


def draw(
    random: np.random.Generator, truths: dict[str, Truth], *, deviation: float = 0.05, seeds: int = 5
) -> dict[str, Judged]:
    """Return the verdict on every attention, from random values with K of 100 for 100 and of 0 for 0."""
    means = {SOFTMAX: Truth(100, deviation, seeds), NO_ATTENTION: Truth(0, deviation, seeds), **truths}
    return verdicts({name: t.mean + t.deviation * random.standard_normal(t.seeds) for name, t in means.items()})


def verdicts(values: Mapping[str, np.ndarray]) -> dict[str, Judged]:
    """Return the verdict on every attention, from values on the scale of the cell."""
    softmax, without = (values[name].mean() for name in ANCHORS)
    return judged({name: list(100 * (own - without) / (softmax - without)) for name, own in values.items()})


def coverage(situation: Situation, draws: int, random: np.random.Generator) -> float:
    """Return the share of draws whose interval contains the true K."""
    inside = 0
    for _ in range(draws):
        gains = draw(random, {"a": situation.truth}, deviation=situation.anchor_deviation, seeds=situation.anchor_seeds)
        low, high = gains["a"].interval
        inside += low <= situation.truth.mean <= high
    return inside / draws


def reference_truths() -> dict[str, list[Truth]]:
    """Return mean and standard deviation of the attentions with at least three seeds, by core cell."""
    truths: dict[str, list[Truth]] = {}
    for cell, runs in by_cell(suite_runs(load_results(REFERENCE_DIRS))):
        points = [own for name, own in points_of(runs).items() if name not in ANCHORS and len(own) > 2]
        if cell.core and points:
            truths[cell.heading] = [Truth(float(np.mean(own)), float(np.std(own, ddof=1))) for own in points]
    return truths


class Rates(NamedTuple):
    """Rates of the verdicts in a cell.

    Attributes:
        error: share of the draws with any false ``better`` or ``worse``.
        power: share of the attentions below 98 that are called ``worse``.
    """

    error: float
    power: float


def cell_rates(references: Sequence[Truth], seeds: int, draws: int, random: np.random.Generator) -> Rates:
    """Return the rates in a cell with these attentions; every fifth has the largest K that is no relevant loss."""
    truths = {
        f"a{n}": Truth(CEILING, EQUAL_DEVIATION, seeds) if n % 5 == 0 else Truth(truth.mean, truth.deviation, seeds)
        for n, truth in enumerate(references)
    }
    below = {name for name, truth in truths.items() if truth.mean < CEILING}
    false = power = 0
    for _ in range(draws):
        found = {name: each.verdict for name, each in draw(random, truths).items()}
        called = {name for name, verdict in found.items() if verdict is Verdict.WORSE}
        false += bool(called - below) or Verdict.BETTER in found.values()
        power += len(called & below)
    return Rates(false / draws, power / max(draws * len(below), 1))


def equivalent_share(chance: float, seeds: int, draws: int, random: np.random.Generator) -> float:
    """Return how often an attention that solves a cell with ``chance`` (K 100, else 30) is called ``equivalent``."""
    count = 0
    anchors = {SOFTMAX: np.array([100.0, 99.95, 100.05]), NO_ATTENTION: np.array([0.0, -0.05, 0.05])}
    for _ in range(draws):
        own = np.where(random.random(seeds) < chance, 100.0, 30.0) + 0.05 * random.standard_normal(seeds)
        count += verdicts({**anchors, "a": own})["a"].verdict is Verdict.EQUIVALENT
    return count / draws


def main(draws: int) -> None:
    """Print the tables."""
    random = np.random.default_rng(7)
    print("| Situation | Coverage of the 95% interval of K |\n| --- | --- |")
    for situation in SITUATIONS:
        print(f"| {situation.label} | {100 * coverage(situation, 20 * draws, random):.1f}% |", flush=True)
    print(f"\n| Cell, attentions |{''.join(f' {seeds} seeds |' for seeds in SEEDS)}\n|{' --- |' * (1 + len(SEEDS))}")
    for heading, truths in reference_truths().items():
        rates = [cell_rates(truths, seeds, draws, random) for seeds in SEEDS]
        texts = [f"{100 * rate.error:.1f}%, {100 * rate.power:.0f}%" for rate in rates]
        print(f"| {heading}, {len(truths)} | {' | '.join(texts)} |", flush=True)
    print(f"\n| Chance to solve |{''.join(f' {seeds} seeds |' for seeds in DRAWN)}\n|{' --- |' * (1 + len(DRAWN))}")
    for chance in CHANCES:
        shares = [f"{100 * equivalent_share(chance, seeds, draws, random):.0f}%" for seeds in DRAWN]
        print(f"| {chance} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
