"""The table of K: one row per attention and pattern, from which commands, CSV files and the page are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cab.records.results import mark_unverified
from cab.scoring.statistics import ONE_SEED_MARK, Estimate, rank_range
from cab.suite.gain import CellGain, PatternGain, SuiteGains
from cab.suite.tuning import FACTORS, TUNED

HEADER = (
    *("attention", "K", "95% interval", "rank", "worst cell", "K there", "solved", "seeds"),
    *("error / vanilla", "steps to solve", "usable rates"),
)
ALIGN = "lrrrlrrrrrr"


@dataclass(frozen=True)
class GainRow:
    """One row of the table.

    Attributes:
        gain: K of the attention in the pattern.
        rank: best and worst rank among the attentions with K that are not tuned; None without K.
    """

    gain: PatternGain
    rank: tuple[int, int] | None

    @property
    def is_best(self) -> bool:
        """Whether K is not significantly smaller than that of any attention; False with a single seed."""
        return self.rank is not None and self.rank[0] == 1 and not seed_mark(self.gain)

    @property
    def error(self) -> float:
        """Error relative to vanilla's in the worst of the cells at the ceiling; NaN if there is no such cell."""
        errors = [math.exp(cell.error.value) for cell in self.gain.cells if cell.error and cell.is_at_ceiling]
        return max(errors, default=math.nan)

    @property
    def texts(self) -> list[str]:
        """The cells of the table, in the order of :data:`HEADER`."""
        gain, worst = self.gain, self.gain.worst
        return [
            mark_unverified(gain.attention, gain.verified),
            gain_text(gain),
            interval_text(*gain.interval),
            rank_text(self.rank),
            str(worst.cell),
            cell_text(worst),
            gain.solved,
            str(gain.seeds),
            "-" if math.isnan(self.error) else f"{self.error:.2f}",
            steps_text(gain.steps) if gain.steps else "-",
            rates_text(gain.usable_rates),
        ]


def gain_rows(gains: SuiteGains, pattern: str) -> list[GainRow]:
    """Return the rows of one pattern, in the order of K."""
    own = gains.patterns[pattern]
    fixed = {name for name, gain in own.items() if gain.is_complete and not name.endswith(TUNED)}
    verdicts = gains.verdicts(pattern)

    def rank(name: str) -> tuple[int, int]:
        return rank_range(name, {pair: each for pair, each in verdicts.items() if set(pair) <= {*fixed, name}})

    return [GainRow(gain, rank(name) if gain.is_complete else None) for name, gain in own.items()]


def gain_text(gain: PatternGain) -> str:
    """Format K of a pattern, or the number of core cells with results if K requires more."""
    if gain.estimate is None:
        return f"{len(gain.cells)} of {gain.core} cells{seed_mark(gain)}"
    return f"{gain.estimate.value:.1f}{seed_mark(gain)}"


def cell_text(cell: CellGain) -> str:
    """Format K of one cell."""
    return f"{round(cell.own.value, 1) + 0.0:.1f}{ONE_SEED_MARK if len(cell.points) == 1 else ''}"


def seed_mark(gain: PatternGain) -> str:
    """Return the mark of a result with a single seed in any cell, else an empty string."""
    return ONE_SEED_MARK if gain.seeds == 1 else ""


def interval_text(low: float, high: float) -> str:
    """Format the interval of K."""
    return "-" if math.isnan(low) else f"[{low:.1f}, {high:.1f}]"


def steps_text(steps: Estimate) -> str:
    """Format a number of steps with its interval."""
    low, high = steps.interval()
    return f"{steps.value:,.0f}" + ("" if math.isnan(low) else f" [{max(low, 0):,.0f}, {high:,.0f}]")


def rates_text(usable: int | None) -> str:
    """Format the number of usable learning rates of a grid."""
    return "-" if usable is None else f"{usable} of {len(FACTORS)}"


def rank_text(rank: tuple[int, int] | None) -> str:
    """Format a range of ranks."""
    return "-" if rank is None else f"{rank[0]}" if rank[0] == rank[1] else f"{rank[0]} to {rank[1]}"
