"""The objects that the presentation used before the frames of :mod:`cab.results.gain`."""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cab.errors import UserError
from cab.files.disk import listed
from cab.records.record import Record, Status
from cab.records.results import with_program_names
from cab.records.verified import verdict, verified_codes
from cab.results import cells as suite
from cab.results.cells import (
    ANCHORS,
    NO_ATTENTION,
    SOFTMAX,
    TUNED,
    Anchors,
    Key,
    SuiteCell,
    data_hash,
    record_key,
    records_of,
)  # fmt: skip
from cab.results.gain import CEILING, MATCHING, MIN_SEEDS, SOLVED
from cab.results.runs import _too_few_slots, is_diverged, is_unfinished
from cab.results.statistics import MARGIN, ONE_SEED_MARK, Estimate, Verdict, upper_bounds, weighted_sum

DIVERGED_MARK, SLOTS_MARK = "!", "#"
log = logging.getLogger("cab")


@dataclass
class CellResults:
    """Results of one cell.

    Attributes:
        anchors: the frozen anchors; None if the cell has none.
        runs: finished runs by attention and seed. The anchors' own runs are not among them.
        excluded: reason why a record is excluded, by attention and seed.
        diverged: number of seeds without a score because training diverged, by attention.
    """

    cell: SuiteCell
    anchors: Anchors | None
    runs: dict[str, dict[int, Record]] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    excluded: dict[tuple[str, int], str] = field(default_factory=dict)
    diverged: Counter[str] = field(default_factory=Counter)

    @property
    def is_empty(self) -> bool:
        """Whether no finished run is of this cell, not even of an anchor."""
        return not self.runs and not self.baselines

    @property
    def left_out(self) -> dict[str, str]:
        """Reason why a seed of an attention has no score, by attention."""
        return {name: reason for (name, seed), reason in self.excluded.items() if seed not in self.runs.get(name, ())}

    def values(self, attention: str) -> list[float]:
        """Return the values of the cell's metric, one per seed."""
        if attention in ANCHORS:
            return self.anchors.test[attention] if self.anchors else []
        return [self.cell.value(record) for record in self.runs[attention].values()]

    def add(self, record: Record) -> None:
        """Add a record of this cell; UserError if there is another result of the same attention and seed."""
        attention, seed = str(record.cell["attention"]), int(record.cell["seed"])
        if changed := self.cell.changed_settings(record):
            self.excluded[attention, seed] = f"seed {seed} has other settings than the suite's: {listed(changed)}"
        elif record.status is not Status.FINISHED:
            self.excluded[attention, seed] = f"seed {seed} is {record.status}"
            self.diverged[attention] += record.status is Status.DIVERGED
        elif self.anchors and self.anchors.data != data_hash(record):
            self.excluded[attention, seed] = f"seed {seed} has data or a version of the task other than the anchors'"
        else:
            values = {name: metrics.get(self.cell.metric) for name, metrics in record.baselines.items()}
            self.baselines |= {name: value for name, value in values.items() if value is not None}
            if attention not in ANCHORS:
                other = self.runs.setdefault(attention, {}).setdefault(seed, record)
                if self.cell.value(other) != self.cell.value(record):
                    raise UserError(
                        f"two results of {attention} with seed {seed} in {self.cell} ({other.hash} and {record.hash}); "
                        "remove one, or move it to another folder"
                    )

    def warn(self) -> None:
        """Name the attentions with a seed without a score, and the reasons."""
        reasons = [f"{name} ({reason})" for name, reason in sorted(self.left_out.items()) if name not in ANCHORS]
        if reasons:
            log.warning("not scored in %s: %s", self.cell, listed(reasons, shown=5))


def collect(records: Iterable[Record]) -> list[CellResults]:
    """Return the results of each cell of the suite in ``records``."""
    anchors = suite.read_anchors()
    cells: dict[Key, CellResults] = {cell.key: CellResults(cell, anchors.get(cell.key)) for cell in suite.suite_cells()}
    for record in with_program_names(records):
        results = cells.get(record_key(record))
        if results and results.cell.includes(record):
            results.add(record)
    return list(cells.values())


