"""Comparisons of attentions in a cell, one family of tests per question.

- Is an attention worse than softmax attention? All attentions of the cell against ``vanilla``, Holm's correction.
- Is an attention better than similar ones? The attention against its five nearest by K, Holm's correction.
- Which pairs differ at all? All pairs, with a false discovery rate of 5%: one in twenty of these differences is false.

The level is 5% each. Attentions with tuned learning rates are compared among themselves and with the anchors.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping

from cab.scoring.statistics import (
    CONFIDENCE,
    MARGIN,
    Estimate,
    Verdict,
    false_discovery_rate,
    judge,
    student_quantile,
)
from cab.suite.cells import ANCHORS, SOFTMAX
from cab.suite.gain import CellGain, gap
from cab.suite.tuning import TUNED

NEAREST = 5
"""Number of attentions with the nearest K that an attention is compared with."""
MOST_SEEDS = 20
Gains = Mapping[str, CellGain]
"""K of the attentions in one cell, by name."""


def against_softmax(gains: Gains, own: Gains) -> tuple[dict[str, Verdict], dict[str, Verdict]]:
    """Return the verdicts on both kinds of results against softmax attention; the anchors are not among them.

    Args:
        gains: K of the reference results in a cell, which are one family.
        own: further results, each of which joins this family alone, so that they do not change other verdicts.
    """
    alone = {name: _against_softmax({**gains, name: gain})[name] for name, gain in own.items()}
    return _against_softmax(gains), alone


def _against_softmax(gains: Gains) -> dict[str, Verdict]:
    verdicts: dict[str, Verdict] = {}
    for is_tuned in (False, True):
        names = [name for name in gains if name not in ANCHORS and name.endswith(TUNED) == is_tuned]
        verdicts |= judge({name: gap(gains[name], gains[SOFTMAX]) for name in names})
    return verdicts


def against_nearest(name: str, gains: Gains) -> dict[str, Verdict]:
    """Return the verdict on an attention against each of the five with the nearest K and several seeds."""
    others = [other for other in rivals(name, gains) if other not in ANCHORS and len(gains[other].points) > 1]
    others.sort(key=lambda other: abs(gains[other].retained - gains[name].retained))
    return judge({other: gap(gains[name], gains[other]) for other in others[:NEAREST]})


def against_all(name: str, gains: Gains) -> dict[str, Verdict]:
    """Return the verdict on an attention against each other one, with the false discovery rate of all pairs."""
    names = [name, *rivals(name, gains)]
    pairs = {pair: gap(gains[pair[0]], gains[pair[1]]) for pair in itertools.combinations(names, 2)}
    verdicts = judge(pairs, adjust=false_discovery_rate)
    return {other: verdict for (one, other), verdict in verdicts.items() if one == name}


def rivals(name: str, gains: Gains) -> list[str]:
    """Return the attentions that are trained like this one, tuned or not, and the anchors."""
    is_tuned = name.endswith(TUNED)
    return [other for other in gains if other != name and (other in ANCHORS or other.endswith(TUNED) == is_tuned)]


def best_names(gains: Gains) -> set[str]:
    """Return the attention with the largest K of those with several seeds, and all equivalent to it."""
    known = {name: gain for name, gain in gains.items() if gain.estimate.is_known}
    best = max(known.values(), key=lambda gain: gain.retained)
    return {name for name, gain in known.items() if gain is best or gap(gain, best).is_within(MARGIN)}


def seeds_to_decide(one: CellGain, other: CellGain, family: int) -> int | None:
    """Return the number of seeds of ``one`` that would decide an undecided comparison in a family of tests.

    Mean and standard deviation are assumed to stay as they are. None if more than :data:`MOST_SEEDS` are required.
    """
    count = len(one.points)
    for seeds in range(count + 1, MOST_SEEDS + 1):
        estimate = Estimate(one.estimate.value, one.estimate.variance * count / seeds, seeds - 1)
        tested = gap(dataclasses.replace(one, estimate=estimate), other)
        is_significant = tested.p_value * family < 1 - CONFIDENCE and abs(tested.value) >= MARGIN
        if is_significant or tested.is_within(MARGIN):
            return seeds
    return None


def repetition(own: CellGain, reference: CellGain) -> str:
    """Compare new results with reference results of the same attention in a cell: means of the metric, and a verdict.

    They are as expected if the difference in K is within two points, or within the 95% prediction interval of the
    mean of as many new seeds, whose variance is that of the reference.
    """
    change = own.estimate.value - reference.estimate.value
    count, limit = len(reference.points), MARGIN
    if count > 1:
        variance = reference.estimate.variance * (1 + count / len(own.points))
        limit = max(limit, student_quantile(count - 1) * variance**0.5)
    verdict = "as expected" if abs(change) <= limit else f"{'higher' if change > 0 else 'lower'} than expected"
    if count == 1 and abs(change) > limit:
        verdict = "not comparable (a single reference seed)"
    deviation = f" ± {statistics.stdev(reference.values):.2g}" if count > 1 else ""
    return f"{own.mean:.4g}, reference {reference.mean:.4g}{deviation}: {verdict}"
