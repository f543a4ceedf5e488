"""Simulate the suite's intervals and families of verdicts, and print error rates and power as Markdown tables.

``python scripts/simulate_statistics.py 400`` prints the tables of docs/concepts/scoring-and-statistics.md (minutes
on one core). Means and standard deviations over seeds are those of the bundled reference results.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cab.records.record import REFERENCE_DIRS
from cab.scoring.statistics import MARGIN, Verdict, false_discovery_rate, judge
from cab.suite.cells import ANCHORS, NO_ATTENTION, SOFTMAX, Anchors, SuiteCell, read_suite
from cab.suite.comparison import against_nearest, against_softmax
from cab.suite.gain import CellGain, cell_gains, gains_of, gap

SIZES, SEEDS = (30, 40), (3, 4, 5, 8)
DIFFERENT = (Verdict.BETTER, Verdict.WORSE)


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
CELL = SuiteCell("task", "network", "NS", "synthetic", "mse", "linear", True, "recall", "", "", False, "")
"""A cell whose metric is an error, and whose anchors have errors 1 and 101."""


def draw(
    random: np.random.Generator, truths: dict[str, Truth], *, deviation: float = 0.05, seeds: int = 5
) -> dict[str, CellGain]:
    """Return K of every attention, from random errors: K of 100 is an error of 1, and 0 one of 101."""
    test = {
        SOFTMAX: list(1 + deviation * random.standard_normal(seeds)),
        NO_ATTENTION: list(101 + deviation * random.standard_normal(seeds)),
    }
    values = {name: list(101 - t.mean + t.deviation * random.standard_normal(t.seeds)) for name, t in truths.items()}
    return gains_of(CELL, Anchors("", test, {}), values)


def coverage(situation: Situation, draws: int, random: np.random.Generator) -> float:
    """Return the share of draws whose interval contains the true K."""
    inside = 0
    for _ in range(draws):
        gains = draw(random, {"a": situation.truth}, deviation=situation.anchor_deviation, seeds=situation.anchor_seeds)
        low, high = gains["a"].interval
        inside += low <= situation.truth.mean <= high
    return inside / draws


def reference_truths() -> list[Truth]:
    """Return mean and standard deviation of every attention in every core cell with at least three seeds."""
    gains = [gain for each in read_suite(REFERENCE_DIRS) if each.cell.core for gain in cell_gains(each).values()]
    graded = [gain for gain in gains if gain.attention not in ANCHORS and len(gain.points) > 2]
    return [Truth(gain.retained, float(np.std(gain.points, ddof=1))) for gain in graded]


class Rates(NamedTuple):
    """Rates of one family.

    Attributes:
        error: share of families with any false ``better`` or ``worse``; with a false discovery rate, the share of false
            ones among all of them.
        power: share of the differences of at least two points that are called ``better`` or ``worse``.
    """

    error: float
    power: float


def family_rates(
    references: Sequence[Truth], size: int, seeds: int, draws: int, random: np.random.Generator
) -> dict[str, Rates]:
    """Return the rates of the three families in cells of ``size`` attentions.

    Every draw chooses the attentions from the reference results. A fifth of them are equal to softmax attention,
    another fifth are equal to one of the others.
    """
    counts: dict[str, list[tuple[int, int, int, int]]] = {"vanilla": [], "nearest": [], "all": []}
    for _ in range(draws):
        truths: dict[str, Truth] = {}
        for number in range(size):
            truth = references[int(random.integers(len(references)))]
            mean = {0: 100.0, 1: truths["a4"].mean if number > 4 else truth.mean}.get(number % 5, truth.mean)
            truths[f"a{number}"] = Truth(mean, truth.deviation, seeds)
        gains, means = draw(random, truths), {SOFTMAX: 100.0, **{name: truth.mean for name, truth in truths.items()}}

        def count(verdicts: dict[str, Verdict], name: str, k: dict[str, float] = means) -> tuple[int, int, int, int]:
            """Count false verdicts, verdicts, large differences, and those that are called."""
            called = {rival for rival, verdict in verdicts.items() if verdict in DIFFERENT}
            large = {rival for rival in verdicts if abs(k[rival] - k[name]) >= MARGIN}
            return sum(k[rival] == k[name] for rival in called), len(called), len(large), len(called & large)

        counts["vanilla"].append(count(against_softmax(gains, {})[0], SOFTMAX))
        counts["nearest"] += [count(against_nearest(name, gains), name) for name in truths]
        pairs = {pair: gap(gains[pair[0]], gains[pair[1]]) for pair in itertools.combinations(truths, 2)}
        judged = judge(pairs, adjust=false_discovery_rate)
        of_pairs = [count({other: verdict}, one) for (one, other), verdict in judged.items()]
        counts["all"].append(tuple(map(sum, zip(*of_pairs, strict=True))))  # type: ignore[arg-type]
    rates = {}
    for family, rows in counts.items():
        is_wrong = [false / max(called, 1) if family == "all" else false > 0 for false, called, _, _ in rows]
        rates[family] = Rates(float(np.mean(is_wrong)), sum(row[3] for row in rows) / sum(row[2] for row in rows))
    return rates


def main(draws: int) -> None:
    """Print both tables."""
    random = np.random.default_rng(7)
    print("| Situation | Coverage of the 95% interval of K |\n| --- | --- |")
    for situation in SITUATIONS:
        print(f"| {situation.label} | {100 * coverage(situation, 20 * draws, random):.1f}% |", flush=True)
    families = ("against `vanilla`", "five nearest", "all pairs")
    print(f"\n| Attentions, seeds | {' | '.join(families)} |\n|{' --- |' * 4}")
    references = reference_truths()
    for size, seeds in itertools.product(SIZES, SEEDS):
        rates = family_rates(references, size, seeds, draws, random).values()
        texts = [f"{100 * rate.error:.1f}%, {100 * rate.power:.0f}%" for rate in rates]
        print(f"| {size}, {seeds} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
