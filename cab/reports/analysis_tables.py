"""Tables with the values of the figures, for sorting and for screen readers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cab.reports.tables import Column, Entry, Row, Table, decimals_for, plain, plain_interval

if TYPE_CHECKING:
    import pandas as pd

NEVER = 1e18
"""Sort key of `never`, larger than every length."""


def curve_table(curve: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Return a metric by length: one row per attention, one column per length.

    Args:
        curve: columns attention, length, value.
        table_id: HTML identifier.
        caption: caption of the table.
    """
    lengths = sorted(curve["length"].unique())
    wide = curve.pivot(index="attention", columns="length", values="value").sort_index()
    table = Table(table_id, caption, [Column("attention"), *(Column(f"{length:,}") for length in lengths)], [])
    decimals, why = decimals_for(curve["value"]), "no result at this length"
    for name, values in wide.iterrows():
        table.rows.append(Row(str(name), [_number(table, value, decimals, why) for value in values]))
    return table


def correlation_table(pairs: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Return Pearson correlations with confidence interval and number of attentions, one row per pair.

    Args:
        pairs: columns a, b, pearson, shared, low, high.
        table_id: HTML identifier.
        caption: caption of the table.
    """
    columns = [Column("pair"), Column("correlation"), Column("attentions", hint="number of shared attentions")]
    table = Table(table_id, caption, columns, [])
    for first, second, r, n, low, high in pairs[["a", "b", "pearson", "shared", "low", "high"]].itertuples(
        index=False, name=None
    ):
        cell = _number(table, r, 2, "fewer than three shared attentions, or all with the same score")
        cell.detail = plain_interval(low, high, 2)
        table.rows.append(Row(f"{first} and {second}", [cell, Entry(str(n), n)], kind="other"))
    return table


def benefit_table(benefit: pd.DataFrame, *, table_id: str, caption: str) -> Table:
    """Return the index of the best efficient attention, of softmax attention and of no attention, per task.

    Args:
        benefit: columns task, efficient, vanilla, without.
        table_id: HTML identifier.
        caption: caption of the table.
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
    """Return the efficiency length of each attention relative to softmax attention.

    Args:
        lengths: columns attention, resource (time, memory), length, low, high, r2.
        table_id: HTML identifier.
        caption: caption of the table.
    """
    table = Table(table_id, caption, [Column("attention")], [])
    table.rows = [Row(name, []) for name in dict.fromkeys(lengths["attention"])]
    for resource in dict.fromkeys(lengths["resource"]):
        table.columns += [
            Column(f"efficiency length ({resource})", "↓", "lower is better"),
            Column("R²", hint="of the fitted curve"),
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
        return [table.missing("the curves could not be fitted"), r2]
    interval = plain_interval(found["low"], found["high"], 0)
    return [Entry(plain(found["length"], 0), found["length"], interval), r2]


def _number(table: Table, value: float, decimals: int, reason: str) -> Entry:
    return Entry(plain(value, decimals), value) if math.isfinite(value) else table.missing(reason)
