"""Convert downloads that no task can read in their published form."""

from __future__ import annotations

import gzip
import zlib
from datetime import datetime, timedelta
from pathlib import Path

from cab.errors import UserError


def dated_table(source: Path, target: Path, *, column: str, columns: int, start: str, hours: int) -> None:
    """Convert a gzipped, comma-separated table of numbers to CSV with a header and dates, without changing the numbers.

    Args:
        source: the gzipped table.
        target: the CSV file.
        column: format of the column names, such as ``MT_{:03d}``.
        columns: number of columns.
        start: date of the first row.
        hours: hours between two rows.

    Raises:
        UserError: the file is damaged, or a row does not have ``columns`` numbers.
    """
    date, step = datetime.fromisoformat(start), timedelta(hours=hours)
    unfinished = target.with_name(f"{target.name}.part")
    try:
        with gzip.open(source, "rt", encoding="utf-8") as rows, unfinished.open("w", encoding="utf-8") as table:
            table.write(",".join(["date", *(column.format(number) for number in range(columns))]) + "\n")
            for number, row in enumerate(rows, start=1):
                found = row.count(",") + 1
                if found != columns:
                    raise UserError(
                        f"{source.name}, line {number}: {found} numbers instead of {columns}: a different edition"
                    )
                table.write(f"{date},{row.rstrip()}\n")
                date += step
        unfinished.replace(target)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise UserError(f"{source.name} is damaged ({error}): download it again") from None
    finally:
        unfinished.unlink(missing_ok=True)
