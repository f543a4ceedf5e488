"""K, the share of softmax's gain over no attention that an attention retains, in percent.

K of a cell is 100 (s - N) / (V - N), with the metric s on the cell's scale and the means V and N of the frozen anchors
``vanilla`` and ``none``. K of a pattern is the mean over tasks of the mean over the task's core cells, where K of each
cell is clipped to 0..100. A pattern without all of its core cells has no K.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cab.patterns import pattern_rank
from cab.records.verified import verdict, verified_codes
from cab.scoring.statistics import CONFIDENCE, MARGIN, Contrast, Estimate, Verdict, difference, judge, weighted_sum
from cab.suite.cells import ANCHORS, NO_ATTENTION, SOFTMAX, Anchors, CellResults, Key, SuiteCell
from cab.suite.tuning import TUNED, usable_rates

SOLVED = 90.0
"""A seed has solved a cell if it retains at least this share."""


@dataclass(frozen=True)
class CellGain:
    """K of one attention in one cell.

    Attributes:
        points: K of each seed.
        estimate: mean of ``points`` with the variance over the attention's seeds.
        total: the same mean with the variance of the anchors added.
        error: mean logarithm of the error relative to vanilla's; None if higher values of the metric are better.
        mean: mean of the metric over seeds.
        steps: mean number of steps until validation reached the cell's threshold; None if a seed did not reach it.
        usable_rates: number of usable learning rates of the grid; None without ``tune=true``.
    """

    cell: SuiteCell
    attention: str
    points: tuple[float, ...]
    estimate: Estimate
    total: Estimate
    error: Estimate | None
    mean: float
    steps: Estimate | None = None
    usable_rates: int | None = None

    @property
    def retained(self) -> float:
        """K clipped to 0..100."""
        return min(max(self.estimate.value, 0.0), 100.0)

    @property
    def solved(self) -> int:
        """Number of seeds that solved the cell."""
        return sum(point >= SOLVED for point in self.points)

    @property
    def is_at_ceiling(self) -> bool:
        """Whether K is within the margin of 100."""
        return self.estimate.value > 100 - MARGIN


def cell_gains(results: CellResults) -> dict[str, CellGain]:
    """Return K of every attention with results in a cell; empty if the cell has no anchors."""
    anchors = results.anchors
    if anchors is None:
        return {}
    gains = gains_of(results.cell, anchors, {name: results.values(name) for name in results.runs})
    for name, gain in gains.items():
        runs = list(results.runs.get(name, {}).values())
        steps: Sequence[float] = anchors.steps.get(name, [])
        if runs:
            steps = [run.cost.steps_to_solve for run in runs if run.cost.steps_to_solve is not None]
        tuning = runs[0].config.get("tuning") if runs else None  # the seeds of a cell have one grid
        gains[name] = dataclasses.replace(
            gain,
            steps=Estimate.of(steps) if len(steps) == len(gain.points) else None,
            usable_rates=usable_rates(tuning["grid"], anchors) if tuning else None,
        )
    return gains


def gains_of(cell: SuiteCell, anchors: Anchors, values: Mapping[str, Sequence[float]]) -> dict[str, CellGain]:
    """Return K of the anchors and of every attention in ``values``, which has the cell's metric, one per seed."""
    values = {**{name: anchors.test[name] for name in ANCHORS}, **values}
    scores = {name: [cell.scaled(value) for value in metric] for name, metric in values.items()}
    softmax, without = (statistics.fmean(scores[name]) for name in ANCHORS)
    points = {name: tuple(100 * (x - without) / (softmax - without) for x in scores[name]) for name in values}
    estimates = {name: Estimate.of(shares) for name, shares in points.items()}
    is_error = softmax < without and min(values[SOFTMAX]) > 0
    log_softmax = statistics.fmean(map(math.log, values[SOFTMAX])) if is_error else math.nan
    gains = {}
    for name, metric in values.items():
        share = estimates[name].value / 100
        if name in ANCHORS:
            total = Estimate({SOFTMAX: 100.0, NO_ATTENTION: 0.0}[name], 0.0, math.inf)
        else:  # by the delta method
            weights = {name: 1.0, SOFTMAX: share, NO_ATTENTION: 1 - share}
            total = weighted_sum((weight, estimates[other]) for other, weight in weights.items())
            total = dataclasses.replace(total, value=estimates[name].value)
        has_error = is_error and min(metric) > 0
        error = Estimate.of([math.log(value) - log_softmax for value in metric]) if has_error else None
        gains[name] = CellGain(cell, name, points[name], estimates[name], total, error, statistics.fmean(metric))
    return gains


