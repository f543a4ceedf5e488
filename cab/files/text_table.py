"""Tables for a terminal, and the same rows as CSV: the only formatter of text tables. Also errors of CSV files."""

from __future__ import annotations

import contextlib
import csv
import itertools
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError, first_line
from cab.files.disk import sanitize_csv_cell, sanitize_table, sanitize_text

if TYPE_CHECKING:
    import pandas as pd

ABSENT = "-"
NARROWEST = 8
"""Width below which a column is not wrapped."""


def text_table(
    header: Sequence[object], rows: Sequence[Sequence[object]], *, align: str = "l", width: int | None = None
) -> str:
    """Format a table for a terminal, without control characters.

    Args:
        header: column headers; empty for a table without a header.
        align: ``l`` (left) or ``r`` (right) for each column; the last letter holds for all further columns.
        width: number of characters into which the table must fit, by wrapping the widest columns.
    """
    lines = [[sanitize_text(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    while width and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    sides = align + align[-1] * len(widths)
    texts = []
    for line in lines:
        cells = [
            textwrap.wrap(cell, size, break_on_hyphens=False) if len(cell) > size else [cell]
            for cell, size in zip(line, widths, strict=True)
        ]
        for words in itertools.zip_longest(*cells, fillvalue=""):
            padded = [
                word.rjust(size) if side == "r" else word.ljust(size)
                for word, size, side in zip(words, widths, sides, strict=False)
            ]
            texts.append("  ".join(padded).rstrip())
    return "\n".join(texts)


def print_rows(rows: Sequence[Sequence[object]], *, as_csv: bool, align: str = "l", width: int | None = None) -> None:
    """Print rows, the first of which is the header, as a table or as CSV."""
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(map(sanitize_csv_cell, row) for row in rows)
    else:
        sys.stdout.write(text_table(rows[0], rows[1:], align=align, width=width) + "\n")


def print_csv(table: pd.DataFrame) -> None:
    """Print a table of numbers as CSV, with six decimals."""
    sanitize_table(table).to_csv(sys.stdout, index=False, float_format="%.6f", lineterminator="\n")


@contextlib.contextmanager
def csv_errors(path: Path) -> Iterator[None]:
    """Raise UserError if ``path`` is not a regular file, or cannot be read as CSV in UTF-8 inside the block."""
    if not path.is_file():
        raise UserError(f"{path} is not a file that can be read as CSV; pass the path of a CSV file")
    try:
        yield
    except UserError:
        raise
    except (csv.Error, ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read as CSV ({first_line(error)}); save it as CSV in UTF-8") from None


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file as texts."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        return list(csv.DictReader(file))


def number(value: float, decimals: int = 3) -> str:
    """Format a number; ``-`` for NaN, and no negative zero."""
    return ABSENT if value != value else f"{round(value, decimals) + 0.0:,.{decimals}f}"
