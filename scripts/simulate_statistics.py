"""Simulate the suite's intervals and verdicts, and print their error rates as a Markdown table.

``python scripts/simulate_statistics.py 20000`` prints the tables of docs/concepts/scoring-and-statistics.md (one minute
per 10,000 draws). Every draw makes values of the anchors and of the attentions, and scores them as `cab` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cab.scoring.statistics import Verdict
from cab.suite.cells import NO_ATTENTION, SOFTMAX, Anchors, SuiteCell
from cab.suite.gain import CellGain, PatternGain, compare, gains_of

NAME = "attention"


class Truth(NamedTuple):
    """True K, standard deviation over seeds in points, and number of seeds of an attention in one cell."""

    mean: float
    deviation: float
    seeds: int = 3


class Situation(NamedTuple):
    """An attention in the cells of one pattern, and the anchors."""

    label: str
    cells: Sequence[Truth]
    anchor_deviation: float = 1.0
    anchor_seeds: int = 5


SITUATIONS = (
    Situation("four graded cells", [Truth(30, 4), Truth(50, 4), Truth(70, 4), Truth(90, 3)]),
    Situation(
        "four cells near the ceiling", [Truth(99.8, 0.05), Truth(99.9, 0.03), Truth(99, 0.3), Truth(99.5, 0.2)], 0.02
    ),
    Situation("one unstable cell of four", [Truth(30, 3), Truth(50, 25), Truth(70, 3), Truth(90, 2)]),
    Situation("standard deviations from 0.01 to 12", [Truth(40, 0.01), Truth(50, 0.3), Truth(60, 2), Truth(50, 12)]),
    Situation("two to five seeds, three per anchor", [Truth(30, 4, 5), Truth(60, 3, 2), Truth(80, 5, 3)], 3.0, 3),
)
EXCEPTIONS = (Situation("equal to vanilla in four cells", [Truth(100, 0.5)] * 4, 0.5),)
DEVIATIONS = [float(d) for d in np.geomspace(0.01, 12, 12)]
EQUAL = {
    "equal standard deviations": [Truth(60, 5)] * 12,
    "standard deviations from 0.01 to 12": [Truth(60, d) for d in DEVIATIONS],
    "near the ceiling": [Truth(99.9, 0.03)] * 12,
    "equal to vanilla": [Truth(100, 5)] * 12,
    "equal to vanilla, standard deviations from 0.01 to 12": [Truth(100, d) for d in DEVIATIONS],
    "equal to vanilla, at the ceiling": [Truth(100, 0.03)] * 12,
}
"""Twelve attentions with the same true K in one cell."""


def cell_of(number: int) -> SuiteCell:
    """Return a cell whose metric is an error, and whose anchors have errors 1 and 101."""
    return SuiteCell(f"task{number}", "network", "NS", "synthetic", "mse", "linear", True, "", "", False, "")


def draw(
    random: np.random.Generator, number: int, truths: dict[str, Truth], *, deviation: float, seeds: int
) -> dict[str, CellGain]:
    """Return K of every attention in one cell, from random errors: K of 100 is an error of 1, and 0 one of 101."""
    test = {
        SOFTMAX: list(1 + deviation * random.standard_normal(seeds)),
        NO_ATTENTION: list(101 + deviation * random.standard_normal(seeds)),
    }
    values = {name: list(101 - t.mean + t.deviation * random.standard_normal(t.seeds)) for name, t in truths.items()}
    return gains_of(cell_of(number), Anchors("", test, {}), values)


def coverage(situation: Situation, draws: int, random: np.random.Generator) -> float:
    """Return the share of draws whose interval contains the true K."""
    truth = float(np.mean([cell.mean for cell in situation.cells]))
    inside = 0
    for _ in range(draws):
        gains = [
            draw(random, n, {NAME: t}, deviation=situation.anchor_deviation, seeds=situation.anchor_seeds)[NAME]
            for n, t in enumerate(situation.cells)
        ]
        low, high = PatternGain("NS", NAME, "yes", tuple(gains), len(gains)).interval
        inside += low <= truth <= high
    return inside / draws


def bistable(draws: int, random: np.random.Generator) -> float:
    """Return the coverage for a cell that a third of the runs does not solve."""
    inside = 0
    for _ in range(draws):
        found = np.where(random.random(3) < 1 / 3, 5.0, 99.0) + 0.5 * random.standard_normal(3)
        test = {SOFTMAX: list(1 + 0.1 * random.standard_normal(5)), NO_ATTENTION: [100.9, 101.0, 101.1, 101.0, 101.0]}
        gain = gains_of(cell_of(0), Anchors("", test, {}), {NAME: list(101 - found)})[NAME]
        low, high = PatternGain("NS", NAME, "yes", (gain,), 1).interval
        inside += low <= 5 / 3 + 99 * 2 / 3 <= high
    return inside / draws


def false_verdicts(truths: Sequence[Truth], draws: int, random: np.random.Generator) -> float:
    """Return the share of draws in which any two equal attentions are called better or worse.

    Vanilla is one of the equal attentions if their true K is 100. It has the median of their standard deviations then.
    """
    wrong = 0
    is_equal = truths[0].mean == 100
    deviation = float(np.median([truth.deviation for truth in truths])) if is_equal else 0.02
    different = {NO_ATTENTION} if is_equal else {NO_ATTENTION, SOFTMAX}
    for _ in range(draws):
        gains = draw(random, 0, {f"a{n}": t for n, t in enumerate(truths)}, deviation=deviation, seeds=5)
        verdicts = compare({name: [gain] for name, gain in gains.items()})
        wrong += any(
            verdict in (Verdict.BETTER, Verdict.WORSE)
            for pair, verdict in verdicts.items()
            if different.isdisjoint(pair)
        )
    return wrong / draws


def main(draws: int) -> None:
    """Print both tables."""
    random = np.random.default_rng(7)
    rows: list[tuple[str, Callable[[], float]]] = [
        *((s.label, lambda s=s: coverage(s, draws, random)) for s in (*SITUATIONS, *EXCEPTIONS)),
        ("one cell that a third of the runs does not solve", lambda: bistable(draws, random)),
    ]
    print("| Situation | Coverage of the 95% interval of K |\n| --- | --- |")
    for label, rate in rows:
        print(f"| {label} | {100 * rate():.1f}% |", flush=True)
    print("\n| Twelve equal attentions in one cell | Any false `better` |\n| --- | --- |")
    for label, truths in EQUAL.items():
        print(f"| {label} | {100 * false_verdicts(truths, draws // 5, random):.1f}% |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
