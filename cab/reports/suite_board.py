"""The board of the suite: K per pattern, cost and verification, one row per attention."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cab.files.sanitize import listed, sanitize_table, sanitize_text
from cab.records.results import REFERENCE_DIRS
from cab.records.verification_status import LEGEND, UNVERIFIED_MARK
from cab.registry.registries import ATTENTIONS
from cab.reports.card import card_id
from cab.reports.tables import Column, Entry, Row, Table, records_link
from cab.scoring.measured_costs import LENGTH, MeasuredCost, measured_costs
from cab.scoring.statistics import MARGIN, ONE_SEED_LEGEND, Verdict
from cab.suite.anchors import ATTENTIONS as ANCHORS, SOFTMAX
from cab.suite.cells import PRESET
from cab.suite.check import invalid_cells
from cab.suite.gain import SuiteGains, suite_gains
from cab.suite.results import CellResults, collect
from cab.suite.table import GainRow, cell_text, gain_rows, rank_text, seed_mark

if TYPE_CHECKING:
    import pandas as pd

    from cab.records.record import Record

CSV_COLUMNS = [
    *("pattern", "attention", "own", "verified", "K", "low", "high", "best_rank", "worst_rank", "not_worse_than_best"),
    *(
        "cells",
        "core_cells",
        "worst_cell",
        "worst_cell_K",
        "solved",
        "seeds",
        "error_vs_vanilla",
        "steps_to_solve",
        "params_vs_vanilla",
    ),
    *("complexity", f"time_{LENGTH}_vs_vanilla", f"memory_{LENGTH}_vs_vanilla", "decode_ms", "state_bytes"),
]


@dataclass(frozen=True)
class SuiteBoard:
    """K of all attentions, from which table, page and CSV file are made.

    Attributes:
        rows: the rows of :func:`cab.suite.table.gain_rows`, by attention and pattern.
        own: attentions with results outside the bundled reference results.
        params: number of parameters relative to vanilla's in the same cells, by attention and pattern.
    """

    gains: SuiteGains
    rows: dict[str, dict[str, GainRow]]
    own: frozenset[str]
    params: dict[tuple[str, str], float]

    @property
    def patterns(self) -> list[str]:
        """The patterns with core cells."""
        return list(self.gains.patterns)


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
    rows: dict[str, dict[str, GainRow]] = {}
    for pattern in gains.patterns:
        for row in gain_rows(gains, pattern):
            rows.setdefault(row.gain.attention, {})[pattern] = row
    elsewhere = runs[[Path(file).parent.resolve() not in REFERENCE_DIRS for file in runs["file"]]]
    own = frozenset(elsewhere["attention"]) if len(elsewhere) < len(runs) else frozenset()
    return SuiteBoard(gains, rows, own - set(ANCHORS), _relative_params(found, runs["record"]))


def _relative_params(found: Sequence[CellResults], records: Iterable[Record]) -> dict[tuple[str, str], float]:
    softmax = {
        tuple(record.cell[name] for name in ("task", "backbone", "pattern")): record.cost.params
        for record in records
        if record.cell["attention"] == SOFTMAX and record.cell["preset"] == PRESET
    }
    ratios: dict[tuple[str, str], list[float]] = {}
    for each in found:
        reference = softmax.get(each.cell.key)
        for name, runs in each.runs.items() if reference else ():
            own = [run.cost.params / reference for run in runs.values() if run.cost.params and reference]
            ratios.setdefault((name, each.cell.pattern), []).extend(own)
    return {key: statistics.fmean(own) for key, own in ratios.items() if own}


def main_finding(board: SuiteBoard) -> str:
    """Return the main finding in one sentence: which attentions are not significantly worse than softmax attention."""
    parts = []
    for pattern in board.patterns:
        verdicts = board.gains.verdicts(pattern)
        complete = [name for name, gain in board.gains.patterns[pattern].items() if gain.is_complete]
        rivals = [name for name in complete if name not in ANCHORS]
        close = [
            name
            for name in rivals
            if verdicts.get((SOFTMAX, name)) in (Verdict.EQUIVALENT, Verdict.UNDECIDED, Verdict.WORSE)
        ]
        if not rivals:
            continue
        parts.append(f"{pattern}: {len(close)} of {len(rivals)}{f' ({listed(close)})' if close else ''}")
    if not parts:
        return "No attention has results in every core cell of a pattern."
    return f"Not significantly worse than softmax attention on the suite's retrieval tasks: {'; '.join(parts)}."


def board_table(board: SuiteBoard) -> Table:
    """Return the table of the page: one row per attention, in the order of the mean K over its patterns."""
    columns = [
        Column("attention"),
        *(
            Column(f"K {pattern}", "↑", "share of softmax's gain retained, %; higher is better")
            for pattern in board.patterns
        ),
        Column("worst cell", hint="core cell with the smallest K"),
        Column("solved", hint="runs that retain at least 90% of softmax's gain"),
        Column("verified", hint="whether the code passed `cab verify`"),
        Column("time", "↓", f"forward pass at {LENGTH:,} tokens relative to softmax; lower is better"),
        Column("memory", "↓", f"forward pass at {LENGTH:,} tokens relative to softmax; lower is better"),
        Column("decode ms", "↓", "milliseconds per token; lower is better"),
        Column("state bytes", "↓", f"decode state at {LENGTH:,} tokens; lower is better"),
        Column("parameters", "↓", "relative to softmax; lower is better"),
        Column("complexity"),
    ]
    table = Table(
        "suite-board-table",
        "K: share of softmax attention's gain over no attention that is retained, in percent",
        columns,
        [],
    )
    rows = {name: _row(board, name, own) for name, own in board.rows.items()}
    order = sorted(rows, key=lambda name: _order(board.rows[name]))
    table.rows = [rows[name] for name in order if name not in board.own]
    table.pinned = [rows[name] for name in order if name in board.own]
    table.legend = [
        f"Small numbers: 95% interval over seeds and rank. Bold: not significantly worse than the best of the column "
        f"(Holm, 95%, at least {MARGIN:g} points; near 100, errors are compared). No K without all core cells.",
        ONE_SEED_LEGEND,
        *([LEGEND] if any(row.sign for row in rows.values()) else []),
    ]
    return table


def _order(rows: dict[str, GainRow]) -> tuple[int, float]:
    known = [row.gain.estimate.value for row in rows.values() if row.gain.estimate]
    return -len(known), -statistics.fmean(known) if known else 0.0


def _row(board: SuiteBoard, name: str, rows: dict[str, GainRow]) -> Row:
    cells = [_k_entry(rows[pattern]) if pattern in rows else Entry("") for pattern in board.patterns]
    worst = min((row.gain.worst for row in rows.values()), key=lambda gain: gain.own.value)
    verdicts = {row.gain.verified for row in rows.values()}
    verified = next(each for each in ("no", "unknown", "yes") if each in verdicts)
    solved, runs = (sum(int(row.gain.solved.split(" of ")[place]) for row in rows.values()) for place in (0, 1))
    cells += [
        Entry(cell_text(worst), worst.own.value, str(worst.cell)),
        Entry(f"{solved} of {runs}", solved / runs),
        Entry(verified, float(verified == "yes")),
    ]
    costs = [measured_costs()[name, pattern] for pattern in board.patterns if (name, pattern) in measured_costs()]
    ratios = [board.params[name, pattern] for pattern in rows if (name, pattern) in board.params]
    entry = ATTENTIONS.get(name) if name in ATTENTIONS.names() else None
    cells += [
        _number([cost.time for cost in costs], "{:.2f}"),
        _number([cost.memory for cost in costs], "{:.2f}"),
        _number([cost.decode_ms for cost in costs], "{:.2f}"),
        _number([cost.state_bytes for cost in costs], "{:,.0f}"),
        _number(ratios, "{:.2f}"),
        Entry(entry.complexity if entry else ""),
    ]
    tags = [
        *rows,
        entry.complexity if entry else "",
        *(["constant"] if any(c.has_constant_state for c in costs) else []),
    ]
    label = sanitize_text(name)
    href = f"#{card_id(name)}" if entry else ""
    return Row(label, cells, sign=UNVERIFIED_MARK if verified == "no" else "", href=href, tags=tags)


def _k_entry(row: GainRow) -> Entry:
    gain = row.gain
    if gain.estimate is None:
        return Entry(f"{len(gain.cells)} of {gain.core} cells")
    low, high = gain.interval
    detail = f"{low:.1f} to {high:.1f}\n" if low == low else ""
    link = records_link(preset=PRESET, pattern=gain.pattern, attention=gain.attention)
    text = f"{gain.estimate.value:.1f}{seed_mark(gain)}"
    return Entry(text, gain.estimate.value, f"{detail}rank {rank_text(row.rank)}", link, best=row.is_best)


def _number(values: Iterable[float | None], form: str) -> Entry:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return Entry(form.format(statistics.fmean(known)), statistics.fmean(known)) if known else Entry("")


def write_suite_csv(board: SuiteBoard, out: Path) -> Path:
    """Write ``suite.csv`` into ``out``, one row per attention and pattern."""
    import pandas as pd

    rows = [_csv_row(board, name, row) for name, own in board.rows.items() for row in own.values()]
    out.mkdir(parents=True, exist_ok=True)
    path = out / "suite.csv"
    table = pd.DataFrame(rows, columns=CSV_COLUMNS).sort_values(["pattern", "K"], ascending=[True, False])
    sanitize_table(table).to_csv(path, index=False)
    return path


def _csv_row(board: SuiteBoard, name: str, row: GainRow) -> tuple[object, ...]:
    gain, cost = row.gain, measured_costs().get((name, row.gain.pattern), MeasuredCost())
    rank = row.rank or (None, None)
    complexity = ATTENTIONS.get(name).complexity if name in ATTENTIONS.names() else ""
    return (
        *(gain.pattern, name, name in board.own, gain.verified, gain.estimate and gain.estimate.value, *gain.interval),
        *(*rank, row.is_best, len(gain.cells), gain.core, str(gain.worst.cell), gain.worst.own.value, gain.solved),
        *(gain.seeds, row.error, gain.steps and gain.steps.value, board.params.get((name, gain.pattern)), complexity),
        *(cost.time, cost.memory, cost.decode_ms, cost.state_bytes),
    )
