"""The published tables and figures with own values: results/paper/tables.csv defines them, and one function joins them.

A table has a CSV file with its published values. :data:`cab.results.own_values.SOURCES` add the own ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.text_table import ABSENT, read_csv
from cab.records.results import PAPER_DIR
from cab.results import formats
from cab.results.formats import Cell, Fields, plain
from cab.results.selection import REAL, REHEARSAL, REHEARSAL_NOTE
from cab.results.table import Column, Row, Table

if TYPE_CHECKING:
    import pandas as pd

RESULTS, COSTS, NORMS = "results", "costs", "norms"
"""What a user names for the own values: results, a file of `cab efficiency`, or files of `cab paper gradients`."""
READS = {
    **dict.fromkeys(("table3", "indices", "scales", "benefit", "correlations", "records"), RESULTS),
    **dict.fromkeys(("lengths", "costs"), COSTS),
    "gradients": NORMS,
}
"""What each source of own values reads; the others need nothing."""
OWN_COLUMNS = ("own", "sd", "runs", "published", "difference", "agrees", "settings", "data")
"""Columns of every table after its keys; a table has those that apply."""


@dataclass(frozen=True)
class PaperTable:
    """A published table or figure; one row of results/paper/tables.csv, where several words are separated by spaces.

    Attributes:
        file: files with the published values, relative to results/paper.
        where: values that select rows of the files, with ``_`` for a space.
        keys: columns of the files that identify a value; empty for a table with its own columns.
        values: columns with published values; ``COLUMN:NAME`` renames one. The names of several are the key
            ``quantity``.
        source: name in :data:`cab.results.own_values.SOURCES`.
        select: what the source needs; for records, the values of columns of results or dotted settings of a run, in
            which ``{KEY}`` is the value of a key. A setting with an empty value may have any.
        scale: factor of own values, by default 1.
    """

    name: str
    title: str
    file: str
    where: str
    keys: str
    values: str
    source: str
    select: str
    scale: str

    @property
    def reads(self) -> str:
        """What a user names for the own values: :data:`RESULTS`, :data:`COSTS`, :data:`NORMS` or nothing."""
        return READS.get(self.source, "")


@functools.cache
def paper_tables() -> dict[str, PaperTable]:
    """Return the tables by name."""
    names = [field.name for field in fields(PaperTable)]
    rows = read_csv(PAPER_DIR / "tables.csv")
    return {row["name"]: PaperTable(**{name: row[name] for name in names}) for row in rows}


def published_values(table: PaperTable) -> pd.DataFrame:
    """Return the keys of a table and the column ``published``, as printed; empty if the paper has no value."""
    import pandas as pd

    where = [pair.replace("_", " ").split("=") for pair in table.where.split()]
    rows = [row for file in table.file.split() for row in read_csv(PAPER_DIR / file)]
    rows = [row for row in rows if all(row[name] == value for name, value in where)]
    columns = dict(value.partition(":")[::2] for value in table.values.split())
    if len(columns) == 1:
        [column] = columns
        return pd.DataFrame(
            [[*_keys(table, row), row[column]] for row in rows], columns=[*table.keys.split(), "published"]
        )
    values = [[*_keys(table, row), name or column, row[column]] for row in rows for column, name in columns.items()]
    return pd.DataFrame(values, columns=[*table.keys.split(), "quantity", "published"])


def _keys(table: PaperTable, row: dict[str, str]) -> list[str]:
    return [row[name] for name in table.keys.split()]


def side_by_side(table: PaperTable, results: pd.DataFrame | None = None, files: Sequence[Path] = ()) -> pd.DataFrame:
    """Return the published values of a table and the own ones.

    Args:
        table: one of :func:`paper_tables`.
        results: table of :func:`cab.load_results`, of a single preset, for a table that reads results.
        files: for a table that reads costs or norms.

    Returns:
        One row per value, with the keys of the table and those of :data:`OWN_COLUMNS` that apply. ``own`` and ``sd``
        are mean and standard deviation over ``runs``, NaN without any. ``difference`` is own - published, and
        ``agrees`` compares values that do not vary. ``settings`` are those of own runs that are not the published
        ones. The complexity claims and the cells of Table 3 have columns of their own.
    """
    import pandas as pd

    from cab.results.own_values import SOURCES

    published = published_values(table) if table.keys else pd.DataFrame()
    frame = SOURCES[table.source](table, published, results, files)
    if not table.keys:
        return frame
    if table.reads and "difference" not in frame:
        frame["own"] = pd.to_numeric(frame["own"])
        frame["difference"] = frame["own"] - pd.to_numeric(frame["published"])
    keys = [name for name in frame.columns if name not in OWN_COLUMNS]
    return frame[[*keys, *(name for name in OWN_COLUMNS if name in frame)]]


def shown(table: PaperTable, frame: pd.DataFrame, *, is_joined: bool = True) -> Table:
    """Return the table of :func:`side_by_side` for a reader, without empty columns.

    If own values were given (``is_joined``), notes name what is missing.
    """
    first, *keys = [name for name in frame.columns if name not in OWN_COLUMNS]
    rows = frame.to_dict("records")
    columns = [Column(name, formats.texts(frame[name])) for name in keys]
    for name in ("own", "runs", "published", "difference", "agrees"):
        if name in frame:
            columns.append(Column(name, [_cell(row, name) for row in rows]))
    columns = [column for column in columns if any(cell.text != ABSENT for cell in column.cells)]
    is_rehearsal = "data" in frame and bool((frame["data"] == REHEARSAL).any())
    caption = table.title + f", {REHEARSAL} on generated data" * is_rehearsal
    labels = [Row(str(row[first])) for row in rows]
    return Table(labels, columns, first, caption=caption, remarks=list(_notes(frame, rows)) if is_joined else [])


def _cell(row: Fields, name: str) -> Cell:
    """Return an own value with the digits of the published one, and at least three."""
    value = row[name]
    if isinstance(value, str):
        number = _float(value)
        return Cell(value or ABSENT, None if math.isnan(number) else number)
    if not math.isfinite(value):
        return formats.number(value)
    if name == "runs":
        return formats.number(value or None, 0)
    printed = str(row["published"]).partition(".")[2]
    decimals = max(len(printed) + ("agrees" in row), formats.decimals_for([row["own"]]) - 1)
    if name == "difference":
        return Cell(f"{round(value, decimals) + 0.0:+,.{decimals}f}", value)
    spread = row.get("sd", math.nan) if name == "own" else math.nan
    return Cell(plain(value, decimals) + ("" if math.isnan(spread) else f" ± {plain(spread, decimals)}"), value)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _notes(frame: pd.DataFrame, rows: list[dict[Any, Any]]) -> Iterator[str]:
    """Yield notes on generated data, missing own values, and settings that are not the published ones."""
    if "data" in frame and (frame["data"] == REHEARSAL).any():
        yield REHEARSAL_NOTE
    elif "data" in frame and (frame["data"] != REAL).any():
        yield "own values are from generated data"
    has_own = [not (value != value or value == "") for value in frame["own"]]
    missing = sum(bool(row["published"]) and not own for row, own in zip(rows, has_own, strict=True))
    if missing:
        yield f"{missing} published value{'s' * (missing > 1)} without an own one"
    for text in dict.fromkeys(row.get("settings", "") for row in rows):
        if text:
            yield f"settings of own runs that differ from preset paper: {text}"


def formatted(table: PaperTable, frame: pd.DataFrame, form: str, *, is_joined: bool) -> tuple[str, list[str]]:
    """Return a table as ``text``, ``markdown`` or ``latex``, and the notes that the text lacks."""
    if table.source == "table3":
        from cab.results.table3 import tables

        made = list(tables(frame, narrow=form == "text"))
    elif table.keys:
        made = [shown(table, frame, is_joined=is_joined)]
    else:
        made = [Table.of(frame, caption=table.title)]
    if form == "text":
        return "\n\n".join(each.to_text() for each in made), [note for each in made for note in each.notes]
    return "\n\n".join(each.to_latex() if form == "latex" else each.to_markdown() for each in made), []
