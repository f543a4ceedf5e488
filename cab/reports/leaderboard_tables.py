"""The two tables of a pattern: compositional index and raw metrics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from cab.records.results import PUBLISHED, UNVERIFIED_MARK, legend
from cab.registry.registries import ATTENTIONS
from cab.reports.card import card_id
from cab.reports.leaderboard import COSTS, place_fields, with_place
from cab.reports.records import baselines
from cab.reports.tables import (
    COST_LABELS,
    MISSING,
    Column,
    Entry,
    Group,
    Row,
    Table,
    cost_text,
    decimals_for,
    element_id,
    mark_best,
    plain,
    plain_interval,
    records_link,
)
from cab.scoring.index import AVERAGE
from cab.scoring.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK
from cab.suite.descriptions import metric_meanings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from cab.reports.leaderboard import Board


def index_table(board: Board, pattern: str) -> Table:
    """Return the compositional index of one pattern: average, tasks, cost and seeds, best attention first.

    On generated data, attentions and tasks without any index are left out, unless nothing has one.
    """
    tasks, rows = board.tasks(pattern), board.rows(pattern)
    shown = [AVERAGE, *tasks] if len(tasks) != 1 else tasks
    if board.suite.synthetic and any(_has_index(row, shown) for row in rows):
        rows = [row for row in rows if _has_index(row, shown)]
        shown = [task for task in shown if any(_has_index(row, [task]) for row in rows)]
        rows.sort(key=lambda row: -row[_index_field(shown[0])] if _has_index(row, shown[:1]) else math.inf)
    columns = [Column("average" if task == AVERAGE else task, "↑", "higher is better") for task in shown]
    columns[0].sort = "descending"
    columns += [Column(COST_LABELS[cost], "↓", "lower is better") for cost in COSTS]
    columns += [Column("seeds", hint="smallest number of any cell"), Column("revision")]
    caption = f"{board.suite.heading}, pattern {pattern}: compositional index"
    table = Table(element_id(board.suite.key, pattern, "index"), caption, [Column("attention"), *columns], [])
    table.legend = legend(board.suite.results[board.suite.results["pattern"] == pattern])
    for row in rows:
        cells = [_index_cell(table, board, row, task) for task in shown]
        for cost in COSTS:
            known = math.isfinite(row[cost])
            cells.append(
                Entry(cost_text(cost, row[cost]), row[cost]) if known else table.missing("not recorded for all runs")
            )
        revision = " ".join(name[:10] for name in row["revision"].split())
        cells += [Entry(str(row["seeds"]), row["seeds"]), Entry(revision or MISSING)]
        table.rows.append(_attention_row(row, cells))
    for column in range(len(shown)):
        mark_best(table.rows, column, higher_is_better=True)
    if board.suite.preset != PUBLISHED:
        single = [row for row, own in zip(table.rows, rows, strict=True) if own["seeds"] == 1]
        _mark_single_seeds(table, range(len(shown)), single)
    return table


def _attention_row(row: dict[str, Any], cells: list[Entry]) -> Row:
    name = row["attention"]
    href = f"#{card_id(name)}" if name in ATTENTIONS.names() else ""
    return Row(name, cells, sign=UNVERIFIED_MARK if row["verified"] == "no" else "", href=href)


def _has_index(row: dict[str, Any], tasks: Sequence[str]) -> bool:
    return any(math.isfinite(row[_index_field(task)]) for task in tasks)


def _index_field(task: str) -> str:
    return "index" if task == AVERAGE else f"{task}.index"


def _index_cell(table: Table, board: Board, row: dict[str, Any], task: str) -> Entry:
    prefix = "" if task == AVERAGE else f"{task}."
    ci, low, high = (row[prefix + bound] for bound in ("index", "low", "high"))
    if not math.isfinite(ci):
        why = board.reasons.get((row["pattern"], row["attention"]), {})
        return table.missing(why.get(task, "not scored"))
    fields = {"preset": row["preset"], "pattern": row["pattern"], "attention": row["attention"]}
    if task != AVERAGE:
        fields["task"] = task
    return Entry(plain(ci, 3), ci, plain_interval(low, high, 3), records_link(**fields))


def metrics_table(board: Board, pattern: str) -> Table:
    """Return the raw metrics and costs of one pattern, grouped by place, with trivial baselines in fixed rows."""
    results = board.suite.results[board.suite.results["pattern"] == pattern]
    measured = board.measured[board.measured["pattern"] == pattern]
    numbers = {
        (place, metric, attention): (value, deviation)
        for place, metric, attention, value, deviation in measured[
            ["place", "metric", "attention", "value", "deviation"]
        ].itertuples(index=False, name=None)
    }
    trivial = baselines(results)
    caption = f"{board.suite.heading}, pattern {pattern}: raw metrics, mean over seeds ± standard deviation"
    table = Table(element_id(board.suite.key, pattern, "metrics"), caption, [Column("attention")], [])
    table.legend = legend(results)
    table.rows = [_attention_row(row, []) for row in board.rows(pattern)]
    table.fixed = [Row(name, [], kind="baseline") for name in dict.fromkeys(name for _, name, _ in trivial)]
    fields = {"preset": board.suite.preset, "pattern": pattern}
    scores: list[int] = []
    for column in _measured_columns(results, measured):
        group = column.place.replace("/", " / ")
        if not table.groups or table.groups[-1].label != group:
            table.groups.append(Group(group, 0))
        table.groups[-1].span += 1
        hint = "higher is better" if column.higher_is_better else "lower is better"
        meaning = metric_meanings().get((column.fields["task"], column.metric))
        hint = f"{meaning}; {hint}" if meaning and board.suite.synthetic else hint
        table.columns.append(Column(column.label, "↑" if column.higher_is_better else "↓", hint))
        found = [numbers.get((column.place, column.metric, row.label), ()) for row in table.rows]
        decimals = decimals_for(value for value, *_ in filter(None, found))
        for row, number in zip(table.rows, found, strict=True):
            link = records_link(**fields, **column.fields, attention=row.label)
            row.cells.append(_measured_cell(table, column.metric, number, decimals, link))
        for row in table.fixed:
            value = trivial.get((column.place, row.label, column.metric), math.nan)
            row.cells.append(Entry(plain(value, decimals) if math.isfinite(value) else MISSING))
        mark_best(table.rows, len(table.columns) - 2, higher_is_better=column.higher_is_better)
        scores += [len(table.columns) - 2] if column.metric not in COSTS else []
    if board.suite.preset != PUBLISHED:
        _mark_single_seeds(table, scores, table.rows)
    return table


class _Measured(NamedTuple):
    """A column of raw values: a metric or cost of one place; ``fields`` identify its records."""

    place: str
    metric: str
    label: str
    higher_is_better: bool
    fields: dict[str, str]


def _measured_columns(results: pd.DataFrame, measured: pd.DataFrame) -> Iterator[_Measured]:
    """Yield the metrics of each place, then its costs; metrics at a single length are shown as curves."""
    metrics = with_place(results[results["at_length"].isna()]).drop_duplicates(["place", "metric"])
    known = measured[measured["metric"].isin(COSTS)].dropna(subset=["value"])
    costs = set(zip(known["place"], known["metric"], strict=True))
    places = place_fields(results)
    for place, values in places.items():
        fields = {key: value for key, value in values.items() if value}
        here = metrics.loc[metrics["place"] == place, ["metric", "unit", "higher_is_better"]]
        for metric, unit, higher in here.itertuples(index=False, name=None):
            yield _Measured(place, metric, f"{metric} ({unit})" if unit else metric, bool(higher), fields)
        for cost in COSTS if len(places) > 1 else ():  # the index table shows the cost of a single place
            if (place, cost) in costs:
                yield _Measured(place, cost, COST_LABELS[cost], higher_is_better=False, fields=fields)


def _measured_cell(table: Table, metric: str, number: tuple[float, ...], decimals: int, link: str) -> Entry:
    if not number:
        return table.missing("no result")
    value, deviation = number
    if not math.isfinite(value):
        return table.missing("NaN or inf in at least one run")
    if metric in COSTS:
        return Entry(cost_text(metric, value), value, href=link)
    spread = f"± {plain(deviation, decimals)}" if math.isfinite(deviation) else ""
    return Entry(plain(value, decimals), value, spread, link)


def _mark_single_seeds(table: Table, columns: Sequence[int], rows: Sequence[Row]) -> None:
    """Mark the scores of ``rows`` that have one seed, and explain the mark."""
    for row in rows:
        for column in columns:
            cell = row.cells[column]
            if cell.value is not None and not cell.detail:
                cell.text += ONE_SEED_MARK
    if any(cell.text.endswith(ONE_SEED_MARK) for row in rows for cell in row.cells):
        table.legend.append(ONE_SEED_LEGEND)
