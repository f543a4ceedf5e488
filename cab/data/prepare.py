"""What a download needs before a task can read it; all else the tasks do themselves when they read."""

from __future__ import annotations

import gzip
import zlib
from datetime import datetime, timedelta
from pathlib import Path

from cab.errors import UserError


def dated_table(source: Path, target: Path, *, column: str, columns: int, start: str, hours: int) -> None:
    """A gzipped table of numbers, separated by commas, as CSV with a header and dates; the numbers stay as they are.

    Args:
        column: the name of each column, from its number, as ``MT_{:03d}``.
        start: date of the first row; rows are ``hours`` apart.

    Raises:
        ValueError: a file that is damaged, or a row of other than ``columns`` numbers.
    """
    date, step = datetime.fromisoformat(start), timedelta(hours=hours)
    unfinished = target.with_name(f"{target.name}.part")
    try:
        with gzip.open(source, "rt", encoding="utf-8") as rows, unfinished.open("w", encoding="utf-8") as table:
            table.write(",".join(["date", *(column.format(number) for number in range(columns))]) + "\n")
            for number, row in enumerate(rows, start=1):
                found = row.count(",") + 1
                if found != columns:
                    raise UserError(f"{source.name}, line {number}: {found} numbers, not {columns}: another edition")
                table.write(f"{date},{row.rstrip()}\n")
                date += step
        unfinished.replace(target)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise UserError(f"{source.name} is damaged ({error}): get it again") from None
    finally:
        unfinished.unlink(missing_ok=True)
