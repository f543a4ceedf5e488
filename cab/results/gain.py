"""K of an attention in a cell: the share of softmax's gain over no attention that it retains, in percent.

K is 100 (s - N) / (V - N), with the metric s on the cell's scale and the means V and N of the frozen anchors
``vanilla`` and ``none``. K is not averaged over cells, because each cell tests another ability.

The verdict on a result compares K with 100, that of softmax attention. All attentions of a cell with several seeds are
one family (Holm's correction, 5%), except for the anchors; those with tuned learning rates are another one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cab.records.record import Record
from cab.records.verified import verdict, verified_codes
from cab.results.cells import (
    ANCHORS,
    NO_ATTENTION,
    SOFTMAX,
    TUNED,
    Anchors,
    CellResults,
    Key,
    SuiteCell,
    collect,
    own_runs,
    runs_of,
)
from cab.results.statistics import MARGIN, ORDER, Estimate, Verdict, compare_pairs, upper_bounds, weighted_sum

if TYPE_CHECKING:
    import pandas as pd

MATCHING = (Verdict.SOLVED, Verdict.EQUIVALENT, Verdict.BETTER)
DECIDED = (Verdict.WORSE, Verdict.EQUIVALENT, Verdict.BETTER)
"""Verdicts that a test supports."""
SOLVED = 90.0
"""A seed has solved a cell if it retains at least this share."""
CEILING = 100 - MARGIN
"""K below this bound is a relevant loss."""
MIN_SEEDS = 5
"""Minimum number of seeds of an equivalent result: three that solve a cell are likely by chance."""
LAST_PART = 0.2
"""Last part of the budget, in which an unfinished run still gains more than :data:`MARGIN` points."""
DIVERGED = 10.0
"""Points that a diverged run loses after its best validation."""
SLOTS = ("num_landmarks", "num_inducing")
"""Options with the number of slots in which an attention stores all keys and values."""


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


GAINS = [
    *("task", "dataset", "backbone", "pattern", "ability", "core", "attention", "source", "seeds", "mean", "sd", "K"),
    *("low", "high", "bound", "solved", "verdict", "verified", "steps", "note", "unfinished", "diverged", "slots"),
]


def gains_frame(results: pd.DataFrame) -> pd.DataFrame:
    """Return K of every attention in every cell of the suite with runs in a table of :func:`cab.load_results`.

    Returns:
        Columns :data:`GAINS`. ``source`` is ``reference`` or ``own``; the anchors are among the reference results.
        ``mean`` and ``sd`` are those of the cell's metric, ``steps`` is the mean number of steps to solve the cell (NaN
        unless every seed did). ``verdict`` and ``bound`` are those of one family per cell, which each own attention
        joins alone. ``unfinished`` and ``diverged`` are numbers of seeds, ``slots`` is the remark on too few slots. A
        result without K has 0 seeds, NaN, and the reason in ``note``.
    """
    import pandas as pd

    rows = []
    for source, each, gains in _sources(results):
        rows += [_gain_row(gain, source) for gain in gains.values()]
        missing = {name: reason for name, reason in each.left_out.items() if name not in (*gains, *ANCHORS)}
        rows += [_missing_row(each.cell, name, source, reason) for name, reason in missing.items()]
    return pd.DataFrame(rows, columns=GAINS)


def gains_order(results: pd.DataFrame) -> pd.DataFrame:
    """Compare K of every two attentions in a cell, the larger K first.

    Returns:
        Columns pattern, task, and those of :func:`cab.results.statistics.compare_pairs`; one family per cell.
    """
    import pandas as pd

    cells: dict[tuple[str, str], dict[str, Estimate]] = {}
    for source, each, gains in _sources(results):
        names = {name + (" (yours)" if source == "own" else ""): gain.estimate for name, gain in gains.items()}
        cells.setdefault((each.cell.pattern, each.cell.task), {}).update(names)
    rows = []
    for key, estimates in cells.items():
        ranked = dict(sorted(estimates.items(), key=lambda item: -item[1].value))
        rows += [(*key, *row) for row in compare_pairs(ranked)]
    return pd.DataFrame(rows, columns=["pattern", "task", *ORDER])


def _sources(results: pd.DataFrame) -> Iterator[tuple[str, CellResults, dict[str, CellGain]]]:
    """Yield the reference results and the user's of each cell with results, with K of their attentions."""
    own = own_runs(results)
    references, users = (collect(_named(runs)) for runs in (runs_of(results).drop(own.index), own))
    for reference, user in zip(references, users, strict=True):
        has_results = not (reference.is_empty and user.is_empty)
        yield "reference", reference, cell_gains(reference) if has_results else {}
        gains = cell_gains(user, reference)
        yield "own", user, {name: gain for name, gain in gains.items() if name not in ANCHORS}


