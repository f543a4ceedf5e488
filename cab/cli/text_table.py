"""Tables for a terminal."""

from __future__ import annotations

import csv
import sys
import textwrap
from collections.abc import Sequence

from cab.files.disk import sanitize_csv_cell, sanitize_text

ABSENT = "-"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, align: str) -> str:
    """Format a table for a terminal, without control characters.

    Args:
        header: column headers.
        rows: cells of each row.
        align: ``l`` (left) or ``r`` (right) for each column.
    """
    columns = zip(*([sanitize_text(cell) for cell in row] for row in (header, *rows)), strict=True)
    texts = []
    for side, cells in zip(align, columns, strict=True):
        width = max(map(len, cells))
        texts.append([cell.ljust(width) if side == "l" else cell.rjust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*texts, strict=True))


def wrapped_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> str:
    """Format left-aligned columns within ``width`` characters, by wrapping the widest ones."""
    table = [[sanitize_text(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in table:
        cells = [
            textwrap.wrap(cell, size, break_on_hyphens=False) or [""] for cell, size in zip(row, widths, strict=True)
        ]
        for place in range(max(map(len, cells))):
            words = (cell[place] if place < len(cell) else "" for cell in cells)
            lines.append("  ".join(word.ljust(size) for word, size in zip(words, widths, strict=True)).rstrip())
    return "\n".join(lines)


def print_rows(rows: Sequence[Sequence[str]], *, as_csv: bool) -> None:
    """Print rows, the first of which is the header, as a left-aligned table or as CSV."""
    if as_csv:
        csv.writer(sys.stdout).writerows(map(sanitize_csv_cell, row) for row in rows)
    else:
        print(text_table(rows[0], rows[1:], align="l" * len(rows[0])))


def number(value: float, decimals: int = 3) -> str:
    """Format a number; ``-`` for NaN, and no negative zero."""
    return ABSENT if value != value else f"{round(value, decimals) + 0.0:,.{decimals}f}"
