"""Tables of the page: what each cell says, what it sorts by, where it links, and why it is empty."""

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
    """What stands in a row and column of a table.

    ``value`` is what the column sorts by, None for nothing; ``note`` numbers the reason why it is empty.
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
    label: str
    arrow: str = ""
    hint: str = ""
    sort: str = ""


@dataclass
class Group:
    label: str
    span: int


@dataclass
class Row:
    """An attention, a trivial answer to compare with (baseline), or something else.

    ``sign`` follows the label, which links to ``href`` if there is one.
    """

    label: str
    cells: list[Entry]
    kind: Literal["attention", "baseline", "other"] = "attention"
    sign: str = ""
    href: str = ""


@dataclass
class Table:
    """``fixed`` rows stay below the others however one sorts; ``legend`` says what the signs of rows mean."""

    id: str
    caption: str
    columns: list[Column]
    rows: list[Row]
    groups: list[Group] = field(default_factory=list)
    fixed: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)

    def note(self, reason: str) -> int:
        """The number of the note that says ``reason``."""
        if reason not in self.notes:
            self.notes.append(reason)
        return self.notes.index(reason) + 1

    def missing(self, reason: str) -> Entry:
        number = self.note(reason)
        return Entry(MISSING, note=number, note_id=f"{self.id}-note-{number}")


def element_id(*parts: str) -> str:
    """An HTML identifier of plain characters; names that differ only in others get different ones all the same."""
    name = "-".join(parts)
    plain_name = re.sub(r"[^A-Za-z0-9_-]", "", name)
    return plain_name if plain_name == name else f"{plain_name}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def mark_best(rows: list[Row], column: int, *, higher_is_better: bool) -> None:
    """Mark the best of a column; nothing is best where only one has a value."""
    cells = [row.cells[column] for row in rows if row.cells[column].value is not None]
    if len(cells) < 2:
        return
    values = [cell.value for cell in cells]
    best = max(values) if higher_is_better else min(values)  # type: ignore[type-var]
    for cell in cells:
        cell.best = cell.value == best


def records_link(**fields: str) -> str:
    """Where the page lists the records with these cell fields."""
    return "#records?" + urlencode(fields)


def plain(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def plain_interval(low: float, high: float, decimals: int) -> str:
    """``low to high``, empty where there is none."""
    return f"{plain(low, decimals)} to {plain(high, decimals)}" if math.isfinite(low + high) else ""


def decimals_for(values: Iterable[float]) -> int:
    """Decimals that show four digits of the largest value, so that a column lines up."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0)
    if largest == 0:
        return 3
    return min(max(3 - math.floor(math.log10(largest)), 0), 6)


def cost_text(metric: str, value: float) -> str:
    """A cost for people: millions of parameters, seconds to hours, MiB to GiB."""
    if metric == "params":
        return f"{value / 1e6:,.2f} M" if value >= 1e6 else f"{value:,.0f}"
    if metric == "train_seconds":
        scale, unit = next(((s, u) for s, u in ((3600, "h"), (60, "min")) if value >= 2 * s), (1, "s"))
        return f"{value / scale:,.1f} {unit}"
    return f"{value / 2**30:,.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.1f} MiB"


COST_LABELS = {"params": "parameters", "train_seconds": "training time", "peak_memory_bytes": "peak memory"}
assert list(COST_LABELS) == COSTS
