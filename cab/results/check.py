"""Validation of the suite: whether a cell measures attention, and whether it grades attentions."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cab.records.record import REFERENCE_DIRS
from cab.results import cells
from cab.results.cells import ANCHORS, NO_ATTENTION, SOFTMAX, TUNED, Anchors, Key, SuiteCell
from cab.results.gain import judged
from cab.results.runs import baselines_of, by_cell, points_of, read_runs, retained
from cab.results.statistics import CONFIDENCE, MARGIN, Estimate, Verdict, difference, weighted_sum

if TYPE_CHECKING:
    import pandas as pd

MIN_GAP = 0.2
"""Minimum share of the range from trivial baseline to best attention that is lost without attention."""
MIN_DIFFERENT_PAIRS = 0.5
"""Minimum share of pairs that differ significantly. The share is judged and no single pair, so the tests are not
corrected for their number."""
MIN_GRADED = 0.5
"""Minimum share of attentions with K from 5 to 95."""
MIN_ATTENTIONS = 4
"""Minimum number of attentions besides the anchors, for a judgment of how a cell grades."""
WINDOWED = "local"
BOUNDED_STATES = ("linear", "cosformer", "performer", "abc", "s4d")
"""Attentions that decode with a constant-size state."""


@dataclass(frozen=True)
class CellCheck:
    """The validation result of a cell.

    Attributes:
        attentions: number of attentions with several seeds besides the anchors and tuned ones.
        gap: share of the range from trivial baseline to best attention that is lost without attention.
        different: share of pairs that differ significantly, without pairs with ``none``; None if not judged.
        graded: share of attentions besides the anchors with K from 5 to 95, also of a single seed; None if not judged.
        compared: of the local window and the constant-size states, those that are compared with softmax attention.
        failures: reasons why the cell does not measure attention.
        flaws: reasons why the cell does not grade attentions; None if not judged.
        unknown: reason why it is not judged whether the cell measures attention.
    """

    cell: SuiteCell
    attentions: int = 0
    gap: Estimate | None = None
    different: float | None = None
    graded: float | None = None
    compared: frozenset[str] = frozenset()
    worse_than_softmax: frozenset[str] = frozenset()
    failures: tuple[str, ...] = ()
    flaws: tuple[str, ...] | None = None
    unknown: str = ""

    @property
    def measures(self) -> bool | None:
        """Whether the cell measures attention; None if that is not judged."""
        return None if self.unknown else not self.failures


def check_cells(runs: pd.DataFrame) -> list[CellCheck]:
    """Validate each cell from runs of the suite (:func:`cab.results.runs.suite_runs`)."""
    return [check_cell(cell, cells.read_anchors().get(cell.key), of_cell) for cell, of_cell in by_cell(runs)]


def check_cell(cell: SuiteCell, anchors: Anchors | None, runs: pd.DataFrame) -> CellCheck:
    """Validate one cell from its runs."""
    scored = {name: own for name, own in points_of(runs).items() if not name.endswith(TUNED)}
    means = [statistics.fmean(own) for name, own in scored.items() if name not in ANCHORS]
    graded = statistics.fmean(5 <= k <= 95 for k in means) if len(means) >= MIN_ATTENTIONS else None
    baselines, unknown = baselines_of(runs, cell.metric), ""
    if anchors is None or min(len(anchors.test[name]) for name in ANCHORS) < 2:
        unknown = f"no anchors with two seeds of {' and '.join(ANCHORS)}"
    elif not scored:
        unknown = "no results"
    elif cell.trivial_baseline not in baselines:
        unknown = f"no record contains baseline {cell.trivial_baseline}"
    if unknown or anchors is None:
        return CellCheck(cell, graded=graded, flaws=_flaws(None, graded), unknown=unknown)
    points = {name: own for name, own in scored.items() if len(own) > 1}
    compared = [name for name in (WINDOWED, *BOUNDED_STATES) if name in points]
    verdicts = judged({name: points[name] for name in (*ANCHORS, *compared)})
    worse = frozenset(name for name in compared if verdicts[name].verdict is Verdict.WORSE)
    estimates = {name: Estimate.of(own) for name, own in points.items()}
    pairs = itertools.combinations([each for name, each in estimates.items() if name != NO_ATTENTION], 2)
    attentions = len(points) - len(ANCHORS)
    different = statistics.fmean(_differ(*pair) for pair in pairs) if attentions >= MIN_ATTENTIONS else None
    lost = _lost(estimates, retained(cell, anchors, baselines[cell.trivial_baseline]))
    return CellCheck(
        cell,
        attentions=attentions,
        gap=lost,
        different=different,
        graded=graded,
        compared=frozenset(compared),
        worse_than_softmax=worse,
        failures=tuple(
            _failures(cell, anchors, baselines.get(cell.memory_bounded_baseline), lost, {*compared} - worse)
        ),
        flaws=_flaws(different, graded),
    )


def _differ(one: Estimate, other: Estimate) -> bool:
    gap = difference(one, other)
    gap = dataclasses.replace(gap, value=_clipped(one) - _clipped(other))
    return gap.p_value < 1 - CONFIDENCE and abs(gap.value) >= MARGIN


def _clipped(k: Estimate) -> float:
    return min(max(k.value, 0.0), 100.0)


def _lost(estimates: Mapping[str, Estimate], trivial: float) -> Estimate:
    """Return what removing attention loses, relative to the range from the trivial baseline to the best attention."""
    weight = 1 / (max(each.value for each in estimates.values()) - trivial)
    return weighted_sum([(weight, estimates[SOFTMAX]), (-weight, estimates[NO_ATTENTION])])


def _failures(
    cell: SuiteCell, anchors: Anchors, bound: float | None, lost: Estimate, not_worse: Collection[str]
) -> Iterator[str]:
    """Yield the reasons why a cell does not measure attention; ``bound`` is the memory-bounded baseline."""
    low, _ = lost.interval()
    if low < MIN_GAP:
        yield (
            f"removing attention loses {lost.value:.0%} of the range from trivial to best, with a lower bound of "
            f"{low:.0%} (minimum {MIN_GAP:.0%})"
        )
    softmax, without = (statistics.fmean(anchors.test[name]) for name in ANCHORS)
    if bound is not None and (softmax >= bound if softmax < without else softmax <= bound):
        yield f"{SOFTMAX} does not exceed {cell.memory_bounded_baseline}"
    if cell.long_memory and WINDOWED in not_worse:
        yield f"{WINDOWED} is not significantly worse than {SOFTMAX}"


def _flaws(different: float | None, graded: float | None) -> tuple[str, ...] | None:
    shares = [
        (different, MIN_DIFFERENT_PAIRS, "of pairs differ significantly"),
        (graded, MIN_GRADED, "of attentions have K from 5 to 95"),
    ]
    judged = [(share, least, text) for share, least, text in shares if share is not None]
    flaws = tuple(f"{share:.0%} {text} (minimum {least:.0%})" for share, least, text in judged if share < least)
    return flaws if judged else None


def check_suite(checks: Sequence[CellCheck]) -> list[str]:
    """Report missing evidence in the suite: causal cells in which a window and a constant-size state are worse.

    It is not missing if none of these attentions has several seeds.
    """
    lacking = []
    causal = ("causal cell", ("CS", "CC"), WINDOWED, {WINDOWED})
    states = [(f"cell of pattern {p}", (p,), "a constant-size state", {*BOUNDED_STATES}) for p in ("CS", "CC")]
    for place, patterns, description, names in (causal, *states):
        chosen = [check for check in checks if check.cell.pattern in patterns]
        compared = any(names & check.compared for check in chosen)
        if compared and not any(names & check.worse_than_softmax for check in chosen):
            lacking.append(f"no {place} in which {description} is significantly worse than {SOFTMAX}")
    return lacking


@functools.cache
def invalid_cells(reference: tuple[Path, ...] = REFERENCE_DIRS) -> dict[Key, str]:
    """Return the cells that do not measure attention according to ``reference``, with reasons; see :func:`check_cell`.

    A cell that is not judged is not among them.
    """
    checks = check_cells(read_runs(reference))
    return {check.cell.key: "; ".join(check.failures) for check in checks if check.failures}


CHECKS = ["cell", "core", "attentions", "gap_lost", "gap_low", "different_pairs", "graded", "measures", "grades"]


def checks_frame(checks: Sequence[CellCheck]) -> pd.DataFrame:
    """Return one row per cell.

    Returns:
        Columns cell, core, attentions (with several seeds, besides vanilla and none), gap_lost (share of the range from
        trivial baseline to best attention that is lost without attention), gap_low (lower bound of its 95% interval),
        different_pairs (share of pairs that differ significantly), graded (share with K from 5 to 95), measures,
        grades.
    """
    import pandas as pd

    rows = []
    for check in checks:
        gap, low = (check.gap.value, check.gap.interval()[0]) if check.gap else (math.nan, math.nan)
        shares = [math.nan if share is None else share for share in (check.different, check.graded)]
        measures = check.unknown or "; ".join(check.failures) or "yes"
        grades = "not judged" if check.flaws is None else "; ".join(check.flaws) or "yes"
        core = "yes" if check.cell.core else "no"
        rows.append((str(check.cell), core, check.attentions, gap, low, *shares, measures, grades))
    return pd.DataFrame(rows, columns=CHECKS)
