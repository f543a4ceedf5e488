"""Validation of the suite: criteria that a cell must satisfy for its scores to measure attention."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cab.records.results import MINI_DIR, whole_records
from cab.suite.cells import CellScores, collect

MIN_EFFECT_SIZE = 10.0
"""Minimum effect size between vanilla and no attention, in pooled standard deviations over seeds."""
MIN_GAP_FRACTION = 0.2
"""Minimum share of the range from trivial baseline to best attention that is lost without attention."""
MIN_SIGNIFICANT_PAIRS = 0.5
"""Minimum share of attention pairs that differ significantly (95%)."""
MAX_SEED_SD_RATIO = 0.1
"""Maximum standard deviation over seeds relative to that over attentions."""
MIN_LEAD = 5.0
"""Minimum lead of vanilla over an attention with bounded memory, in pooled standard deviations."""
WINDOWED = "local"
BOUNDED_STATES = ("linear", "cosformer", "performer", "abc", "s4d")
"""Attentions that decode with a constant-size state."""
MIN_SEEDS = 3


@dataclass(frozen=True)
class Verdict:
    """The validation result of a cell.

    Attributes:
        effect_size: between vanilla and no attention, in pooled standard deviations.
        gap_fraction: share of the range from trivial baseline to best attention that is lost without attention.
        significant_pairs: share of attention pairs that differ significantly.
        seed_sd_ratio: pooled standard deviation over seeds relative to that over attentions.
        leads: lead of vanilla over each attention with bounded memory, in pooled standard deviations.
        failures: one line per violated criterion; empty for a cell that measures attention.
    """

    cell: str
    attentions: int
    seeds: int
    effect_size: float | None
    gap_fraction: float | None
    significant_pairs: float | None
    seed_sd_ratio: float | None
    leads: Mapping[str, float]
    failures: tuple[str, ...]


def check_cell(scores: CellScores) -> Verdict:
    """Validate one cell."""
    known = {name: values for name, values in scores.scores.items() if len(values) >= MIN_SEEDS}
    seeds = min((len(values) for values in known.values()), default=0)
    if not {"none", "vanilla"} <= known.keys():
        missing = f"fewer than {MIN_SEEDS} seeds of none or vanilla"
        return Verdict(str(scores.cell), len(known), seeds, None, None, None, None, {}, (missing,))
    means = {name: statistics.fmean(values) for name, values in known.items()}
    effect_size = distance(known["vanilla"], known["none"])
    best = max(means.values())
    trivial_baseline = scores.trivial_baseline
    gap_fraction = None if trivial_baseline is None else (means["vanilla"] - means["none"]) / (best - trivial_baseline)
    significant = significant_pairs(known)
    sd_ratio = seed_sd_ratio(known)
    names = (WINDOWED, *BOUNDED_STATES)
    leads = {name: distance(known["vanilla"], known[name]) for name in names if name in known}
    failures = []
    if effect_size < MIN_EFFECT_SIZE:
        failures.append(f"effect size of vanilla over none is {effect_size:.1f} SD (minimum {MIN_EFFECT_SIZE:g})")
    if gap_fraction is None:
        failures.append(f"no record contains baseline {scores.cell.trivial_baseline}")
    elif gap_fraction < MIN_GAP_FRACTION:
        failures.append(
            f"removing attention loses {gap_fraction:.0%} of the range from trivial to best, "
            f"minimum {MIN_GAP_FRACTION:.0%}"
        )
    if scores.memory_bounded_baseline is not None and means["vanilla"] <= scores.memory_bounded_baseline:
        failures.append(f"vanilla does not exceed {scores.cell.memory_bounded_baseline}")
    if significant < MIN_SIGNIFICANT_PAIRS:
        failures.append(
            f"{significant:.0%} of attention pairs differ significantly (minimum {MIN_SIGNIFICANT_PAIRS:.0%})"
        )
    if sd_ratio > MAX_SEED_SD_RATIO:
        failures.append(f"seed SD is {sd_ratio:.2f} of the SD across attentions (limit {MAX_SEED_SD_RATIO:g})")
    if scores.cell.long_memory and leads.get(WINDOWED, MIN_LEAD) < MIN_LEAD:
        failures.append(f"effect size of vanilla over {WINDOWED} is {leads[WINDOWED]:.1f} SD (minimum {MIN_LEAD:g})")
    return Verdict(
        str(scores.cell), len(known), seeds, effect_size, gap_fraction, significant, sd_ratio, leads, tuple(failures)
    )


@functools.cache
def cells_that_fail(reference: Path = MINI_DIR) -> dict[tuple[str, str, str], str]:
    """Return the reasons for the cells (task, backbone, pattern) that fail with the records in ``reference``."""
    checked = {
        cell.cell.key: check_cell(cell) for cell in collect(record for _, record in whole_records(reference, []))
    }
    judged = {key: verdict for key, verdict in checked.items() if verdict.effect_size is not None}
    return {key: "; ".join(verdict.failures) for key, verdict in judged.items() if verdict.failures}


def check_suite(verdicts: Sequence[Verdict]) -> list[str]:
    """Report missing evidence in the suite: causal cells in which a window and a constant-size state are worse."""
    lacking = []
    causal = [verdict for verdict in verdicts if verdict.cell.endswith(("CS", "CC"))]
    if not any(verdict.leads.get(WINDOWED, 0.0) >= MIN_LEAD for verdict in causal):
        lacking.append(f"no causal cell in which {WINDOWED} is clearly worse than vanilla")
    for pattern in ("CS", "CC"):
        cells = [verdict for verdict in causal if verdict.cell.endswith(pattern)]
        leads = (verdict.leads.get(name, 0.0) for verdict in cells for name in BOUNDED_STATES)
        if not any(value >= MIN_LEAD for value in leads):
            lacking.append(f"no cell of pattern {pattern} in which a constant-size state is clearly worse than vanilla")
    return lacking


def distance(better: Sequence[float], worse: Sequence[float]) -> float:
    """Return the difference of the means in pooled standard deviations."""
    pooled = ((statistics.variance(better) + statistics.variance(worse)) / 2) ** 0.5
    difference = statistics.fmean(better) - statistics.fmean(worse)
    return difference / pooled if pooled else float("inf") * difference if difference else 0.0


def significant_pairs(scores: Mapping[str, Sequence[float]]) -> float:
    """Return the share of attention pairs whose means differ significantly (95%, Welch's test); 1 without pairs."""
    from scipy.stats import ttest_ind

    pairs = list(itertools.combinations(scores.values(), 2))
    differ = [
        statistics.fmean(a) != statistics.fmean(b) and ttest_ind(a, b, equal_var=False).pvalue < 0.05 for a, b in pairs
    ]
    return sum(differ) / len(differ) if differ else 1.0


def seed_sd_ratio(scores: Mapping[str, Sequence[float]]) -> float:
    """Return the pooled standard deviation over seeds relative to that of the attentions' means."""
    within = statistics.fmean(statistics.variance(values) for values in scores.values()) ** 0.5
    between = statistics.stdev(statistics.fmean(values) for values in scores.values())
    return within / between if between else float("inf")
