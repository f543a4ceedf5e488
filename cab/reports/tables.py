"""Tables of the page: text, sort value, link and missing-value note of each cell."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlencode

from cab.reports.leaderboard import COSTS

MISSING = "\N{EN DASH}"


@dataclass
class Entry:
    """A cell of a table.

    Attributes:
        text: displayed text.
        value: sort key, None if missing.
        detail: additional text, such as a confidence interval.
        href: link target.
        note: number of the note that explains a missing value.
        note_id: HTML identifier of that note.
        best: whether the value is the best of its column.
    """

    text: str
    value: float | None = None
    detail: str = ""
    href: str = ""
    note: int = 0
    note_id: str = ""
    best: bool = False


@dataclass
class Column:
    """A column: label, arrow and hint for the better direction, and the initial sort order."""

    label: str
    arrow: str = ""
    hint: str = ""
    sort: str = ""


@dataclass
class Group:
    """A header over ``span`` columns."""

    label: str
    span: int


@dataclass
class Row:
    """A row for an attention, a trivial baseline or another object.

    ``sign`` precedes the label, which links to ``href`` if there is one, and ``detail`` follows it. A filter selects
    rows by their ``tags``.
    """

    label: str
    cells: list[Entry]
    kind: Literal["attention", "baseline", "other"] = "attention"
    sign: str = ""
    detail: str = ""
    href: str = ""
    tags: list[str] = field(default_factory=list)


@dataclass
class Table:
    """A table; ``pinned`` rows stay first and ``fixed`` rows last in any order, and ``legend`` explains signs."""

    id: str
    caption: str
    columns: list[Column]
    rows: list[Row]
    groups: list[Group] = field(default_factory=list)
    fixed: list[Row] = field(default_factory=list)
    pinned: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)

    def note(self, reason: str) -> int:
        """Return the number of the note ``reason``, adding it if needed."""
        if reason not in self.notes:
            self.notes.append(reason)
        return self.notes.index(reason) + 1

    def missing(self, reason: str) -> Entry:
        """Return a cell for a missing value with a note."""
        number = self.note(reason)
        return Entry(MISSING, note=number, note_id=f"{self.id}-note-{number}")


def element_id(*parts: str) -> str:
    """Return a valid HTML identifier; names that differ only in special characters get different identifiers."""
    name = "-".join(parts)
    plain_name = re.sub(r"[^A-Za-z0-9_-]", "", name)
    return plain_name if plain_name == name else f"{plain_name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def mark_best(rows: list[Row], column: int, *, higher_is_better: bool) -> None:
    """Mark the best value of a column that has at least two values."""
    cells = [row.cells[column] for row in rows if row.cells[column].value is not None]
    if len(cells) < 2:
        return
    values = [cell.value for cell in cells]
    best = max(values) if higher_is_better else min(values)  # type: ignore[type-var]
    for cell in cells:
        cell.best = cell.value == best


def records_link(**fields: str) -> str:
    """Return the link to the records with the given cell fields."""
    return "#records?" + urlencode(fields)


def plain(value: float, decimals: int) -> str:
    """Format a number with thousands separators and a minus sign."""
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def plain_interval(low: float, high: float, decimals: int) -> str:
    """Format an interval as ``low to high``, or an empty string if undefined."""
    return f"{plain(low, decimals)} to {plain(high, decimals)}" if math.isfinite(low + high) else ""


def decimals_for(values: Iterable[float]) -> int:
    """Return the number of decimals that shows four digits of the largest value."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0)
    if largest == 0:
        return 3
    return min(max(3 - math.floor(math.log10(largest)), 0), 6)


def cost_text(metric: str, value: float) -> str:
    """Format a cost with a readable unit: millions of parameters, seconds to hours, MiB to GiB."""
    if metric == "params":
        return f"{value / 1e6:,.2f} M" if value >= 1e6 else f"{value:,.0f}"
    if metric == "train_seconds":
        scale, unit = next(((s, u) for s, u in ((3600, "h"), (60, "min")) if value >= 2 * s), (1, "s"))
        return f"{value / scale:,.1f} {unit}"
    return f"{value / 2**30:,.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.1f} MiB"


COST_LABELS = {"params": "parameters", "train_seconds": "training time", "peak_memory_bytes": "peak memory"}
assert list(COST_LABELS) == COSTS