def read_suite(folders: Sequence[Path]) -> list[CellResults]:
    """Return the results of each cell in folders of records; damaged or modified records are skipped with a warning."""
    return collect(records_of(folders))


@dataclass(frozen=True)
class CellGain:
    """K of one attention in one cell.

    Attributes:
        values: the cell's metric of each seed.
        points: K of each seed.
        estimate: mean of ``points`` with the variance over the attention's seeds.
        total: the same mean with the variance of the anchors added.
        bound: one-sided upper 95% bound of K, adjusted over the family; NaN for an anchor or with a single seed.
        verdict: on the attention compared with softmax attention; None for an anchor.
        steps: mean number of steps until validation reached the cell's threshold; None if a seed did not reach it.
        unfinished: number of seeds that were still learning when the budget ended.
        diverged: number of seeds that got worse after their best validation, or have no score because they diverged.
        slots: remark on an attention with fewer slots than the cell has facts, such as ``4 slots for 64 facts``.
    """

    cell: SuiteCell
    attention: str
    values: tuple[float, ...]
    points: tuple[float, ...]
    estimate: Estimate
    total: Estimate
    bound: float = math.nan
    verdict: Verdict | None = None
    verified: str = "yes"
    steps: Estimate | None = None
    unfinished: int = 0
    diverged: int = 0
    slots: str = ""

    @property
    def mean(self) -> float:
        """Mean of the metric."""
        return statistics.fmean(self.values)

    @property
    def retained(self) -> float:
        """K clipped to 0..100."""
        return min(max(self.estimate.value, 0.0), 100.0)

    @property
    def solved(self) -> int:
        """Number of seeds that solved the cell."""
        return sum(point >= SOLVED for point in self.points)

    @property
    def is_lower_bound(self) -> bool:
        """Whether K, below the margin of 100, would increase with a larger budget: seeds were still learning."""
        return self.unfinished > 0 and not self.diverged and self.estimate.value <= CEILING

    @property
    def note(self) -> str:
        """``unfinished`` (K is a lower bound) or ``diverged``, and ``few slots``; empty without a remark."""
        notes = {"unfinished": self.is_lower_bound, "diverged": self.diverged, "few slots": self.slots}
        return ", ".join(name for name, is_noted in notes.items() if is_noted)

    @property
    def is_best(self) -> bool:
        """Whether verified code, with several seeds, matches softmax attention."""
        return self.verified == "yes" and (self.attention == SOFTMAX or self.verdict in MATCHING)

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of K over seeds in this cell; NaN for an anchor or with a single seed."""
        return (math.nan, math.nan) if self.attention in ANCHORS else self.total.interval()


def cell_gains(results: CellResults, reference: CellResults | None = None) -> dict[str, CellGain]:
    """Return K of every attention with results in a cell; empty if the cell has no anchors.

    Args:
        reference: results of the same cell whose family each attention joins alone, so that further results change no
            verdict (default: the results themselves are the family).
    """
    anchors = results.anchors
    if anchors is None:
        return {}
    gains = gains_of(results.cell, anchors, {name: results.values(name) for name in results.runs})
    if reference is not None:
        known = gains_of(results.cell, anchors, {name: reference.values(name) for name in reference.runs})
        gains = {name: judged({**known, name: gain})[name] for name, gain in gains.items()}
    codes = verified_codes()
    for name, gain in gains.items():
        runs = list(results.runs.get(name, {}).values())  # none of an anchor
        solved = [run.cost.steps_to_solve for run in runs if run.cost.steps_to_solve is not None]
        steps: Sequence[float] = anchors.steps.get(name, []) if name in ANCHORS else solved
        diverged = [is_diverged(run, anchors) for run in runs]
        unfinished = [is_unfinished(run, anchors) for run in runs]
        gains[name] = dataclasses.replace(
            gain,
            verified=min((verdict(run, codes) for run in runs), key=("no", "unknown", "yes").index, default="yes"),
            steps=Estimate.of(steps) if len(steps) == len(gain.points) else None,
            unfinished=sum(learns and not diverges for learns, diverges in zip(unfinished, diverged, strict=True)),
            diverged=sum(diverged) + (results.diverged[name] if runs else 0),
            slots=next(filter(None, map(_too_few_slots, runs)), ""),
        )
    return gains


def gains_of(cell: SuiteCell, anchors: Anchors, values: Mapping[str, Sequence[float]]) -> dict[str, CellGain]:
    """Return K of the anchors and of every attention in ``values``, which has the cell's metric, one per seed.

    The verdicts are those of one family.
    """
    values = {**{name: anchors.test[name] for name in ANCHORS}, **values}
    scores = {name: [cell.scaled(value) for value in metric] for name, metric in values.items()}
    softmax, without = (statistics.fmean(scores[name]) for name in ANCHORS)
    points = {name: tuple(100 * (x - without) / (softmax - without) for x in scores[name]) for name in values}
    estimates = {name: Estimate.of(shares) for name, shares in points.items()}
    gains = {}
    for name, metric in values.items():
        share = estimates[name].value / 100
        if name in ANCHORS:
            total = Estimate({SOFTMAX: 100.0, NO_ATTENTION: 0.0}[name], 0.0, math.inf)
        else:  # by the delta method
            weights = {name: 1.0, SOFTMAX: share, NO_ATTENTION: 1 - share}
            total = weighted_sum((weight, estimates[other]) for other, weight in weights.items())
            total = dataclasses.replace(total, value=estimates[name].value)
        gains[name] = CellGain(cell, name, tuple(metric), points[name], estimates[name], total)
    return judged(gains)


def judged(gains: Mapping[str, CellGain]) -> dict[str, CellGain]:
    """Return K of the attentions in a cell with bounds and verdicts, from one family of recipes and one of tuned ones.

    ``worse`` requires the adjusted upper bound below :data:`CEILING`, ``better`` the adjusted lower bound above 102.
    """
    found = dict(gains)
    for is_tuned in (False, True):
        names = [name for name in gains if name not in ANCHORS and name.endswith(TUNED) == is_tuned]
        family = {name: gains[name].total for name in names if len(gains[name].points) > 1}
        negated = {name: dataclasses.replace(estimate, value=-estimate.value) for name, estimate in family.items()}
        above, below = upper_bounds(family, CEILING), upper_bounds(negated, -100 - MARGIN)
        for name in names:
            upper, lower = above.get(name, math.nan), -below.get(name, math.nan)
            found[name] = dataclasses.replace(gains[name], bound=upper, verdict=_judged(gains[name], lower, upper))
    return found


def _judged(gain: CellGain, lower: float, upper: float) -> Verdict:
    if len(gain.points) == 1:
        return Verdict.ONE_SEED
    if upper < CEILING:
        return Verdict.WORSE
    if lower > 100 + MARGIN:
        return Verdict.BETTER
    if len(gain.points) >= MIN_SEEDS and gain.estimate.variance and gain.total.is_within(MARGIN, center=100):
        return Verdict.EQUIVALENT
    return Verdict.SOLVED if min(gain.points) >= CEILING else Verdict.UNDECIDED


def suite_gains(
    results: Sequence[CellResults], reference: Sequence[CellResults] | None = None
) -> dict[Key, dict[str, CellGain]]:
    """Return K by cell and attention; see :func:`cell_gains` for ``reference``."""
    families = {each.cell.key: each for each in reference or ()}
    return {each.cell.key: cell_gains(each, families.get(each.cell.key)) for each in results}


def gain_text(gain: CellGain) -> str:
    """Format K of a cell with its marks: still learning, a single seed, diverged runs, fewer slots than facts."""
    bound = "≥ " if gain.is_lower_bound else ""
    marks = {ONE_SEED_MARK: len(gain.points) == 1, DIVERGED_MARK: gain.diverged, SLOTS_MARK: gain.slots}
    signs = "".join(mark for mark, is_shown in marks.items() if is_shown)
    return f"{bound}{round(gain.estimate.value, 1) + 0.0:.1f}{signs}"
