"""The published tables and figures, as results/paper/tables.csv defines them, and their published values."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from cab.files.text_table import read_csv
from cab.records.results import PAPER_DIR

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


@dataclass(frozen=True)
class PaperTable:
    """A published table or figure; one row of results/paper/tables.csv, where several words are separated by spaces.

    Attributes:
        file: files with the published values, relative to results/paper.
        where: values that select rows of the files, with ``_`` for a space.
        keys: columns of the files that identify a value; empty for a table with its own columns.
        values: columns with published values; ``COLUMN:NAME`` renames one. The names of several are the key
            ``quantity``.
        source: name in :data:`cab.results.comparison.SOURCES`.
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
