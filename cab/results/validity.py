"""Validation of the suite: whether a cell measures attention, and whether it grades attentions."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cab.files.text_table import read_csv
from cab.results import cells
from cab.results.cells import ANCHORS, NO_ATTENTION, SOFTMAX, SUITE, TUNED, Anchors, Key, SuiteCell
from cab.results.retained import baselines_of, by_cell, judged, points_of
from cab.results.statistics import CONFIDENCE, EQUIVALENCE_MARGIN, Estimate, Verdict, difference, weighted_sum

if TYPE_CHECKING:
    import pandas as pd

MIN_GAP = 0.2
"""Minimum share of the range from trivial baseline to best attention that is lost without attention."""
MIN_DIFFERENT_PAIRS = 0.5
"""Minimum share of pairs that differ significantly. The share is judged and no single pair, so the tests are not
corrected for their number."""
MIN_GRADED = 0.5
"""Minimum share of attentions with K from 5 to 95."""
FEWEST_GRADED = 4
"""Minimum number of attentions besides the anchors, for a judgment of how a cell grades."""
WINDOWED = "local"
BOUNDED_STATES = ("linear", "cosformer", "performer", "abc", "s4d")
"""Attentions that decode with a constant-size state."""
YES, NOT_JUDGED = "yes", "not judged"
INVALID_FILE = SUITE / "invalid.csv"
"""The invalid cells according to the reference results; tools/suite/tables.py writes them."""
VALIDITY_COLUMNS = [
    *("cell", "core", "attentions", "gap_lost", "gap_low", "different_pairs", "graded", "measures", "grades"),
    *("compared", "worse"),
]


def checks_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """Validate each cell from runs of the suite (:func:`cab.results.retained.suite_runs`).

    Returns:
        One row per cell with the columns cell, core, attentions (with several seeds, besides the anchors and tuned
        ones), gap_lost (share of the range from trivial baseline to best attention that is lost without attention),
        gap_low (lower bound of its 95% interval), different_pairs (share of pairs that differ significantly, without
        ``none``), graded (share with K from 5 to 95, also of a single seed), measures and grades (``yes``, the reasons
        why not, or ``not judged``), compared (the local window and constant-size states with several seeds), worse
        (those of them that are significantly worse than softmax attention).
    """
    import pandas as pd

    rows = [check_cell(cell, cells.read_anchors().get(cell.key), of_cell) for cell, of_cell in by_cell(runs)]
    return pd.DataFrame(rows, columns=VALIDITY_COLUMNS)


def check_cell(cell: SuiteCell, anchors: Anchors | None, runs: pd.DataFrame) -> dict[str, Any]:
    """Validate one cell, and return its row of :func:`checks_frame`."""
    scored = {name: own for name, own in points_of(runs).items() if not name.endswith(TUNED)}
    points = {name: own for name, own in scored.items() if len(own) > 1}
    means = [statistics.fmean(own) for name, own in scored.items() if name not in ANCHORS]
    graded = statistics.fmean(5 <= k <= 95 for k in means) if len(means) >= FEWEST_GRADED else math.nan
    row = {"cell": str(cell), "core": "yes" if cell.core else "no", "attentions": 0, "graded": graded}
    row |= {"gap_lost": math.nan, "gap_low": math.nan, "different_pairs": math.nan, "compared": "", "worse": ""}
    baselines = baselines_of(runs, cell.metric)
    if anchors is None or min(len(anchors.test[name]) for name in ANCHORS) < 2:
        row["measures"] = f"{NOT_JUDGED}: no anchors with two seeds of {' and '.join(ANCHORS)}"
    elif not scored:
        row["measures"] = f"{NOT_JUDGED}: no results"
    elif cell.trivial_baseline not in baselines:
        row["measures"] = f"{NOT_JUDGED}: no record contains baseline {cell.trivial_baseline}"
    else:
        estimates = {name: Estimate.of(own) for name, own in points.items()}
        lost = _lost(estimates, cell.retained(anchors, baselines[cell.trivial_baseline]))
        compared = [name for name in (WINDOWED, *BOUNDED_STATES) if name in points]
        verdicts = judged({name: points[name] for name in (*ANCHORS, *compared)})
        worse = [name for name in compared if verdicts[name].verdict is Verdict.WORSE]
        low, _ = lost.interval()
        row |= {"attentions": len(points) - len(ANCHORS), "gap_lost": lost.value, "gap_low": low}
        row |= {"different_pairs": _different(estimates), "compared": " ".join(compared), "worse": " ".join(worse)}
        row["measures"] = "; ".join(_failures(cell, anchors, baselines, row)) or YES
    return row | {"grades": _grades(row)}


def _different(estimates: Mapping[str, Estimate]) -> float:
    """Return the share of pairs that differ significantly and by a relevant share of the range; NaN for few."""
    if len(estimates) < FEWEST_GRADED + len(ANCHORS):
        return math.nan
    pairs = itertools.combinations([each for name, each in estimates.items() if name != NO_ATTENTION], 2)
    return statistics.fmean(_differ(*pair) for pair in pairs)


def _differ(one: Estimate, other: Estimate) -> bool:
    clipped = [min(max(each.value, 0.0), 100.0) for each in (one, other)]
    gap = dataclasses.replace(difference(one, other), value=clipped[0] - clipped[1])
    return gap.p_value < 1 - CONFIDENCE and abs(gap.value) >= EQUIVALENCE_MARGIN


def _lost(estimates: Mapping[str, Estimate], trivial: float) -> Estimate:
    """Return what removing attention loses, relative to the range from the trivial baseline to the best attention."""
    weight = 1 / (max(each.value for each in estimates.values()) - trivial)
    return weighted_sum([(weight, estimates[SOFTMAX]), (-weight, estimates[NO_ATTENTION])])


def _failures(
    cell: SuiteCell, anchors: Anchors, baselines: Mapping[str, float], row: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the reasons why a cell does not measure attention."""
    if row["gap_low"] < MIN_GAP:
        yield (
            f"removing attention loses {row['gap_lost']:.0%} of the range from trivial to best, with a lower bound of "
            f"{row['gap_low']:.0%} (minimum {MIN_GAP:.0%})"
        )
    bound = baselines.get(cell.memory_bounded_baseline)
    softmax, without = (statistics.fmean(anchors.test[name]) for name in ANCHORS)
    if bound is not None and (softmax >= bound if softmax < without else softmax <= bound):
        yield f"{SOFTMAX} does not exceed {cell.memory_bounded_baseline}"
    if cell.long_memory and WINDOWED in row["compared"].split() and WINDOWED not in row["worse"].split():
        yield f"{WINDOWED} is not significantly worse than {SOFTMAX}"


