"""Tables for a terminal, and the same rows as CSV: the only formatter of text tables. Also errors of CSV files."""

from __future__ import annotations

import contextlib
import csv
import itertools
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError, first_line
from cab.files.disk import sanitize_csv_cell, sanitize_table, sanitize_text
from cab.files.numbers import is_finite

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


def header_of(path: Path) -> list[str]:
    """Return the columns of a CSV file; UserError if it cannot be read."""
    with csv_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
        return next(csv.reader(file), [])


def csv_rows(path: Path, needed: Iterable[str] = (), *, strip: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and the texts of each row; UserError with the line unless each has a value per column.

    Args:
        needed: columns that the file must have.
        strip: whether spaces around texts are removed.
    """
    with csv_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=strip)
        columns = [name.strip() if strip else name for name in next(reader, [])]
        if repeated := [name for name in columns if columns.count(name) > 1]:
            raise UserError(f"{path}, line 1: the column '{repeated[0]}' occurs more than once; remove one of them")
        if lacking := set(needed) - set(columns):
            raise UserError(f"{path} has no columns {', '.join(sorted(lacking))}; add them")
        for row in filter(None, reader):  # without empty lines
            if len(row) != len(columns):
                raise UserError(
                    f"{path}, line {reader.line_num}: {counted(len(row), 'value')} "
                    f"for {counted(len(columns), 'column')}"
                )
            texts = map(str.strip, row) if strip else row
            yield reader.line_num, dict(zip(columns, texts, strict=True))


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file as texts, see :func:`csv_rows`."""
    return [row for _, row in csv_rows(path)]


def parse_number(text: str) -> float | None:
    """Return the finite number that a text is; None for any other text, such as ``nan``, ``1e39`` or ``1_000``."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_finite(value) and "_" not in text else None


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as ``1 seed`` and ``2 seeds``."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def number(value: float, decimals: int = 3) -> str:
    """Format a number; ``-`` for NaN, and no negative zero."""
    return ABSENT if value != value else f"{round(value, decimals) + 0.0:,.{decimals}f}"
