"""Tables behind the figures: every number that a figure shows can also be read, sorted and heard."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cab.reports.tables import Cell, Column, Row, Table, decimals_for, plain

if TYPE_CHECKING:
    import pandas as pd


def curve_table(curve: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """A metric against length: a row an attention, a column a length.

    Args:
        curve: columns attention, length, value.
    """
    lengths = sorted(curve["length"].unique())
    wide = curve.pivot(index="attention", columns="length", values="value").sort_index()
    table = Table(table_id, caption, [Column("attention"), *(Column(f"{length:,}") for length in lengths)], [])
    decimals = decimals_for(curve["value"])
    for name, values in wide.iterrows():
        cells = [_number(table, value, decimals, "no result at this length") for value in values]
        table.rows.append(Row(str(name), cells))
    return table


def _number(table: Table, value: float, decimals: int, reason: str) -> Cell:
    return Cell(plain(value, decimals), value) if math.isfinite(value) else table.missing(reason)
