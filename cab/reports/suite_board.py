"""The board of the suite: K per pattern, cost and verification of each attention, and the main finding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_text
from cab.records.record import REFERENCE_DIRS, Record, Status
from cab.registry.registries import ATTENTIONS
from cab.scoring.measured_costs import LENGTH, RUNS as COST_RUNS, MeasuredCost, cost_hardware, measured_costs
from cab.scoring.normalization import SOFTMAX_VARIANTS
from cab.scoring.statistics import Verdict
from cab.suite.anchors import ATTENTIONS as ANCHORS, SOFTMAX
from cab.suite.check import invalid_cells
from cab.suite.gain import CellGain, PatternGain, SuiteGains, suite_gains
from cab.suite.results import CellResults, collect
from cab.suite.table import GainRow, gain_rows
from cab.suite.tuning import TUNED

if TYPE_CHECKING:
    import pandas as pd

COST_PATTERNS = tuple(COST_RUNS)
"""Patterns in which costs are measured; only the causal one has a decode state."""
CLEARLY_FASTER = 0.9
"""Time relative to softmax's up to which an attention is clearly faster: measurements vary by a few percent."""


@dataclass(frozen=True)
class BoardRow:
    """One attention.

    Attributes:
        is_own: whether it has results outside the bundled reference results.
        patterns: its rows in the tables of K, by pattern.
        costs: its costs in :data:`COST_PATTERNS`, by pattern.
        params: number of parameters relative to vanilla's in the same cells; NaN if unknown.
        complexity: declared growth; empty for an attention that is not registered.
    """

    attention: str
    is_own: bool
    patterns: dict[str, GainRow]
    costs: dict[str, MeasuredCost]
    params: float
    complexity: str

    @property
    def worst(self) -> CellGain:
        """The core cell with the smallest K, over all patterns."""
        return min((row.gain.worst for row in self.patterns.values()), key=lambda gain: gain.own.value)

    @property
    def decoding(self) -> MeasuredCost:
        """Its costs in pattern CS, which include those of decoding."""
        return self.costs["CS"]

    @property
    def usable_rates(self) -> int | None:
        """Smallest number of usable learning rates in any core cell; None without ``tune=true``."""
        known = [row.gain.usable_rates for row in self.patterns.values() if row.gain.usable_rates is not None]
        return min(known, default=None)

    @property
    def points(self) -> list[float]:
        """K of every run in a core cell."""
        return [point for row in self.patterns.values() for cell in row.gain.cells for point in cell.points]

    @property
    def verified(self) -> str:
        """The worst verdict on its code over its patterns: ``no``, ``unknown`` or ``yes``."""
        verdicts = {row.gain.verified for row in self.patterns.values()}
        return next(each for each in ("no", "unknown", "yes") if each in verdicts)

    @property
    def order(self) -> tuple[bool, float, int, str]:
        """Sort key: mean K over its patterns with all core cells; attentions without any such pattern come last."""
        known = [row.gain.estimate.value for row in self.patterns.values() if row.gain.estimate]
        cells = sum(len(row.gain.cells) for row in self.patterns.values())
        return not known, -statistics.fmean(known) if known else 0.0, -cells, self.attention


@dataclass(frozen=True)
class SuiteBoard:
    """K of all attentions, from which table, page and CSV file are made.

    Attributes:
        results: the results by cell.
        rows: one row per attention with results in a core cell, best first.
    """

    gains: SuiteGains
    results: list[CellResults]
    rows: list[BoardRow]

    @property
    def patterns(self) -> list[str]:
        """The patterns with core cells that have results."""
        return [pattern for pattern, own in self.gains.patterns.items() if own]

    @property
    def runs(self) -> list[Record]:
        """All runs that are shown."""
        return [run for each in self.results for own in each.runs.values() for run in own.values()]


