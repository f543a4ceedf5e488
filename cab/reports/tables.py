"""Tables of the page and of Markdown: a specification of columns, applied to the rows of a data frame."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.disk import replacing, sanitize_table, sanitize_text

if TYPE_CHECKING:
    import pandas as pd

MISSING = "\N{EN DASH}"
BASELINE = "trivial baseline"
"""Detail of rows that are not attentions; their values are not marked as the best."""
NEVER = 1e18
"""Sort key of infinity."""
Fields = Mapping[str, Any]
"""A row of a data frame."""


@dataclass
class TableCell:
    """A cell of a table: its text, and a second line such as a confidence interval.

    Attributes:
        value: sort key; None for a missing value, which is sorted last.
        reason: why the value is missing.
        style: what the page shows as color or typeface, such as ``best`` or ``below``; words separated by spaces.
        marks: signs that follow the text where the style cannot be shown.
    """

    text: str
    value: float | None = None
    detail: str = ""
    reason: str = ""
    style: str = ""
    marks: str = ""

    @property
    def marked(self) -> str:
        """The text with its signs."""
        return self.text + self.marks


@dataclass(frozen=True)
class Column:
    """A column: its header, and the function that returns the cell of a row.

    Attributes:
        better: ``higher`` or ``lower`` if one direction is better.
        sort: initial sort order, ``ascending`` or ``descending``.
        group: header over consecutive columns of the same group.
        pattern: pattern that the column belongs to, if a reader can choose one.
        is_minor: whether the page shows the column only on request.
        marks_best: whether the best of at least two values is marked.
    """

    label: str
    cell: Callable[[Fields], TableCell]
    better: str = ""
    hint: str = ""
    sort: str = ""
    group: str = ""
    pattern: str = ""
    is_minor: bool = False
    marks_best: bool = False

    @property
    def title(self) -> str:
        """The hint and the better direction."""
        return "; ".join(filter(None, (self.hint, self.better and f"{self.better} is better")))


@dataclass
class Row:
    """A row. Its label follows ``sign``, its group is a heading, and a filter selects rows by their ``tags``."""

    label: str
    cells: list[TableCell]
    sign: str = ""
    detail: str = ""
    href: str = ""
    group: str = ""
    tags: Sequence[str] = ()


@dataclass
class Table:
    """A table; ``heading`` is the header of the labels, and ``legend`` explains signs."""

    id: str
    caption: str
    columns: list[Column]
    rows: list[Row]
    heading: str = "attention"
    legend: list[str] = field(default_factory=list)

    @property
    def bodies(self) -> dict[str, list[Row]]:
        """The rows of each group, in the order of their first rows."""
        bodies: dict[str, list[Row]] = {}
        for row in self.rows:
            bodies.setdefault(row.group, []).append(row)
        return bodies

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headers over columns with their widths; empty if no column has one."""
        groups: list[tuple[str, int]] = []
        for column in self.columns if any(column.group for column in self.columns) else ():
            width = groups.pop()[1] if groups and groups[-1][0] == column.group else 0
            groups.append((column.group, width + 1))
        return groups

    @property
    def notes(self) -> list[str]:
        """The legend, and the reasons for missing values."""
        reasons = dict.fromkeys(cell.reason for row in self.rows for cell in row.cells if cell.reason)
        return [*self.legend, *([f"{MISSING}: {'; '.join(reasons)}."] if reasons else [])]


def frame_table(
    rows: pd.DataFrame | Iterable[Fields],
    columns: Iterable[Column],
    *,
    table_id: str,
    caption: str,
    label: str = "attention",
    legend: Sequence[str] = (),
) -> Table:
    """Return the table of the rows of a data frame.

    Args:
        rows: data frame or its rows; the optional fields sign, detail, href, group and tags are those of :class:`Row`.
        columns: columns after the labels.
        label: field with the label of a row, and header of the labels.
    """
    records: Iterable[Any] = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    table = Table(table_id, caption, list(columns), [], label, list(legend))
    for record in records:
        options = {name: record[name] for name in ("sign", "detail", "href", "group", "tags") if name in record}
        cells = [column.cell(record) for column in table.columns]
        table.rows.append(Row(sanitize_text(record[label]), cells, **options))
    for number, column in enumerate(table.columns):
        cells = [row.cells[number] for row in table.rows if row.detail != BASELINE]
        values = [cell.value for cell in cells if cell.value is not None]
        if column.marks_best and len(values) > 1:
            best = max(values) if column.better == "higher" else min(values)
            for cell in cells:
                cell.style = "best" if cell.value == best else ""
    return table


def data_table(frame: pd.DataFrame, *, table_id: str, caption: str, sort: str = "") -> Table:
    """Return the numbers of a data frame, whose first column has the labels; an infinite number is shown as such.

    ``sort`` is the column by which the rows are sorted, the largest first.
    """
    label, *names = frame.columns
    columns = [
        number_column(str(name), name, decimals_for(frame[name]), sort="descending" if name == sort else "")
        for name in names
    ]
    return frame_table(frame, columns, table_id=table_id, caption=caption, label=label)


def number_column(
    label: str,
    name: Any,
    decimals: int = 3,
    *,
    detail: Callable[[Fields], str] = lambda _: "",
    reason: str = "",
    **header: Any,
) -> Column:
    """Return a column of the numbers in field ``name``.

    ``detail`` returns the second line of a cell, ``reason`` explains missing values, and ``header`` has further
    attributes of :class:`Column`.
    """
    return Column(label, lambda row: number_cell(row[name], decimals, reason, detail(row)), **header)


def number_cell(value: float | None, decimals: int = 3, reason: str = "", detail: str = "") -> TableCell:
    """Return the cell of a number; one that is None or NaN is missing for a reason."""
    if value == math.inf:
        return TableCell("∞", NEVER)
    if value is None or not math.isfinite(value):
        return TableCell(MISSING, reason=reason)
    return TableCell(plain(value, decimals), value, detail)


def text_column(label: str, name: str, **header: Any) -> Column:
    """Return a column of the texts in field ``name``."""
    return Column(label, lambda row: TableCell(sanitize_text(row[name]) or MISSING), **header)


def deviation_text(deviation: float, decimals: int) -> str:
    """Format a standard deviation, or an empty string for a single seed."""
    return f"± {plain(deviation, decimals)}" if math.isfinite(deviation) else ""


def element_id(*names: str) -> str:
    """Return a valid HTML identifier; names that differ only in special characters get different identifiers."""
    name = "-".join(names)
    valid = re.sub(r"[^A-Za-z0-9_-]", "", name)
    return valid if valid == name else f"{valid}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def plain(value: float, decimals: int) -> str:
    """Format a number with thousands separators and a minus sign."""
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def interval_text(low: float, high: float, decimals: int) -> str:
    """Format an interval as ``low to high``, or an empty string if undefined."""
    return f"{plain(low, decimals)} to {plain(high, decimals)}" if math.isfinite(low + high) else ""


def decimals_for(values: Iterable[float]) -> int:
    """Return the number of decimals that shows four digits of the largest value."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0)
    return min(max(3 - math.floor(math.log10(largest)), 0), 6) if largest else 3


def write_csv(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV without control characters, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        sanitize_table(table).to_csv(temporary, index=False)
    return path
