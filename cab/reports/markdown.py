"""The leaderboard as Markdown tables, for a README or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cab.reports.board_tables import board_table
from cab.reports.leaderboard_tables import pattern_table
from cab.reports.sentence import main_sentence
from cab.reports.suite_board import SuiteBoard
from cab.reports.tables import BASELINE, Row, Table

if TYPE_CHECKING:
    from cab.reports.leaderboard import Board


def markdown(boards: Iterable[Board], suite: SuiteBoard | None = None) -> str:
    """Return the board of the suite, and one heading per preset with a table per pattern."""
    parts = [escape(main_sentence(suite)), table_text(board_table(suite))] if suite else []
    for board in boards:
        parts += [f"### {escape(board.heading)}", f"Data sets: {escape(', '.join(board.datasets))}."]
        for pattern in board.patterns:
            parts.append(table_text(pattern_table(board, pattern)))
    return "\n\n".join(parts)


def escape(text: str) -> str:
    """Escape the special characters of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!$])", r"\\\1", text)


def table_text(table: Table) -> str:
    """Return a table with its caption and its notes; a group of rows starts with a row that has its name."""
    labels = [f"{column.group}: {column.label}" if column.group else column.label for column in table.columns]
    lines = [[escape(name) for name in (table.heading, *labels)], ["---", *["---:"] * len(labels)]]
    for group, rows in table.bodies.items():
        lines += [[f"_{escape(group)}_", *[""] * len(labels)]] if group else []
        lines += map(_row, rows)
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join(
        filter(None, [table.caption and f"**{escape(table.caption)}**", grid, *map(escape, table.notes)])
    )


def _row(row: Row) -> list[str]:
    label = f"{row.sign} {escape(row.label)}".lstrip()
    cells = []
    for cell in row.cells:
        text = escape(cell.marked)
        cells.append(
            (f"**{text}**" if "best" in cell.style else text) + (f" ({escape(cell.detail)})" if cell.detail else "")
        )
    return [f"_{label}_" if row.detail == BASELINE else label, *cells]