def suite_board(results: pd.DataFrame) -> SuiteBoard | None:
    """Return the board of the suite's results in ``results``; None if there are none.

    Args:
        results: table returned by :func:`cab.load_results`.
    """
    runs = results[results["record"].notna()].drop_duplicates("file")
    found = collect(runs["record"])
    if not any(each.runs for each in found):
        return None
    gains = suite_gains(found, invalid_cells())
    patterns: dict[str, dict[str, GainRow]] = {}
    for pattern in gains.patterns:
        for row in gain_rows(gains, pattern):
            patterns.setdefault(row.gain.attention, {})[pattern] = row
    elsewhere = runs[[Path(file).parent.resolve() not in REFERENCE_DIRS for file in runs["file"]]]
    own = set(elsewhere["attention"]) - set(ANCHORS) if len(elsewhere) < len(runs) else set()
    params = _relative_params(found, runs["record"])
    rows = [_row(name, rows, params.get(name, math.nan), is_own=name in own) for name, rows in patterns.items()]
    return SuiteBoard(gains, found, sorted(rows, key=lambda row: row.order))


def _row(name: str, patterns: dict[str, GainRow], params: float, *, is_own: bool) -> BoardRow:
    code = name.removesuffix(TUNED)  # a tuned learning rate changes neither cost nor complexity
    costs = {pattern: measured_costs().get((code, pattern), MeasuredCost()) for pattern in COST_PATTERNS}
    complexity = ATTENTIONS.get(code).complexity if code in ATTENTIONS.names() else ""
    return BoardRow(name, is_own, patterns, costs, params, complexity)


def _relative_params(found: Sequence[CellResults], records: Iterable[Record]) -> dict[str, float]:
    """Return the mean over runs of the number of parameters relative to vanilla's in the same cell."""
    softmax: dict[tuple[str, ...], int] = {}
    for record in records:
        for each in found:
            if record.cell["attention"] == SOFTMAX and each.cell.includes(record) and record.cost.params:
                softmax[each.cell.key] = record.cost.params
    ratios: dict[str, list[float]] = {SOFTMAX: [1.0]} if softmax else {}
    for each in found:
        for name, runs in each.runs.items() if each.cell.key in softmax else ():
            own = [run.cost.params / softmax[each.cell.key] for run in runs.values() if run.cost.params]
            ratios.setdefault(name, []).extend(own)
    return {name: statistics.fmean(own) for name, own in ratios.items() if own}


def main_finding(board: SuiteBoard) -> str:
    """Return the main finding: how many attentions match softmax attention, the subquadratic ones and the others.

    An attention matches softmax attention in a pattern if it is equivalent or significantly better, with the recipe's
    learning rate or a tuned one. Attentions without all core cells are not counted, nor are other implementations of
    softmax attention. For patterns in which all others have a single seed, the finding is the range of K, and the
    largest K among those clearly faster than softmax.
    """
    cheap, others, untested, undecided, single = [], [], [], 0, 0
    for pattern in board.patterns:
        complete = [
            gain
            for name, gain in board.gains.patterns[pattern].items()
            if name not in (*ANCHORS, *SOFTMAX_VARIANTS) and gain.is_complete
        ]
        judged = {gain.attention.removesuffix(TUNED) for gain in complete if gain.seeds > 1}
        verdicts = _against_softmax(board.gains, pattern, judged)
        matching = {name for name, found in verdicts.items() if found & {Verdict.EQUIVALENT, Verdict.BETTER}}
        undecided += sum(Verdict.UNDECIDED in verdicts[name] for name in judged - matching)
        subquadratic = {name for name in judged if _is_subquadratic(name)}
        times = "; ".join(name + _time_text(name, pattern) for name in sorted(matching & subquadratic))
        count = f"{len(matching & subquadratic)} of {len(subquadratic)} in {pattern}"
        cheap += [f"{count} ({times})" if times else count] * bool(subquadratic)
        rest = judged - subquadratic
        others += [f"{len(matching & rest)} of {len(rest)} in {pattern}"] * bool(rest)
        single += len({gain.attention.removesuffix(TUNED) for gain in complete} - judged) if judged else 0
        untested += [complete] if complete and not judged else []
    finding = [
        f"Of the {kind} attentions, {', '.join(counts)} match softmax attention in retrieval."
        for kind, counts in (("subquadratic", cheap), ("other", others))
        if counts
    ]
    finding += [f"Undecided: {undecided}."] * bool(undecided)
    finding += [f"Not counted: {single} result{'s' * (single != 1)} with a single seed."] * bool(single)
    finding += [_range_finding(untested)] * bool(untested)
    return sanitize_text(" ".join(finding) or "No attention has results in every core cell of a pattern.")


