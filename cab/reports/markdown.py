"""The leaderboard as Markdown tables, for a README or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cab.reports.board_tables import board_table
from cab.reports.leaderboard_tables import index_table, metrics_table
from cab.reports.sentence import main_sentence
from cab.reports.suite_board import SuiteBoard
from cab.reports.tables import FIXED, Cell, Row, Table

if TYPE_CHECKING:
    from cab.reports.leaderboard import Board


def markdown(boards: Iterable[Board], suite: SuiteBoard | None = None) -> str:
    """Return K in the suite, and one heading per preset with index table and raw metrics table per pattern."""
    parts = [escape(main_sentence(suite)), _table(board_table(suite))] if suite else []
    for board in boards:
        parts += [f"### {escape(board.heading)}", f"Data sets: {escape(', '.join(board.datasets))}."]
        parts += [escape(f"{line}.") for line in board.excluded]
        for pattern in board.patterns:
            parts += [_table(index_table(board, pattern)), _table(metrics_table(board, pattern))]
    return "\n\n".join(parts)


def escape(text: str) -> str:
    """Escape the special characters of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!$])", r"\\\1", text)


def _table(table: Table) -> str:
    labels = [f"{column.group}: {column.label}" if column.group else column.label for column in table.columns]
    arrows = [column.arrow for column in table.columns]
    header = [escape(table.heading), *(f"{escape(x)} {y}".rstrip() for x, y in zip(labels, arrows, strict=True))]
    rules = ["---", *["---:"] * len(table.columns)]
    numbers = {reason: number for number, reason in enumerate(table.notes, 1)}
    rows = (_row(row, numbers) for body in table.bodies.values() for row in body)
    grid = "\n".join(f"| {' | '.join(line)} |" for line in (header, rules, *rows))
    notes = "\n".join(f"{number}. {escape(note)}" for note, number in numbers.items())
    return "\n\n".join(filter(None, [f"**{escape(table.caption)}**", grid, notes, *map(escape, table.legend)]))


def _row(row: Row, numbers: dict[str, int]) -> list[str]:
    label = f"{row.sign} {escape(row.label)}".lstrip()
    return [f"_{label}_" if row.body == FIXED else label, *(_cell(cell, numbers) for cell in row.cells)]


def _cell(cell: Cell, numbers: dict[str, int]) -> str:
    text = f"**{escape(cell.text)}**" if cell.best else escape(cell.text)
    detail = f" ({escape(cell.detail)})" if cell.detail else ""
    return text + detail + (f" ({numbers[cell.reason]})" if cell.reason else "")
