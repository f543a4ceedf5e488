"""Validation of the suite: whether a cell measures attention, and whether it grades attentions."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError
from cab.records.record import REFERENCE_DIRS
from cab.results.cells import (
    ANCHORS,
    NO_ATTENTION,
    PRESET,
    SOFTMAX,
    TUNED,
    CellResults,
    Key,
    SuiteCell,
    read_suite,
    suite_cells,
)
from cab.results.gain import CellGain, cell_gains, judged
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


def check_cell(results: CellResults) -> CellCheck:
    """Validate one cell."""
    scored = {name: gain for name, gain in cell_gains(results).items() if not name.endswith(TUNED)}
    shares = [gain.estimate.value for name, gain in scored.items() if name not in ANCHORS]
    graded = statistics.fmean(5 <= share <= 95 for share in shares) if len(shares) >= MIN_ATTENTIONS else None
    gains = {name: gain for name, gain in scored.items() if gain.estimate.is_known}
    unknown = ""
    if not set(ANCHORS) <= gains.keys():
        unknown = f"no anchors with two seeds of {' and '.join(ANCHORS)}"
    elif results.is_empty:
        unknown = "no results"
    elif results.cell.trivial_baseline not in results.baselines:
        unknown = f"no record contains baseline {results.cell.trivial_baseline}"
    if unknown:
        return CellCheck(results.cell, graded=graded, flaws=_flaws(None, graded), unknown=unknown)
    compared = [name for name in (WINDOWED, *BOUNDED_STATES) if name in gains]
    family = judged({name: gains[name] for name in compared})
    worse = frozenset(name for name, gain in family.items() if gain.verdict is Verdict.WORSE)
    others = gains.keys() - set(ANCHORS)
    lost = _lost(results, gains)
    pairs = itertools.combinations([gain for name, gain in gains.items() if name != NO_ATTENTION], 2)
    different = statistics.fmean(_differ(*pair) for pair in pairs) if len(others) >= MIN_ATTENTIONS else None
    return CellCheck(
        results.cell,
        attentions=len(others),
        gap=lost,
        different=different,
        graded=graded,
        compared=frozenset(compared),
        worse_than_softmax=worse,
        failures=tuple(_failures(results, gains, lost, worse)),
        flaws=_flaws(different, graded),
    )


def _differ(one: CellGain, other: CellGain) -> bool:
    gap = difference(one.estimate, other.estimate)
    gap = dataclasses.replace(gap, value=one.retained - other.retained)
    return gap.p_value < 1 - CONFIDENCE and abs(gap.value) >= MARGIN


def _lost(results: CellResults, gains: dict[str, CellGain]) -> Estimate:
    """Return what removing attention loses, relative to the range from the trivial baseline to the best attention."""
    cell = results.cell
    trivial = cell.scaled(results.baselines[cell.trivial_baseline])
    softmax, without = (statistics.fmean(map(cell.scaled, results.values(name))) for name in ANCHORS)
    lowest = 100 * (trivial - without) / (softmax - without)
    best = max(gain.estimate.value for gain in gains.values())
    weight = 1 / (best - lowest)
    return weighted_sum([(weight, gains[SOFTMAX].estimate), (-weight, gains[NO_ATTENTION].estimate)])


def _failures(results: CellResults, gains: dict[str, CellGain], lost: Estimate, worse: frozenset[str]) -> list[str]:
    cell, failures = results.cell, []
    low, _ = lost.interval()
    if low < MIN_GAP:
        failures.append(
            f"removing attention loses {lost.value:.0%} of the range from trivial to best, with a lower bound of "
            f"{low:.0%} (minimum {MIN_GAP:.0%})"
        )
    bound, softmax = results.baselines.get(cell.memory_bounded_baseline), gains[SOFTMAX].mean
    is_error = softmax < gains[NO_ATTENTION].mean
    if bound is not None and (softmax >= bound if is_error else softmax <= bound):
        failures.append(f"{SOFTMAX} does not exceed {cell.memory_bounded_baseline}")
    if cell.long_memory and WINDOWED in gains and WINDOWED not in worse:
        failures.append(f"{WINDOWED} is not significantly worse than {SOFTMAX}")
    return failures


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
    for cells, patterns, description, names in (causal, *states):
        chosen = [check for check in checks if check.cell.pattern in patterns]
        compared = any(names & check.compared for check in chosen)
        if compared and not any(names & check.worse_than_softmax for check in chosen):
            lacking.append(f"no {cells} in which {description} is significantly worse than {SOFTMAX}")
    return lacking


@functools.cache
def invalid_cells(reference: tuple[Path, ...] = REFERENCE_DIRS) -> dict[Key, str]:
    """Return the cells that do not measure attention according to ``reference``, with reasons; see :func:`check_cell`.

    A cell that is not judged is not among them.
    """
    checks = map(check_cell, read_suite(reference))
    return {check.cell.key: "; ".join(check.failures) for check in checks if check.failures}


def without_invalid_cells(results: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Exclude the metrics of cells that do not measure attention from every index, and return one line per cell.

    Raises:
        UserError: no other cell is left.
    """
    lines = []
    datasets = {cell.key: cell.dataset for cell in suite_cells()}
    columns = ["preset", "dataset", "task", "backbone", "pattern"]
    for key, reason in invalid_cells().items():
        in_cell = (results[columns] == [PRESET, datasets[key], *key]).all(axis=1)
        if in_cell.any():
            results = results.assign(primary=results["primary"].astype(bool) & ~in_cell)
            lines.append(f"{' '.join(key)} is excluded because it does not measure attention: {reason}")
    if lines and not results["primary"].any():
        raise UserError(f"no results to score: {'; '.join(lines)}")
    return results, tuple(lines)
