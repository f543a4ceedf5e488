"""The table of a pattern: compositional index, raw metrics and cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from cab.records.record import COMPARISON_KEY
from cab.records.results import PUBLISHED, legend
from cab.records.verified import UNVERIFIED_MARK
from cab.reports.card import card_link
from cab.reports.leaderboard import trivial_baselines
from cab.reports.tables import (
    BASELINE,
    MISSING,
    Column,
    Fields,
    Table,
    TableCell,
    decimals_for,
    deviation_text,
    element_id,
    frame_table,
    interval_text,
    number_cell,
    number_column,
)
from cab.results.cells import metric_meanings
from cab.results.index import AVERAGE
from cab.results.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK

if TYPE_CHECKING:
    from cab.reports.leaderboard import Board

COSTS = {
    "params": ("parameters, M", 1e-6, 2),
    "train_seconds": ("training time, s", 1, 1),
    "peak_memory_bytes": ("peak memory, MiB", 2**-20, 1),
}
"""Header, factor and decimals of each cost."""


def pattern_table(board: Board, pattern: str) -> Table:
    """Return the results of one pattern, best index first; the trivial baselines have metrics only."""
    results, tasks = board.results[board.results["pattern"] == pattern], board.tasks(pattern)
    shown = [AVERAGE, *tasks] if len(tasks) != 1 else tasks
    rows = board.table[board.table["pattern"] == pattern]
    rows = rows.sort_values([f"{_prefix(task)}index" for task in shown], ascending=False, kind="stable")
    rows = rows.assign(
        sign=rows["verified"].map({"no": UNVERIFIED_MARK}).fillna(""),
        href=rows["attention"].map(card_link),
        **{name: rows[name] * factor for name, (_, factor, _) in COSTS.items()},
    )
    trivial = trivial_baselines(results)
    names = dict.fromkeys(name for *_, name in trivial)
    baselines = [
        {**dict.fromkeys(rows.columns), "attention": name, "detail": BASELINE, "sign": "", "href": ""} for name in names
    ]
    columns = [_index_column(board, task) for task in shown]
    columns += _metric_columns(board, results, trivial)
    for name, (label, _, decimals) in COSTS.items():
        columns.append(number_column(label, name, decimals, better="lower", hint="of all cells", group="cost"))
    columns.append(number_column("seeds", "seeds", 0, hint="smallest number of any cell", group="cost"))
    fields: list[Any] = [*rows.to_dict("records"), *baselines]
    table = frame_table(
        fields,
        columns,
        table_id=element_id(board.key, pattern, "table"),
        caption=f"{board.heading}, pattern {pattern}: raw metrics are means over seeds ± standard deviation",
        legend=legend(results),
    )
    if any(cell.text.endswith(ONE_SEED_MARK) for row in table.rows for cell in row.cells):
        table.legend.append(ONE_SEED_LEGEND)
    return table


def _prefix(task: str) -> str:
    return "" if task == AVERAGE else f"{task}."


def _index_column(board: Board, task: str) -> Column:
    def cell(row: Fields) -> TableCell:
        index, low, high = (row[_prefix(task) + bound] for bound in ("index", "low", "high"))
        if row.get("detail") == BASELINE:
            return TableCell(MISSING)
        reason = board.reasons.get((row["pattern"], row["attention"]), {}).get(task, "not scored")
        shown = number_cell(index, 3, reason, interval_text(low, high, 3))
        return _with_seed_mark(board, shown) if row["seeds"] == 1 else shown

    label = "average" if task == AVERAGE else task
    return Column(label, cell, "higher", group="compositional index", marks_best=True)


def _with_seed_mark(board: Board, cell: TableCell) -> TableCell:
    """Mark a score without deviation as that of a single seed; published results do not record their seeds."""
    if cell.value is not None and not cell.detail and board.preset != PUBLISHED:
        cell.text += ONE_SEED_MARK
    return cell


def _metric_columns(
    board: Board, results: pd.DataFrame, trivial: dict[tuple[str, str, str], float]
) -> Iterator[Column]:
    """Yield the metrics of each place; metrics at a single length are shown as curves."""
    pattern = results["pattern"].iloc[0]
    measured = board.measured[board.measured["pattern"] == pattern].groupby(["place", "metric"])
    metrics = results[results["at_length"].isna()].drop_duplicates(["place", "metric"])
    for metric in metrics.sort_values([*COMPARISON_KEY], kind="stable").itertuples():
        place, name = str(metric.place), str(metric.metric)
        values = measured.get_group((place, name)).set_index("attention")
        decimals = decimals_for(values["value"])
        cells = {
            ("", str(each)): _with_seed_mark(
                board,
                number_cell(value, decimals, "NaN or inf in at least one run", deviation_text(deviation, decimals)),
            )
            for each, value, deviation in values[["value", "deviation"]].itertuples(name=None)
        }
        cells |= {
            (BASELINE, each): number_cell(value, decimals)
            for (*of, each), value in trivial.items()
            if of == [place, name]
        }

        def cell(row: Fields, cells: dict[tuple[str, str], TableCell] = cells) -> TableCell:
            return cells.get((row.get("detail", ""), row["attention"]), TableCell(MISSING))

        hint = metric_meanings().get((str(metric.task), name), "") if board.synthetic else ""
        better = "higher" if metric.higher_is_better else "lower"
        label = f"{name} ({metric.unit!s})" if metric.unit else name
        yield Column(label, cell, better, hint, group=place.replace("/", " / "), marks_best=True)
