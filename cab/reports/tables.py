"""Tables of the page and of Markdown: a specification of columns, applied to the rows of a data frame."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from cab.files.disk import sanitize_text

if TYPE_CHECKING:
    import pandas as pd

MISSING = "\N{EN DASH}"
ARROWS = {"higher": "↑", "lower": "↓", "": ""}
NEVER = 1e18
"""Sort key of `never`, larger than every length."""
SORTED, PINNED, FIXED = "sorted", "pinned", "fixed"
"""Bodies of a table: rows that the reader can sort, and rows that stay first or last."""


@dataclass
class Cell:
    """A cell of a table.

    Attributes:
        text: displayed text.
        value: sort key; None for a missing value, which is sorted last.
        detail: second line, such as a confidence interval.
        href: link target.
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
    """A column: its header, and the cell of each row.

    Attributes:
        label: header.
        cell: returns the cell of a row of the data frame.
        better: ``higher`` or ``lower`` if one direction is better.
        hint: explanation of the header.
        sort: initial sort order, ``ascending`` or ``descending``.
        group: header over consecutive columns of the same group.
        marks_best: whether the best of at least two values is bold.
    """

    label: str
    cell: Callable[[Mapping[str, Any]], Cell]
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
        """The rows of each body; pinned rows first and fixed rows last."""
        names = dict.fromkeys((PINNED, SORTED, *(row.body for row in self.rows)))
        names = {**{name: None for name in names if name != FIXED}, FIXED: None}
        bodies = {name: [row for row in self.rows if row.body == name] for name in names}
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
    rows: pd.DataFrame | Iterable[Mapping[str, Any]],
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
    columns = list(columns)
    options = ("sign", "detail", "href", "tags", "body")
    table = Table(table_id, caption, columns, [], label, list(legend))
    for record in records:
        cells = [column.cell(record) for column in columns]
        given = {name: record[name] for name in options if name in record}
        table.rows.append(Row(sanitize_text(record[label]), cells, **given))
    for number, column in enumerate(columns):
        if column.marks_best:
            _mark_best([row.cells[number] for row in table.rows if row.body == SORTED], column.better)
    return table


def _mark_best(cells: Iterable[Cell], better: str) -> None:
    known = [cell for cell in cells if cell.value is not None]
    best = (max if better == "higher" else min)((cell.value for cell in known), default=None)  # type: ignore[type-var]
    for cell in known if len(known) > 1 else ():
        cell.best = cell.value == best


def number_column(
    label: str,
    name: Any,
    decimals: int = 3,
    *,
    detail: Callable[[Mapping[str, Any]], str] = lambda _: "",
    reason: str = "",
    **header: Any,
) -> Column:
    """Return a column of the numbers in field ``name``.

    Args:
        label: header.
        name: field of the rows.
        decimals: number of decimals.
        detail: returns the second line of a cell.
        reason: note on missing values.
        header: further attributes of :class:`Column`.
    """

    def cell(row: Mapping[str, Any]) -> Cell:
        return number_cell(row[name], decimals, reason, detail(row))

    return Column(label, cell, **header)


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
    plain_name = re.sub(r"[^A-Za-z0-9_-]", "", name)
    return plain_name if plain_name == name else f"{plain_name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


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
    if largest == 0:
        return 3
    return min(max(3 - math.floor(math.log10(largest)), 0), 6)


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
    fits = {(row["attention"], row["resource"]): row for row in lengths.to_dict("records")}

    def of_fit(show: Callable[[Any], Cell], resource: str) -> Callable[[Mapping[str, Any]], Cell]:
        return lambda row: show(fits.get((row["attention"], resource)))

    columns = []
    for resource in dict.fromkeys(lengths["resource"]):
        columns += [
            Column(f"efficiency length ({resource})", of_fit(_length_cell, resource), "lower"),
            Column("R²", of_fit(_r2_cell, resource), hint="of the fitted curve"),
        ]
    return frame_table(lengths[["attention"]].drop_duplicates(), columns, table_id=table_id, caption=caption)


def _length_cell(fit: Mapping[str, Any] | None) -> Cell:
    if fit is None:
        return Cell(MISSING, reason="not measured")
    if fit["length"] in (0, math.inf):
        return Cell("never", NEVER) if fit["length"] else Cell("always", 0)
    detail = interval_text(fit["low"], fit["high"], 0)
    return number_cell(fit["length"], 0, "the curves could not be fitted", detail)


def _r2_cell(fit: Mapping[str, Any] | None) -> Cell:
    return Cell(MISSING, reason="not measured") if fit is None else number_cell(fit["r2"], 3, "no fit")
