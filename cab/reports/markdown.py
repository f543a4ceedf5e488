"""The leaderboard as Markdown tables, for a README or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cab.reports.board_table import board_table
from cab.reports.leaderboard_tables import index_table, metrics_table
from cab.reports.suite_board import SuiteBoard, main_finding
from cab.reports.tables import Column, Entry, Row, Table

if TYPE_CHECKING:
    from cab.reports.leaderboard import Board

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!$])")


def markdown(boards: Iterable[Board], suite: SuiteBoard | None = None) -> str:
    """Return K in the suite, and one heading per preset with index table and raw metrics table per pattern."""
    first = [escape(main_finding(suite)), _table(board_table(suite))] if suite else []
    return "\n\n".join([*first, *(part for board in boards for part in _suite(board))])


def escape(text: str) -> str:
    """Escape the special characters of Markdown."""
    return _SPECIAL.sub(r"\\\1", text)


def _suite(board: Board) -> list[str]:
    suite = board.suite
    parts = [f"### {escape(suite.heading)}", f"Data sets: {escape(', '.join(suite.datasets))}."]
    parts += [escape(f"{line}.") for line in suite.uncounted]
    for pattern in suite.patterns:
        parts += [_table(index_table(board, pattern)), _table(metrics_table(board, pattern))]
    return parts


def _table(table: Table) -> str:
    groups = [group.label for group in table.groups for _ in range(group.span)] or [""] * (len(table.columns) - 1)
    header = [_header(column, group) for column, group in zip(table.columns, ["", *groups], strict=True)]
    rules = ["---", *["---:"] * (len(header) - 1)]
    lines = [header, rules, *map(_row, (*table.pinned, *table.rows, *table.fixed))]
    notes = "".join(f"\n{number}. {escape(note)}" for number, note in enumerate(table.notes, 1))
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [f"**{escape(table.caption)}**", rows, notes.strip(), *map(escape, table.legend)]
    return "\n\n".join(filter(None, parts))


def _header(column: Column, group: str) -> str:
    return escape(f"{group}: {column.label}" if group else column.label) + (f" {column.arrow}" if column.arrow else "")


def _row(row: Row) -> list[str]:
    label = (f"{row.sign} " if row.sign else "") + escape(row.label)
    return [f"_{label}_" if row.kind == "baseline" else label, *map(_cell, row.cells)]


def _cell(cell: Entry) -> str:
    text = f"**{escape(cell.text)}**" if cell.best else escape(cell.text)
    return text + (f" ({escape(cell.detail)})" if cell.detail else "") + (f" ({cell.note})" if cell.note else "")