def _against_softmax(gains: SuiteGains, pattern: str, names: Iterable[str]) -> dict[str, set[Verdict]]:
    """Return the verdicts on each attention against softmax attention: on the recipe, and on its tuned row if any."""
    verdicts = gains.verdicts(pattern)
    verdicts |= {(other, one): verdict.reverse for (one, other), verdict in verdicts.items()}
    return {
        name: {verdicts[own, SOFTMAX] for own in (name, name + TUNED) if (own, SOFTMAX) in verdicts} for name in names
    }


def _range_finding(patterns: Sequence[Sequence[PatternGain]]) -> str:
    """Return the finding for attentions with a single seed: for every pattern its attentions in the order of K."""
    ranges, fast = [], []
    for gains in patterns:
        high, low = (gain.estimate.value if gain.estimate else math.nan for gain in (gains[0], gains[-1]))
        known = f"{low:.0f} to {high:.0f}%" if len(gains) > 1 else f"{high:.0f}%"
        ranges.append(f"{known} in {gains[0].pattern} ({len(gains)} attention{'s' * (len(gains) > 1)})")
        for gain in gains:
            time = _time(gain.attention, gain.pattern)
            if gain.estimate and time is not None and time <= CLEARLY_FASTER:
                retained = f"{gain.estimate.value:.1f}%, {time:.2f} times the time"
                fast.append(f"{gain.attention} in {gain.pattern} ({retained})")
                break
    finding = f"Share of softmax's gain retained in a single seed, so not tested: {', '.join(ranges)}. "
    if fast:
        finding += f"The most among those clearly faster than softmax at {LENGTH:,} tokens: {', '.join(fast)}."
    return finding.rstrip()


def _time(attention: str, pattern: str) -> float | None:
    """Return the time at :data:`LENGTH` tokens relative to softmax attention; None if it is not measured."""
    cost = measured_costs().get((attention.removesuffix(TUNED), pattern))
    return cost.time if cost else None


def _time_text(attention: str, pattern: str) -> str:
    time = _time(attention, pattern)
    return "" if time is None else f", {time:.2f} times softmax's time at {LENGTH:,} tokens"


def _is_subquadratic(attention: str) -> bool:
    """Whether the declared complexity is below n^2; False for an attention that is not registered."""
    code = attention.removesuffix(TUNED)
    return code in ATTENTIONS.names() and ATTENTIONS.get(code).complexity in ("n", "n log n")


def board_facts(board: SuiteBoard) -> Iterator[str]:
    """Yield number, date and hardware of the runs, and the hardware of the cost measurements."""
    runs = [run for run in board.runs if run.status is Status.FINISHED]
    names = {row.attention.removesuffix(TUNED) for row in board.rows} - set(ANCHORS)
    yield f"{len(names)} attentions besides {' and '.join(ANCHORS)}, {len(runs)} runs"
    dates = sorted({run.started[:10] for run in runs if run.started})
    if dates:
        machines = sorted({_machine(run) for run in runs})
        yield f"trained {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {' and '.join(machines)}"
    yield f"costs measured on {' and '.join(cost_hardware())}"


def _machine(run: Record) -> str:
    name = run.hardware.get("cpu") if run.hardware.get("device") == "cpu" else run.hardware.get("gpu")
    threads = run.hardware.get("threads")
    parts = [name or run.hardware.get("device") or "unknown hardware"]
    parts += [f"{threads} thread{'s' * (threads != 1)}"] if threads else []
    return sanitize_text(", ".join(map(str, parts)))