def _named(runs: pd.DataFrame) -> list[Record]:
    """Return the records of rows with the names that the rows have, which distinguish programs."""
    pairs = zip(runs["attention"], runs["record"], strict=True)
    return [dataclasses.replace(record, cell={**record.cell, "attention": name}) for name, record in pairs]


def _gain_row(gain: CellGain, source: str) -> dict[str, Any]:
    low, high = gain.interval
    return {
        **_place(gain.cell),
        **{"attention": gain.attention, "source": source, "seeds": len(gain.points), "mean": gain.mean},
        "sd": statistics.stdev(gain.values) if len(gain.values) > 1 else math.nan,
        **{"K": gain.estimate.value, "low": low, "high": high, "bound": gain.bound, "solved": gain.solved},
        **{"verdict": gain.verdict or "", "verified": gain.verified, "note": gain.note},
        "steps": gain.steps.value if gain.steps else math.nan,
        **{"unfinished": gain.unfinished, "diverged": gain.diverged, "slots": gain.slots},
    }


def _missing_row(cell: SuiteCell, attention: str, source: str, reason: str) -> dict[str, Any]:
    names = {"attention": attention, "source": source, "verdict": "", "verified": ""}
    counts = dict.fromkeys(("seeds", "solved", "unfinished", "diverged"), 0)
    return {**_place(cell), **names, **counts, "slots": "", "note": reason}


def _place(cell: SuiteCell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in GAINS[: GAINS.index("attention")]}


# --- what the history of a run shows ---


def validation_gains(record: Record, anchors: Anchors) -> list[tuple[int, float]]:
    """Return the steps of the validations, each with K of the validation loss; empty without anchors of the loss."""
    if not set(ANCHORS) <= anchors.validation.keys():
        return []
    softmax, without = (statistics.fmean(anchors.validation[name]) for name in ANCHORS)
    losses = [(int(entry["step"] or 0), entry.get("validation")) for entry in record.history]
    return [(step, 100 * (loss - without) / (softmax - without)) for step, loss in losses if loss is not None]


def is_unfinished(record: Record, anchors: Anchors) -> bool:
    """Return whether a run was still learning when its budget ended.

    It did not reach the threshold of its cell, and the best K of its validation loss increases by more than
    :data:`MARGIN` points in the last fifth of its steps.
    """
    gains, budget = validation_gains(record, anchors), record.config["trainer"].get("max_steps")
    early = [k for step, k in gains if budget and step <= (1 - LAST_PART) * budget]
    return bool(early) and record.cost.steps_to_solve is None and max(k for _, k in gains) - max(early) > MARGIN


def is_diverged(record: Record, anchors: Anchors) -> bool:
    """Return whether K of a run's validation loss ends more than :data:`DIVERGED` points below its best."""
    gains = [k for _, k in validation_gains(record, anchors)]
    return bool(gains) and record.cost.steps_to_solve is None and max(gains) - gains[-1] > DIVERGED


def _too_few_slots(record: Record) -> str:
    """Return a remark if an attention stores the facts of ``recall`` in fewer slots than there are facts."""
    facts = record.config["task"].get("pairs", 0)
    slots = [record.config["attention"].get(name) for name in SLOTS]
    return next((f"{count} slots for {facts} facts" for count in slots if count and count < facts), "")
