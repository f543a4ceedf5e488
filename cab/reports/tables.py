"""Tables of the page and of Markdown: a specification of columns, applied to the rows of a data frame."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from cab.files.disk import replacing, sanitize_table, sanitize_text

if TYPE_CHECKING:
    import pandas as pd

MISSING = "\N{EN DASH}"
ARROWS = {"higher": "↑", "lower": "↓", "": ""}
NEVER = 1e18
"""Sort key of `never`, larger than every length."""
SORTED, PINNED, FIXED = "sorted", "pinned", "fixed"
"""Bodies of a table: rows that the reader can sort, and rows that stay first or last."""
Fields = Mapping[str, Any]
"""A row of a data frame."""


@dataclass
class Cell:
    """A cell of a table: its text, a second line such as a confidence interval, and a link.

    Attributes:
        value: sort key; None for a missing value, which is sorted last.
        reason: why the value is missing; displayed as a numbered note.
        best: whether the value is displayed in bold.
    """

    text: str
    value: float | None = None
    detail: str = ""
    href: str = ""
    reason: str = ""
    best: bool = False


@dataclass(frozen=True)
class Column:
    """A column: its header, and the function that returns the cell of a row.

    Attributes:
        better: ``higher`` or ``lower`` if one direction is better.
        hint: explanation of the header.
        sort: initial sort order, ``ascending`` or ``descending``.
        group: header over consecutive columns of the same group.
        marks_best: whether the best of at least two values is bold.
    """

    label: str
    cell: Callable[[Fields], Cell]
    better: str = ""
    hint: str = ""
    sort: str = ""
    group: str = ""
    marks_best: bool = False

    @property
    def arrow(self) -> str:
        """The arrow in the better direction."""
        return ARROWS[self.better]

    @property
    def title(self) -> str:
        """The hint and the better direction."""
        return "; ".join(filter(None, (self.hint, self.better and f"{self.better} is better")))


@dataclass
class Row:
    """A row. Its label follows ``sign`` and links to ``href``; a filter selects rows by their ``tags``."""

    label: str
    cells: list[Cell]
    body: str = SORTED
    sign: str = ""
    detail: str = ""
    href: str = ""
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
        """The rows of each body that has any, in the order of the page."""
        bodies = {name: [row for row in self.rows if row.body == name] for name in (PINNED, SORTED, FIXED)}
        return {name: rows for name, rows in bodies.items() if rows}

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
        """The reasons for missing values."""
        return list(dict.fromkeys(cell.reason for row in self.rows for cell in row.cells if cell.reason))


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
        rows: data frame or its rows; the optional fields sign, detail, href, tags and body are those of :class:`Row`.
        columns: columns after the labels.
        table_id: HTML identifier.
        caption: caption of the table.
        label: field with the label of a row, and header of the labels.
        legend: explanations of signs.
    """
    records: Iterable[Any] = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    table = Table(table_id, caption, list(columns), [], label, list(legend))
    for record in records:
        options = {name: record[name] for name in ("sign", "detail", "href", "tags", "body") if name in record}
        cells = [column.cell(record) for column in table.columns]
        table.rows.append(Row(sanitize_text(record[label]), cells, **options))
    for number, column in enumerate(table.columns):
        if column.marks_best:
            _mark_best([row.cells[number] for row in table.rows if row.body == SORTED], column.better)
    return table


def _mark_best(cells: Sequence[Cell], better: str) -> None:
    values = [cell.value for cell in cells if cell.value is not None]
    if len(values) > 1:
        best = max(values) if better == "higher" else min(values)
        for cell in cells:
            cell.best = cell.value == best


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


def number_cell(value: float | None, decimals: int = 3, reason: str = "", detail: str = "", href: str = "") -> Cell:
    """Return the cell of a number; one that is None, NaN or infinite is missing for a reason."""
    if value is None or not math.isfinite(value):
        return Cell(MISSING, reason=reason)
    return Cell(plain(value, decimals), value, detail, href)


def text_column(label: str, name: str, **header: Any) -> Column:
    """Return a column of the texts in field ``name``."""
    return Column(label, lambda row: Cell(sanitize_text(row[name]) or MISSING), **header)


def deviation_text(deviation: float, decimals: int) -> str:
    """Format a standard deviation, or an empty string for a single seed."""
    return f"± {plain(deviation, decimals)}" if math.isfinite(deviation) else ""


def element_id(*names: str) -> str:
    """Return a valid HTML identifier; names that differ only in special characters get different identifiers."""
    name = "-".join(names)
    valid = re.sub(r"[^A-Za-z0-9_-]", "", name)
    return valid if valid == name else f"{valid}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def records_link(**fields: str) -> str:
    """Return the link to the records with the given cell fields."""
    return "#records?" + urlencode(fields)


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


# --- the values of figures, for sorting and for screen readers ------------------------------------------------


def curve_table(curve: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Return a metric by length, one row per attention; ``curve`` has the columns attention, length, value."""
    wide = curve.pivot(index="attention", columns="length", values="value").sort_index()
    decimals, reason = decimals_for(curve["value"]), "no result at this length"
    columns = [number_column(f"{length:,}", length, decimals, reason=reason) for length in wide.columns]
    return frame_table(wide.reset_index(), columns, table_id=table_id, caption=caption)


def correlation_table(pairs: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Return correlations with their intervals; ``pairs`` has the columns a, b, pearson, shared, low, high."""
    reason = "fewer than three shared attentions, or all with the same score"
    columns = [
        number_column(
            "correlation", "pearson", 2, reason=reason, detail=lambda row: interval_text(row["low"], row["high"], 2)
        ),
        number_column("attentions", "shared", 0, hint="number of shared attentions"),
    ]
    named = pairs.assign(pair=pairs["a"].astype(str) + " and " + pairs["b"].astype(str))
    return frame_table(named, columns, table_id=table_id, caption=caption, label="pair")


def benefit_table(benefit: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Return the benefit of attention; ``benefit`` has the columns task, efficient, vanilla, without."""
    labels = {"efficient": "best efficient attention", "vanilla": "softmax attention", "without": "no attention"}
    columns = [number_column(label, name, reason="not scored", better="higher") for name, label in labels.items()]
    return frame_table(benefit, columns, table_id=table_id, caption=caption, label="task")


def efficiency_table(lengths: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Return efficiency lengths; ``lengths`` has the columns attention, resource, length, low, high, r2."""
    wide = lengths.pivot(index="attention", columns="resource", values=["length", "low", "high", "r2"])
    wide = wide.reindex(lengths["attention"].unique())
    wide.columns = [" ".join(names) for names in wide.columns]
    columns = []
    for resource in lengths["resource"].unique():
        columns.append(Column(f"efficiency length ({resource})", partial(_length_cell, resource), "lower"))
        columns.append(number_column("R²", f"r2 {resource}", reason="no fit", hint="of the fitted curve"))
    return frame_table(wide.reset_index(), columns, table_id=table_id, caption=caption)


def _length_cell(resource: str, row: Fields) -> Cell:
    length, low, high = (row[f"{name} {resource}"] for name in ("length", "low", "high"))
    if length in (0, math.inf):
        return Cell("never", NEVER) if length else Cell("always", 0)
    return number_cell(length, 0, "the curves could not be fitted", interval_text(low, high, 0))