def _grades(row: Mapping[str, Any]) -> str:
    shares = [
        (row["different_pairs"], MIN_DIFFERENT_PAIRS, "of pairs differ significantly"),
        (row["graded"], MIN_GRADED, "of attentions have K from 5 to 95"),
    ]
    if all(math.isnan(share) for share, _, _ in shares):
        return NOT_JUDGED
    return (
        "; ".join(f"{share:.0%} {text} (minimum {least:.0%})" for share, least, text in shares if share < least) or YES
    )


def missing_evidence(checks: pd.DataFrame) -> list[str]:
    """Report missing evidence in the suite: causal cells in which a window and a constant-size state are worse.

    It is not missing if none of these attentions has several seeds.
    """
    lacking = []
    causal = ("causal cell", ("CS", "CC"), WINDOWED, {WINDOWED})
    states = [(f"cell of pattern {p}", (p,), "a constant-size state", {*BOUNDED_STATES}) for p in ("CS", "CC")]
    for place, patterns, description, names in (causal, *states):
        chosen = checks[checks["cell"].str.endswith(patterns)]
        compared, worse = (names & {*" ".join(chosen[column]).split()} for column in ("compared", "worse"))
        if compared and not worse:
            lacking.append(f"no {place} in which {description} is significantly worse than {SOFTMAX}")
    return lacking


def invalid(checks: pd.DataFrame) -> dict[str, str]:
    """Return the cells that do not measure attention, with the reasons; a cell that is not judged is not among them."""
    reasons = dict(zip(checks["cell"], checks["measures"], strict=True))
    return {cell: reason for cell, reason in reasons.items() if reason != YES and not reason.startswith(NOT_JUDGED)}


@functools.cache
def invalid_cells() -> dict[Key, str]:
    """Return the cells that do not measure attention according to the reference results, with the reasons."""
    return {(row["task"], row["backbone"], row["pattern"]): row["reason"] for row in read_csv(INVALID_FILE)}