@dataclass(frozen=True)
class PatternGain:
    """K of one attention in one pattern.

    Attributes:
        verified: whether the code of all its runs in the pattern is verified: ``yes``, ``no`` or ``unknown``.
        cells: its results in the core cells of the pattern.
        core: number of core cells of the pattern.
    """

    pattern: str
    attention: str
    verified: str
    cells: tuple[CellGain, ...]
    core: int

    @property
    def is_complete(self) -> bool:
        """Whether it has results in every core cell."""
        return len(self.cells) == self.core

    @property
    def estimate(self) -> Estimate | None:
        """K; None without all core cells."""
        if not self.is_complete:
            return None
        weights = task_weights(gain.cell for gain in self.cells)
        total = weighted_sum((weights[gain.cell.key], gain.total) for gain in self.cells)
        return dataclasses.replace(total, value=sum(weights[gain.cell.key] * gain.retained for gain in self.cells))

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of K within 0..100; NaN for an anchor or with a single seed in any cell."""
        estimate = self.estimate
        if estimate is None or self.attention in ANCHORS:
            return math.nan, math.nan
        low, high = estimate.interval()
        return max(low, 0.0), min(high, 100.0)

    @property
    def steps(self) -> Estimate | None:
        """Mean over the cells of the number of steps to solve; None unless every seed solved every core cell."""
        steps = [gain.steps for gain in self.cells if gain.steps]
        return weighted_sum((1 / self.core, count) for count in steps) if len(steps) == self.core else None

    @property
    def usable_rates(self) -> int | None:
        """Smallest number of usable learning rates in any cell; None unless all cells are tuned."""
        counts = [gain.usable_rates for gain in self.cells if gain.usable_rates is not None]
        return min(counts) if counts and len(counts) == len(self.cells) else None

    @property
    def worst(self) -> CellGain:
        """The cell with the smallest K."""
        return min(self.cells, key=lambda gain: gain.estimate.value)

    @property
    def solved(self) -> str:
        """Number of solved runs of the number of runs."""
        return f"{sum(gain.solved for gain in self.cells)} of {sum(len(gain.points) for gain in self.cells)}"

    @property
    def seeds(self) -> int:
        """Smallest number of seeds of any cell."""
        return min(len(gain.points) for gain in self.cells)


def task_weights(cells: Iterable[SuiteCell]) -> dict[Key, float]:
    """Return the weight of each cell in the mean over tasks of the mean over cells."""
    tasks = {cell.key: cell.task for cell in cells}
    counts = Counter(tasks.values())
    return {key: 1 / len(counts) / counts[task] for key, task in tasks.items()}


@dataclass(frozen=True)
class SuiteGains:
    """K of all attentions.

    Attributes:
        cells: K by cell and attention.
        patterns: K by pattern and attention, in order of K; attentions without all core cells come last, those with
            more cells first.
    """

    cells: dict[Key, dict[str, CellGain]]
    patterns: dict[str, dict[str, PatternGain]]

    def common(self, keys: Sequence[Key]) -> dict[str, list[CellGain]]:
        """Return the results of every attention in the given cells."""
        return _by_attention(self.cells, keys)

    def verdicts(self, pattern: str) -> dict[tuple[str, str], Verdict]:
        """Return the verdicts on all pairs of attentions in the core cells of a pattern; see :func:`compare`."""
        return compare({name: gain.cells for name, gain in self.patterns[pattern].items()})


def suite_gains(results: Sequence[CellResults], excluded: Iterable[Key] = ()) -> SuiteGains:
    """Return K of every attention in every cell and pattern; ``excluded`` are cells that do not measure attention."""
    cells = {result.cell.key: cell_gains(result) for result in results}
    excluded = set(excluded)
    core = [result.cell for result in results if result.cell.core and result.cell.key not in excluded]
    patterns: dict[str, dict[str, PatternGain]] = {}
    for pattern in sorted({cell.pattern for cell in core}, key=pattern_rank):
        keys = [cell.key for cell in core if cell.pattern == pattern]
        verified = _verified(results, pattern)
        gains = [
            PatternGain(pattern, name, verified.get(name, "yes"), tuple(in_cells), len(keys))
            for name, in_cells in _by_attention(cells, keys).items()
        ]
        gains.sort(key=lambda gain: (-len(gain.cells), -gain.estimate.value if gain.estimate else 0.0, gain.attention))
        patterns[pattern] = {gain.attention: gain for gain in gains}
    return SuiteGains(cells, patterns)


def _by_attention(cells: Mapping[Key, Mapping[str, CellGain]], keys: Sequence[Key]) -> dict[str, list[CellGain]]:
    """Return the results of every attention in the given cells."""
    names = dict.fromkeys(name for key in keys for name in cells[key])
    return {name: [cells[key][name] for key in keys if name in cells[key]] for name in names}


def _verified(results: Iterable[CellResults], pattern: str) -> dict[str, str]:
    """Return the worst verdict on the code of each attention in a pattern; the anchors are not among them."""
    codes, order = verified_codes(), ("no", "unknown", "yes")
    worst: dict[str, str] = {}
    for result in results:
        for name, runs in result.runs.items() if result.cell.pattern == pattern else ():
            verdicts = {verdict(record, codes) for record in runs.values()}
            worst[name] = min(verdicts | {worst.get(name, "yes")}, key=order.index)
    return worst


def compare(gains: Mapping[str, Sequence[CellGain]]) -> dict[tuple[str, str], Verdict]:
    """Judge every two attentions on their common cells.

    Comparisons with the anchors are one family, and all other pairs another (see
    :func:`cab.scoring.statistics.judge`). Each is tested at half of the 5%, so the probability of any false verdict
    is at most 5%. Pairs with a tuned attention are judged on their own, with another 5%, so verdicts on the fixed
    recipe do not depend on them.
    """
    verdicts: dict[tuple[str, str], Verdict] = {}  # in the order of the pairs
    families: dict[tuple[bool, bool], dict[tuple[str, str], Contrast]] = {}
    for pair in itertools.combinations(gains, 2):
        common = [(one, other) for one in gains[pair[0]] for other in gains[pair[1]] if one.cell == other.cell]
        if common:
            verdicts[pair] = Verdict.UNDECIDED
            family = not set(ANCHORS).isdisjoint(pair), any(name.endswith(TUNED) for name in pair)
            families.setdefault(family, {})[pair] = contrast(common)
    for members in families.values():
        verdicts |= judge(members, level=(1 - CONFIDENCE) / 2)
    return verdicts


def contrast(common: Sequence[tuple[CellGain, CellGain]]) -> Contrast:
    """Return what is tested of two attentions in their common cells; positive values favor the first.

    Where both are at the ceiling in every cell, K cannot separate them. If all these cells are judged by an error, the
    errors are compared.
    """
    weights = task_weights(one.cell for one, _ in common)
    unclipped = weighted_sum((weights[one.cell.key], difference(one.estimate, other.estimate)) for one, other in common)
    value = sum(weights[one.cell.key] * (one.retained - other.retained) for one, other in common)
    points = dataclasses.replace(unclipped, value=value)
    if not all(gain.is_at_ceiling and gain.error for pair in common for gain in pair):
        return Contrast(points, MARGIN, points)
    log_error_ratio = weighted_sum(
        (weights[one.cell.key], difference(other.error, one.error))  # type: ignore[arg-type]
        for one, other in common
    )
    return Contrast(log_error_ratio, math.log1p(MARGIN / 100), points)
