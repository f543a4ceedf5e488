"""Tables behind the figures: every number that a figure shows can also be read, sorted and heard."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cab.reports.tables import Column, Entry, Row, Table, decimals_for, plain, plain_interval

if TYPE_CHECKING:
    import pandas as pd

NEVER = 1e18
"""What `never` is sorted by: after every length."""


def curve_table(curve: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """A metric against length: a row an attention, a column a length.

    Args:
        curve: columns attention, length, value.
    """
    lengths = sorted(curve["length"].unique())
    wide = curve.pivot(index="attention", columns="length", values="value").sort_index()
    table = Table(table_id, caption, [Column("attention"), *(Column(f"{length:,}") for length in lengths)], [])
    decimals, why = decimals_for(curve["value"]), "no result at this length"
    for name, values in wide.iterrows():
        table.rows.append(Row(str(name), [_number(table, value, decimals, why) for value in values]))
    return table


def correlation_table(pairs: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Correlations, a row a pair: Pearson's r, its 95% confidence interval, and how many attentions it stands on.

    Args:
        pairs: columns a, b, pearson, shared, low, high.
    """
    columns = [Column("pair"), Column("correlation"), Column("attentions", hint="how many both share")]
    table = Table(table_id, caption, columns, [])
    for first, second, r, n, low, high in pairs[["a", "b", "pearson", "shared", "low", "high"]].itertuples(
        index=False, name=None
    ):
        cell = _number(table, r, 2, "too few attentions in common, or no spread among them")
        cell.detail = plain_interval(low, high, 2)
        table.rows.append(Row(f"{first} and {second}", [cell, Entry(str(n), n)], kind="other"))
    return table


def benefit_table(benefit: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Index of each task with the best efficient attention, with softmax attention and with none.

    Args:
        benefit: columns task, efficient, vanilla, without.
    """
    labels = ["best efficient attention", "softmax attention", "no attention"]
    table = Table(
        table_id, caption, [Column("task"), *(Column(label, "↑", "higher is better") for label in labels)], []
    )
    for task, *values in benefit[["task", "efficient", "vanilla", "without"]].itertuples(index=False, name=None):
        cells = [_number(table, value, 3, "not scored") for value in values]
        table.rows.append(Row(task, cells, kind="other"))
    return table


def efficiency_table(lengths: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """From which length on each attention is cheaper than softmax attention.

    Args:
        lengths: columns attention, resource (time, memory), length, low, high, r2.
    """
    table = Table(table_id, caption, [Column("attention")], [])
    table.rows = [Row(name, []) for name in dict.fromkeys(lengths["attention"])]
    for resource in dict.fromkeys(lengths["resource"]):
        table.columns += [
            Column(f"{resource}, length", "↓", "lower is better"),
            Column("R²", hint="of the fitted line"),
        ]
        own = lengths[lengths["resource"] == resource].set_index("attention")
        for row in table.rows:
            found = own.loc[row.label] if row.label in own.index else None
            row.cells += _length_cells(table, found)
    return table


def _length_cells(table: Table, found: pd.Series | None) -> list[Entry]:
    if found is None:
        return [table.missing("not measured")] * 2
    r2 = _number(table, found["r2"], 3, "no fit")
    if found["length"] == math.inf:
        return [Entry("never", NEVER), r2]
    if found["length"] == 0:
        return [Entry("always", 0), r2]
    if not math.isfinite(found["length"]):
        return [table.missing("no length: the curves could not be fitted"), r2]
    interval = plain_interval(found["low"], found["high"], 0)
    return [Entry(plain(found["length"], 0), found["length"], interval), r2]


def _number(table: Table, value: float, decimals: int, reason: str) -> Entry:
    return Entry(plain(value, decimals), value) if math.isfinite(value) else table.missing(reason)
