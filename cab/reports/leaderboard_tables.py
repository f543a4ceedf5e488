"""The two tables of a pattern: compositional index and raw metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from cab.records.record import COMPARISON_KEY
from cab.records.results import PUBLISHED, UNVERIFIED_MARK, legend
from cab.reports.card import card_link
from cab.reports.leaderboard import COSTS, trivial_baselines
from cab.reports.tables import (
    FIXED,
    MISSING,
    SORTED,
    Cell,
    Column,
    Table,
    decimals_for,
    deviation_text,
    element_id,
    frame_table,
    interval_text,
    number_cell,
    number_column,
    records_link,
)
from cab.scoring.index import AVERAGE
from cab.scoring.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK
from cab.suite.cells import metric_meanings

if TYPE_CHECKING:
    from cab.reports.leaderboard import Board

COST_LABELS = {"params": "parameters", "train_seconds": "training time", "peak_memory_bytes": "peak memory"}
NOT_RECORDED = "not recorded for all runs"


def cost_text(metric: str, value: float) -> str:
    """Format a cost with a readable unit: millions of parameters, seconds to hours, MiB to GiB."""
    if metric == "params":
        return f"{value / 1e6:,.2f} M" if value >= 1e6 else f"{value:,.0f}"
    if metric == "train_seconds":
        scale, unit = next(((s, u) for s, u in ((3600, "h"), (60, "min")) if value >= 2 * s), (1, "s"))
        return f"{value / scale:,.1f} {unit}"
    return f"{value / 2**30:,.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.1f} MiB"


def index_table(board: Board, pattern: str) -> Table:
    """Return the compositional index of one pattern: average, tasks, cost and seeds, best attention first.

    On generated data, attentions and tasks without any index are left out, unless nothing has one.
    """
    tasks, rows = board.tasks(pattern), _rows(board, pattern)
    shown = [AVERAGE, *tasks] if len(tasks) != 1 else tasks
    known = rows[[_field(task) for task in shown]].notna()
    if board.suite.synthetic and known.any(axis=None):
        rows = rows[known.any(axis=1)]
        shown = [task for task in shown if known[_field(task)].any()]
        rows = rows.sort_values(_field(shown[0]), ascending=False, kind="stable")
    columns = [_index_column(board, task, "descending" if task == shown[0] else "") for task in shown]
    columns += [_cost_column(cost) for cost in COSTS]
    columns.append(number_column("seeds", "seeds", 0, hint="smallest number of any cell"))
    columns.append(
        Column("revision", lambda row: Cell(" ".join(name[:10] for name in row["revision"].split()) or MISSING))
    )
    caption = f"{board.suite.heading}, pattern {pattern}: compositional index"
    return _table(board, pattern, rows, columns, caption, "index")


def metrics_table(board: Board, pattern: str) -> Table:
    """Return the raw metrics and costs of one pattern, grouped by place, with trivial baselines in fixed rows."""
    results = board.suite.results[board.suite.results["pattern"] == pattern]
    trivial = trivial_baselines(results)
    fixed = pd.DataFrame({"attention": list(dict.fromkeys(name for *_, name in trivial)), "body": FIXED})
    attentions = _rows(board, pattern)[["attention", "sign", "href"]].assign(body=SORTED)
    rows = pd.concat([attentions, fixed]).fillna({"sign": "", "href": ""})
    caption = f"{board.suite.heading}, pattern {pattern}: raw metrics, mean over seeds ± standard deviation"
    return _table(board, pattern, rows, list(_metric_columns(board, pattern, results, trivial)), caption, "metrics")


def _rows(board: Board, pattern: str) -> pd.DataFrame:
    """Return the rows of the leaderboard of one pattern, with the fields that :func:`frame_table` displays."""
    rows = board.table[board.table["pattern"] == pattern]
    signs = rows["verified"].map({"no": UNVERIFIED_MARK}).fillna("")
    return rows.assign(sign=signs, href=rows["attention"].map(card_link))


def _table(board: Board, pattern: str, rows: pd.DataFrame, columns: Sequence[Column], caption: str, name: str) -> Table:
    notes = legend(board.suite.results[board.suite.results["pattern"] == pattern])
    table_id = element_id(board.suite.key, pattern, name)
    table = frame_table(rows, columns, table_id=table_id, caption=caption, legend=notes)
    if any(cell.text.endswith(ONE_SEED_MARK) for row in table.rows for cell in row.cells):
        table.legend.append(ONE_SEED_LEGEND)
    return table


def _field(task: str) -> str:
    return "index" if task == AVERAGE else f"{task}.index"


def _index_column(board: Board, task: str, sort: str) -> Column:
    def cell(row: Mapping[str, Any]) -> Cell:
        prefix = _field(task).removesuffix("index")
        index, low, high = (row[prefix + bound] for bound in ("index", "low", "high"))
        fields = {name: row[name] for name in ("preset", "pattern", "attention")}
        fields |= {} if task == AVERAGE else {"task": task}
        why = board.reasons.get((row["pattern"], row["attention"]), {})
        detail = interval_text(low, high, 3)
        made = number_cell(index, 3, why.get(task, "not scored"), detail, records_link(**fields))
        return _with_seed_mark(board, made) if row["seeds"] == 1 else made

    return Column("average" if task == AVERAGE else task, cell, "higher", sort=sort, marks_best=True)


def _with_seed_mark(board: Board, cell: Cell) -> Cell:
    """Mark a score without deviation as that of a single seed; published results do not record their seeds."""
    if cell.value is not None and not cell.detail and board.suite.preset != PUBLISHED:
        cell.text += ONE_SEED_MARK
    return cell


def _cost_column(cost: str) -> Column:
    def cell(row: Mapping[str, Any]) -> Cell:
        value = row[cost]
        return Cell(cost_text(cost, value), value) if math.isfinite(value) else Cell(MISSING, reason=NOT_RECORDED)

    return Column(COST_LABELS[cost], cell, "lower")


def _metric_columns(
    board: Board, pattern: str, results: pd.DataFrame, trivial: Mapping[tuple[str, str, str], float]
) -> Iterator[Column]:
    """Yield the metrics of each place, then its costs; metrics at a single length are shown as curves."""
    measured = board.measured[board.measured["pattern"] == pattern]
    rows_of = {key: rows.set_index("attention") for key, rows in measured.groupby(["place", "metric"])}
    metrics = results[results["at_length"].isna()].drop_duplicates(["place", "metric"])
    places = results.drop_duplicates("place").sort_values([*COMPARISON_KEY])
    for place, *names in places[["place", *COMPARISON_KEY]].itertuples(index=False, name=None):
        fields = {"preset": board.suite.preset, "pattern": pattern}
        fields |= {key: name for key, name in zip(COMPARISON_KEY, names, strict=True) if name}

        def column(
            metric: str, label: str, better: str, hint: str = "", *, place: str = place, fields: Any = fields
        ) -> Column:
            fixed = {name: value for (*of, name), value in trivial.items() if of == [place, metric]}
            cell = _metric_cell(board, metric, rows_of[place, metric], fixed, fields)
            return Column(label, cell, better, hint, group=place.replace("/", " / "), marks_best=True)

        header = ["task", "metric", "unit", "higher_is_better"]
        for task, metric, unit, higher in metrics.loc[metrics["place"] == place, header].itertuples(index=False):
            hint = metric_meanings().get((task, metric), "") if board.suite.synthetic else ""
            yield column(metric, f"{metric} ({unit})" if unit else metric, "higher" if higher else "lower", hint)
        for cost in COSTS if len(places) > 1 else ():  # the index table shows the cost of a single place
            if rows_of[place, cost]["value"].notna().any():
                yield column(cost, COST_LABELS[cost], "lower")


def _metric_cell(
    board: Board, metric: str, measured: pd.DataFrame, trivial: Mapping[str, float], fields: Mapping[str, str]
) -> Callable[[Mapping[str, Any]], Cell]:
    numbers = measured[["value", "deviation"]].T.to_dict("list")
    decimals = decimals_for(measured["value"])

    def cell(row: Mapping[str, Any]) -> Cell:
        name = row["attention"]
        if row["body"] == FIXED:
            return number_cell(trivial.get(name), decimals)
        if name not in numbers:
            return Cell(MISSING, reason="no result")
        value, deviation = numbers[name]
        href = records_link(**fields, attention=name)
        if metric in COSTS and math.isfinite(value):
            return Cell(cost_text(metric, value), value, href=href)
        made = number_cell(value, decimals, "NaN or inf in at least one run", deviation_text(deviation, decimals), href)
        return _with_seed_mark(board, made)

    return cell
