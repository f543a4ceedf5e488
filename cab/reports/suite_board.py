"""The board of the suite: K per pattern, cost and verification of each attention, and the main finding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cab.files.disk import sanitize_table, sanitize_text
from cab.records.record import REFERENCE_DIRS, Record, Status
from cab.registry.registries import ATTENTIONS
from cab.scoring.costs import LENGTH, RUNS as COST_RUNS, MeasuredCost, cost_hardware, measured_costs
from cab.scoring.normalization import SOFTMAX_VARIANTS
from cab.scoring.statistics import Verdict
from cab.suite.cells import ANCHORS, NO_ATTENTION, SOFTMAX, CellResults, collect
from cab.suite.check import invalid_cells
from cab.suite.gain import SOLVED, PatternGain, SuiteGains, suite_gains
from cab.suite.tuning import TUNED
from cab.suite.verdict import GainRow, gain_rows

COST_PATTERNS = tuple(COST_RUNS)
"""Patterns in which costs are measured; only the causal one has a decode state."""
CLEARLY_FASTER = 0.9
"""Time relative to softmax's up to which an attention is clearly faster: measurements vary by a few percent."""
CSV_FILE = "suite.csv"
FRONTIER_COSTS = {
    "time": (f"time of a forward pass at {LENGTH:,} tokens, relative to softmax", 1),
    "state_bytes": (f"decode state at {LENGTH:,} tokens, KiB", 1024),
}
"""Attributes of :class:`MeasuredCost` against which K is drawn, with their labels and units."""
HIDDEN = ("worst_cell_seeds",)
"""Columns of the board that are not written to the CSV file."""


@dataclass(frozen=True)
class SuiteBoard:
    """K of all attentions, from which table, page and CSV file are made.

    Attributes:
        results: the results by cell.
        table: one row per attention with results in a core cell, best first. Columns attention; own, whether it has
            results besides the bundled reference results; ``PATTERN.K``, its interval ``low`` and ``high``, ``cells``
            with results of ``core_cells``, ``seeds`` and ``not_worse_than_best``; worst_cell and its K and seeds;
            solved of all ``runs`` in core cells, usable_rates; verified; costs.
    """

    gains: SuiteGains
    results: list[CellResults]
    table: pd.DataFrame

    @property
    def patterns(self) -> list[str]:
        """The patterns with core cells that have results."""
        return [pattern for pattern, gains in self.gains.patterns.items() if gains]

    @property
    def runs(self) -> list[Record]:
        """All runs that are shown."""
        return [run for cell in self.results for seeds in cell.runs.values() for run in seeds.values()]


def suite_board(results: pd.DataFrame) -> SuiteBoard | None:
    """Return the board of the suite's results in ``results``; None if there are none.

    Args:
        results: table returned by :func:`cab.load_results`.
    """
    runs = results[results["record"].notna()].drop_duplicates("file")
    cells = collect(runs["record"])
    if not any(cell.runs for cell in cells):
        return None
    gains = suite_gains(cells, invalid_cells())
    patterns: dict[str, dict[str, GainRow]] = {}
    for pattern in gains.patterns:
        for row in gain_rows(gains, pattern):
            patterns.setdefault(row.gain.attention, {})[pattern] = row
    others = runs[[Path(file).parent.resolve() not in REFERENCE_DIRS for file in runs["file"]]]
    own = set(others["attention"]) - set(ANCHORS) if len(others) < len(runs) else set()
    params = _relative_params(cells, runs["record"])
    columns = [pattern for pattern, names in gains.patterns.items() if names]
    rows = [
        {"attention": name, "own": name in own} | _quality(rows, columns) | _costs(name, params.get(name, math.nan))
        for name, rows in sorted(patterns.items(), key=_order)
    ]
    return SuiteBoard(gains, cells, pd.DataFrame(rows))


def _order(item: tuple[str, Mapping[str, GainRow]]) -> tuple[bool, float, int, str]:
    """Sort by mean K over the patterns with all core cells; attentions without any such pattern come last."""
    name, rows = item
    known = [row.gain.estimate.value for row in rows.values() if row.gain.estimate]
    cells = sum(len(row.gain.cells) for row in rows.values())
    return not known, -statistics.fmean(known) if known else 0.0, -cells, name


