"""Columns of the board of the suite, from which the page's table and ``suite.csv`` are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cab.files.disk import sanitize_table, sanitize_text
from cab.records.results import LEGEND, UNVERIFIED_MARK
from cab.registry.registries import ATTENTIONS
from cab.reports.card import card_id
from cab.reports.suite_board import COST_PATTERNS, BoardRow, SuiteBoard
from cab.reports.tables import MISSING, Column, Entry, Row, Table, records_link
from cab.scoring.measured_costs import LENGTH
from cab.scoring.statistics import MARGIN, ONE_SEED_LEGEND
from cab.suite.cells import PRESET, SuiteCell
from cab.suite.gain import SOLVED
from cab.suite.table import cell_text, gain_text, rates_text
from cab.suite.tuning import TUNED, USABLE

CSV_FILE = "suite.csv"
CONSTANT = "constant"
"""Tag of attentions whose decode state has the same size at any length."""
SOLVED_HINT = (
    f"runs that retain at least {SOLVED:g}% of softmax's gain; higher is better. Second line: learning rates of "
    f"tune=true that retain at least {USABLE:.0%} of what the best retains, in the worst core cell"
)


@dataclass(frozen=True)
class BoardColumn:
    """A column of the page and its fields in the CSV file.

    Attributes:
        header: header on the page.
        fields: names of the fields.
        values: values of the fields for one attention.
        entry: cell of the page for one attention.
    """

    header: Column
    fields: tuple[str, ...]
    values: Callable[[BoardRow], tuple[object, ...]]
    entry: Callable[[BoardRow], Entry]


def board_columns(board: SuiteBoard) -> list[BoardColumn]:
    """Return the columns after the name of the attention."""
    return [
        *(_gain_column(pattern) for pattern in board.patterns),
        BoardColumn(
            Column("worst cell", "↑", "smallest K of any core cell; higher is better"),
            ("worst_cell", "worst_cell_K"),
            lambda row: (str(row.worst.cell), row.worst.own.value),
            lambda row: Entry(cell_text(row.worst), row.worst.own.value, _short_name(row.worst.cell)),
        ),
        BoardColumn(
            Column("solved", "↑", SOLVED_HINT),
            ("solved", "runs", "usable_rates"),
            lambda row: (_solved(row), len(row.points), row.usable_rates),
            lambda row: Entry(f"{_solved(row)}/{len(row.points)}", _solved(row) / len(row.points), _rates(row)),
        ),
        BoardColumn(
            Column("verified", hint="whether the code passed cab verify"),
            ("verified",),
            lambda row: (row.verified,),
            lambda row: Entry(row.verified, float(row.verified == "yes")),
        ),
        *(_cost_column(name, pattern) for name in ("time", "memory") for pattern in COST_PATTERNS),
        _number_column(
            Column("decode ms", "↓", "milliseconds per decoded token; lower is better"),
            "decode_ms_per_token",
            lambda row: row.decoding.decode_ms,
            "{:.2f}",
        ),
        BoardColumn(
            Column("state", "↓", f"size of the decode state at {LENGTH:,} tokens; lower is better"),
            ("state_bytes", "constant_state"),
            lambda row: (
                row.decoding.state_bytes,
                row.decoding.has_constant_state if row.decoding.state_bytes else None,
            ),
            _state_entry,
        ),
        _number_column(
            Column("params", "↓", "parameters relative to the network with softmax; lower is better"),
            "parameters_vs_softmax",
            lambda row: row.params,
            "{:.2f}",
        ),
        BoardColumn(
            Column("complexity", hint="declared growth with the length"),
            ("complexity",),
            lambda row: (row.complexity,),
            lambda row: Entry(row.complexity or MISSING),
        ),
    ]


def _gain_column(pattern: str) -> BoardColumn:
    names = ("K", "low", "high", "cells", "core_cells", "seeds", "not_worse_than_best")

    def values(row: BoardRow) -> tuple[object, ...]:
        if pattern not in row.patterns:
            return (None,) * len(names)
        own = row.patterns[pattern]
        gain = own.gain
        value = gain.estimate.value if gain.estimate else None
        return value, *gain.interval, len(gain.cells), gain.core, gain.seeds, own.is_best

    def entry(row: BoardRow) -> Entry:
        if pattern not in row.patterns:
            return Entry(MISSING)
        gain = row.patterns[pattern].gain
        low, high = gain.interval
        interval = "" if math.isnan(low) else f"{low:.1f} to {high:.1f}"
        link = records_link(preset=PRESET, pattern=pattern, attention=row.attention)
        value = gain.estimate.value if gain.estimate else None
        return Entry(gain_text(gain), value, interval, link, best=row.patterns[pattern].is_best)

    hint = "share of softmax's gain retained, %; higher is better"
    return BoardColumn(Column(f"K {pattern}", "↑", hint), tuple(f"{pattern}.{name}" for name in names), values, entry)


def _cost_column(name: str, pattern: str) -> BoardColumn:
    """Return the column of ``name``, time or memory, in one pattern."""
    hint = f"forward pass in pattern {pattern} at {LENGTH:,} tokens relative to softmax; lower is better"
    field = f"{pattern}.{name}_{LENGTH}_vs_softmax"
    return _number_column(
        Column(f"{name} {pattern}", "↓", hint), field, lambda row: getattr(row.costs[pattern], name), "{:.2f}"
    )


def _number_column(header: Column, field: str, number: Callable[[BoardRow], float | None], form: str) -> BoardColumn:
    def entry(row: BoardRow) -> Entry:
        value = number(row)
        return Entry(MISSING) if value is None or math.isnan(value) else Entry(form.format(value), value)

    return BoardColumn(header, (field,), lambda row: (number(row),), entry)


def _short_name(cell: SuiteCell) -> str:
    """Return the name of a cell without its backbone; core cells of a task and pattern have the same backbone."""
    return str(cell).replace(f" {cell.backbone}", "")


def _solved(row: BoardRow) -> int:
    return sum(point >= SOLVED for point in row.points)


def _rates(row: BoardRow) -> str:
    return "" if row.usable_rates is None else f"{rates_text(row.usable_rates)} rates"


def _state_entry(row: BoardRow) -> Entry:
    size = row.decoding.state_bytes
    if size is None:
        return Entry(MISSING)
    unit, scale = next((u, s) for u, s in (("MiB", 2**20), ("KiB", 2**10), ("B", 1)) if size >= s)
    return Entry(f"{size / scale:,.3g} {unit}", size, CONSTANT if row.decoding.has_constant_state else "grows")


def board_table(board: SuiteBoard) -> Table:
    """Return the table of the page: one row per attention, in the order of the board; own rows are pinned."""
    columns = board_columns(board)
    caption = "K: share of softmax attention's gain over no attention that is retained, in percent"
    table = Table("suite-board-table", caption, [Column("attention"), *(each.header for each in columns)], [])
    for row in board.rows:
        entries = [column.entry(row) for column in columns]
        (table.pinned if row.is_own else table.rows).append(_labeled(row, entries))
    table.legend = [
        "Second lines: 95% interval over seeds. Bold: no attention is significantly better (Holm's correction, 95%, at "
        f"least {MARGIN:g} points); this includes attentions with a wide interval. Order: mean K over patterns, "
        f"which is not a ranking. {TUNED}: the learning rate is chosen per cell. Without all core cells, the number of "
        "cells with results replaces K. Costs are those of a layer of width 256 with default options, K that of small "
        f"networks with the options of the suite. {MISSING}: no result or measurement.",
        ONE_SEED_LEGEND,
        *([LEGEND] if any(row.sign for row in (*table.rows, *table.pinned)) else []),
    ]
    return table


def _labeled(row: BoardRow, entries: list[Entry]) -> Row:
    code = row.attention.removesuffix(TUNED)
    return Row(
        sanitize_text(row.attention),
        entries,
        sign=UNVERIFIED_MARK if row.verified == "no" else "",
        detail="yours" if row.is_own else "",
        href=f"#{card_id(code)}" if code in ATTENTIONS.names() else "",
        tags=[*row.patterns, row.complexity, CONSTANT if row.decoding.has_constant_state else ""],
    )


def write_suite_csv(board: SuiteBoard, out: Path) -> Path:
    """Write the board into ``out``, one row per attention, with the numbers and columns of the page's table."""
    import pandas as pd

    columns = board_columns(board)
    names = ["attention", "own", *(name for column in columns for name in column.fields)]
    rows = [
        [row.attention, row.is_own, *(value for column in columns for value in column.values(row))]
        for row in board.rows
    ]
    out.mkdir(parents=True, exist_ok=True)
    path = out / CSV_FILE
    sanitize_table(pd.DataFrame(rows, columns=names)).to_csv(path, index=False)
    return path
