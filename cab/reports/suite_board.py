"""The board of the suite: K per pattern, cost and verification of each attention, and the main finding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cab.files.disk import sanitize_text
from cab.records.record import REFERENCE_DIRS, Record, Status
from cab.registry.registries import ATTENTIONS
from cab.scoring.costs import (
    LENGTH,
    RUNS as COST_RUNS,
    Costs,
    MeasuredCost,
    cost_hardware,
    cost_name,
    cost_of,
    has_committed_cost,
    measured_costs,
)
from cab.scoring.normalization import SOFTMAX_VARIANTS
from cab.scoring.statistics import Verdict
from cab.suite.cells import ANCHORS, NO_ATTENTION, SOFTMAX, CellResults, collect
from cab.suite.check import invalid_cells
from cab.suite.gain import SOLVED, PatternGain, SuiteGains, suite_gains
from cab.suite.tuning import TUNED
from cab.suite.verdict import GainRow, gain_rows

COST_PATTERNS = tuple(COST_RUNS)
"""Patterns in which costs are measured; only the causal one has a decode state."""
FRONTIER_COSTS = {
    "time": (f"time of a forward pass at {LENGTH:,} tokens, relative to softmax", 1),
    "state_bytes": (f"decode state at {LENGTH:,} tokens, KiB", 1024),
}
"""Attributes of :class:`MeasuredCost` against which K is drawn, with their labels and units."""


@dataclass(frozen=True)
class SuiteBoard:
    """K of all attentions, from which table, page and CSV file are made.

    Attributes:
        results: the results by cell.
        table: one row per attention with results in a core cell, best first. Columns attention; own, whether it has
            results besides the bundled reference results; ``PATTERN.K``, its interval ``low`` and ``high``, ``cells``
            with results of ``core_cells``, ``seeds`` and ``not_worse_than_best``; worst_cell and its K and seeds;
            solved of all ``runs`` in core cells, usable_rates; verified; costs.
        costs: by attention and pattern.
    """

    gains: SuiteGains
    results: list[CellResults]
    table: pd.DataFrame
    costs: Costs

    @property
    def patterns(self) -> list[str]:
        """The patterns with core cells that have results."""
        return [pattern for pattern, gains in self.gains.patterns.items() if gains]

    @property
    def csv(self) -> pd.DataFrame:
        """The columns of ``suite.csv``."""
        return self.table.drop(columns="worst_cell_seeds")


def suite_board(results: pd.DataFrame, costs: Costs | None = None) -> SuiteBoard | None:
    """Return the board of the suite's results in a table of :func:`cab.load_results`; None without results.

    ``costs`` are those of attentions without a committed cost; they replace the costs stored with the results.
    """
    runs = results[results["record"].notna()].drop_duplicates("file")
    cells = collect(runs["record"])
    if not any(cell.runs for cell in cells):
        return None
    gains = suite_gains(cells, invalid_cells())
    of_attention: dict[str, dict[str, GainRow]] = {}
    for pattern in gains.patterns:
        for row in gain_rows(gains, pattern):
            of_attention.setdefault(row.gain.attention, {})[pattern] = row
    is_own = [Path(file).parent.resolve() not in REFERENCE_DIRS for file in runs["file"]]
    own = set() if all(is_own) else set(runs["attention"][is_own]) - set(ANCHORS)
    params = _relative_params(cells, runs["record"])
    patterns = [pattern for pattern, names in gains.patterns.items() if names]
    known = {**_stored_costs(runs), **(costs or {}), **measured_costs()}
    rows = [
        {
            **{"attention": name, "own": name in own},
            **_quality(rows, patterns),
            **_costs(known, name, params.get(name, math.nan)),
        }
        for name, rows in sorted(of_attention.items(), key=_order)
    ]
    return SuiteBoard(gains, cells, pd.DataFrame(rows), known)


def _stored_costs(runs: pd.DataFrame) -> Costs:
    """Return the costs of attentions that `cab run suite=core` stored with their results."""
    measured = {}
    for name, file, record in runs[["attention", "file", "record"]].itertuples(index=False, name=None):
        key = str(name).removesuffix(TUNED), record.cell["pattern"]
        if key not in measured and not has_committed_cost(cost_name(record)):
            measured[key] = cost_of(record, Path(file).parent)
    return measured


def _order(item: tuple[str, Mapping[str, GainRow]]) -> tuple[bool, float, int, str]:
    """Sort by mean K over the patterns with all core cells; attentions without any such pattern come last."""
    name, rows = item
    shares = [row.gain.estimate.value for row in rows.values() if row.gain.estimate]
    cells = sum(len(row.gain.cells) for row in rows.values())
    return not shares, -statistics.fmean(shares) if shares else 0.0, -cells, name


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


def _cost(costs: Costs, attention: str, pattern: str) -> MeasuredCost:
    """Return the cost of an attention in a pattern; a tuned learning rate does not change it."""
    return costs.get((attention.removesuffix(TUNED), pattern), MeasuredCost())


def _complexity(costs: Costs, attention: str) -> str:
    """Return the declared complexity; an empty string for a class in a file that is not measured."""
    name = attention.removesuffix(TUNED)
    if name in ATTENTIONS.names():
        return ATTENTIONS.get(name).complexity
    return next((cost.complexity for (measured, _), cost in costs.items() if measured == name), "")


def _costs(costs: Costs, name: str, params: float) -> dict[str, Any]:
    """Return the columns of cost and complexity of an attention."""
    relative = {
        f"{pattern}.{resource}_{LENGTH}_vs_softmax": getattr(_cost(costs, name, pattern), resource)
        for resource in ("time", "memory")
        for pattern in COST_PATTERNS
    }
    decoding = _cost(costs, name, "CS")
    return relative | {
        "decode_ms_per_token": decoding.decode_ms,
        "state_bytes": decoding.state_bytes,
        "constant_state": decoding.has_constant_state if decoding.state_bytes else None,
        "parameters_vs_softmax": params,
        "complexity": _complexity(costs, name),
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
    learning rate or a tuned one. Attentions without all core cells or with a single seed are not counted, nor are other
    implementations of softmax attention.
    """
    counts: dict[str, list[str]] = {"subquadratic": [], "other": []}
    undecided = single = 0
    for pattern in board.patterns:
        verdicts = _against_softmax(board.gains, pattern)
        complete = [gain for gain in board.gains.patterns[pattern].values() if _is_counted(gain)]
        judged = {gain.attention.removesuffix(TUNED) for gain in complete if gain.seeds > 1}
        single += len({gain.attention.removesuffix(TUNED) for gain in complete} - judged)
        matching = {name for name in judged if verdicts[name] & {Verdict.EQUIVALENT, Verdict.BETTER}}
        undecided += sum(Verdict.UNDECIDED in verdicts[name] for name in judged - matching)
        cheap = {name for name in judged if _complexity(board.costs, name) in ("n", "n log n")}
        times = [name + _time_text(board, name, pattern) for name in sorted(matching & cheap)]
        for kind, names, details in (("subquadratic", cheap, times), ("other", judged - cheap, [])):
            if names:
                count = f"{len(matching & names)} of {len(names)} in {pattern}"
                counts[kind].append(count + (f" ({'; '.join(details)})" if details else ""))
    sentences = [
        f"Of the {kind} attentions, {', '.join(of_patterns)} match softmax attention in retrieval."
        for kind, of_patterns in counts.items()
        if of_patterns
    ]
    if not sentences:
        sentences.append("No attention has results with several seeds in every core cell of a pattern.")
    if undecided:
        sentences.append(f"Undecided: {undecided}.")
    if single:
        sentences.append(f"Not counted: {single} result{'s' * (single != 1)} with a single seed.")
    return sanitize_text(" ".join(sentences))