def _quality(rows: Mapping[str, GainRow], patterns: Sequence[str]) -> dict[str, Any]:
    """Return the columns of K and verification of an attention with these results by pattern."""
    fields: dict[str, Any] = {}
    names = ("K", "low", "high", "cells", "core_cells", "seeds", "not_worse_than_best")
    for pattern in patterns:
        values: tuple[Any, ...] = (None,) * len(names)
        if pattern in rows:
            gain = rows[pattern].gain
            share = gain.estimate.value if gain.estimate else None
            values = (share, *gain.interval, len(gain.cells), gain.core, gain.seeds, rows[pattern].is_best)
        fields |= {f"{pattern}.{name}": value for name, value in zip(names, values, strict=True)}
    gains = [row.gain for row in rows.values()]
    worst = min((gain.worst for gain in gains), key=lambda cell: cell.estimate.value)
    points = [point for gain in gains for cell in gain.cells for point in cell.points]
    verdicts = {gain.verified for gain in gains}
    return fields | {
        "worst_cell": str(worst.cell),
        "worst_cell_K": worst.estimate.value,
        "worst_cell_seeds": len(worst.points),
        "solved": sum(point >= SOLVED for point in points),
        "runs": len(points),
        "usable_rates": min((gain.usable_rates for gain in gains if gain.usable_rates is not None), default=None),
        "verified": next(verdict for verdict in ("no", "unknown", "yes") if verdict in verdicts),
    }


def _costs(name: str, params: float) -> dict[str, Any]:
    """Return the columns of cost and complexity of an attention; a tuned learning rate changes neither."""
    code = name.removesuffix(TUNED)
    costs = {pattern: measured_costs().get((code, pattern), MeasuredCost()) for pattern in COST_PATTERNS}
    fields: dict[str, Any] = {
        f"{pattern}.{name}_{LENGTH}_vs_softmax": getattr(costs[pattern], name)
        for name in ("time", "memory")
        for pattern in COST_PATTERNS
    }
    decoding = costs["CS"]
    return fields | {
        "decode_ms_per_token": decoding.decode_ms,
        "state_bytes": decoding.state_bytes,
        "constant_state": decoding.has_constant_state if decoding.state_bytes else None,
        "parameters_vs_softmax": params,
        "complexity": ATTENTIONS.get(code).complexity if code in ATTENTIONS.names() else "",
    }


def _relative_params(cells: Sequence[CellResults], records: Iterable[Record]) -> dict[str, float]:
    """Return the mean over runs of the number of parameters relative to vanilla's in the same cell."""
    softmax: dict[tuple[str, ...], int] = {}
    for record in records:
        if record.cell["attention"] == SOFTMAX and record.cost.params:
            softmax |= {cell.cell.key: record.cost.params for cell in cells if cell.cell.includes(record)}
    ratios: dict[str, list[float]] = {SOFTMAX: [1.0]} if softmax else {}
    for cell in cells:
        for name, runs in cell.runs.items() if cell.cell.key in softmax else ():
            params = [run.cost.params / softmax[cell.cell.key] for run in runs.values() if run.cost.params]
            ratios.setdefault(name, []).extend(params)
    return {name: statistics.fmean(values) for name, values in ratios.items() if values}


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
    names = {name.removesuffix(TUNED) for name in board.table["attention"]} - set(ANCHORS)
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


def write_suite_csv(board: SuiteBoard, out: Path) -> Path:
    """Write the table of the board into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / CSV_FILE
    sanitize_table(board.table.drop(columns=[*HIDDEN])).to_csv(path, index=False)
    return path


def frontier_points(board: SuiteBoard, pattern: str, attribute: str) -> dict[str, tuple[float, float]]:
    """Return cost and K of each attention that has both; ``attribute`` is one of :data:`FRONTIER_COSTS`."""
    points = {}
    for name, gain in board.gains.patterns[pattern].items():
        cost = getattr(measured_costs().get((name.removesuffix(TUNED), pattern), MeasuredCost()), attribute)
        if gain.estimate and cost and name != NO_ATTENTION:
            points[sanitize_text(name)] = (cost / FRONTIER_COSTS[attribute][1], gain.estimate.value)
    return points


def single_seeds(board: SuiteBoard, pattern: str) -> set[str]:
    """Return the attentions with a single seed in any core cell of the pattern."""
    gains = board.gains.patterns[pattern].items()
    return {sanitize_text(name) for name, gain in gains if gain.seeds == 1}