def _is_counted(gain: PatternGain) -> bool:
    """Return whether :func:`main_finding` counts an attention."""
    return gain.is_complete and gain.attention not in (*ANCHORS, *SOFTMAX_VARIANTS)


def _against_softmax(gains: SuiteGains, pattern: str) -> dict[str, set[Verdict]]:
    """Return the verdicts on each attention against softmax attention: on the recipe, and on its tuned row if any."""
    verdicts: dict[str, set[Verdict]] = {}
    for (one, other), verdict in gains.verdicts(pattern).items():
        if SOFTMAX in (one, other):
            name, verdict = (other, verdict.reverse) if one == SOFTMAX else (one, verdict)
            verdicts.setdefault(name.removesuffix(TUNED), set()).add(verdict)
    return verdicts


def _time_text(board: SuiteBoard, attention: str, pattern: str) -> str:
    time = _cost(board.costs, attention, pattern).time
    return f", {time:.2f} times softmax's time at {LENGTH:,} tokens" if time else ""


def board_facts(board: SuiteBoard) -> Iterator[str]:
    """Yield number, date and hardware of the runs, and the hardware of the cost measurements."""
    runs = [run for cell in board.results for seeds in cell.runs.values() for run in seeds.values()]
    runs = [run for run in runs if run.status is Status.FINISHED]
    names = {name.removesuffix(TUNED) for name in board.table["attention"]} - set(ANCHORS)
    yield f"{len(names)} attentions besides {' and '.join(ANCHORS)}, {len(runs)} runs"
    dates = sorted({run.started[:10] for run in runs if run.started})
    if dates:
        machines = " and ".join(sorted({_machine(run.hardware) for run in runs}))
        yield f"trained {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {machines}"
    yield f"costs measured on {' and '.join(cost_hardware())}"


def _machine(hardware: Mapping[str, Any]) -> str:
    device = hardware.get("device")
    name = hardware.get("cpu" if device == "cpu" else "gpu") or device or "unknown hardware"
    threads = hardware.get("threads")
    return sanitize_text(f"{name}, {threads} thread{'s' * (threads != 1)}" if threads else name)


def frontier_points(board: SuiteBoard, pattern: str, attribute: str) -> dict[str, tuple[float, float]]:
    """Return cost and K of each attention that has both; ``attribute`` is one of :data:`FRONTIER_COSTS`."""
    points = {}
    for name, gain in board.gains.patterns[pattern].items():
        cost = getattr(_cost(board.costs, name, pattern), attribute)
        if gain.estimate and cost and name != NO_ATTENTION:
            points[sanitize_text(name)] = (cost / FRONTIER_COSTS[attribute][1], gain.estimate.value)
    return points


def single_seeds(board: SuiteBoard, pattern: str) -> set[str]:
    """Return the attentions with a single seed in any core cell of the pattern."""
    return {sanitize_text(name) for name, gain in board.gains.patterns[pattern].items() if gain.seeds == 1}
