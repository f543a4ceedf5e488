"""The two tables of a pattern: compositional index and raw metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from cab.records.record import COMPARISON_KEY
from cab.records.results import PUBLISHED, legend
from cab.records.verified import UNVERIFIED_MARK
from cab.reports.card import card_link
from cab.reports.leaderboard import COSTS, trivial_baselines
from cab.reports.tables import (
    FIXED,
    MISSING,
    SORTED,
    Cell,
    Column,
    Fields,
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


def cost_cell(cost: str, value: float, href: str = "") -> Cell:
    """Return a cost with a readable unit: millions of parameters, seconds to hours, MiB to GiB."""
    if not math.isfinite(value):
        return Cell(MISSING, reason="not recorded for all runs")
    scales = {
        "params": ((1e6, 1, " M", 2), (1, 1, "", 0)),
        "train_seconds": ((3600, 2, " h", 1), (60, 2, " min", 1), (1, 0, " s", 1)),
        "peak_memory_bytes": ((2**30, 1, " GiB", 2), (2**20, 0, " MiB", 1)),
    }
    scale, _, unit, decimals = next((one for one in scales[cost] if value >= one[0] * one[1]), scales[cost][-1])
    return Cell(f"{value / scale:,.{decimals}f}{unit}", value, href=href)


def index_table(board: Board, pattern: str) -> Table:
    """Return the compositional index of one pattern: average, tasks, cost and seeds, best attention first.

    On generated data, attentions and tasks without any index are left out, unless nothing has one.
    """
    tasks, rows = board.tasks(pattern), _rows(board, pattern)
    shown = [AVERAGE, *tasks] if len(tasks) != 1 else tasks
    has_index = rows[[_prefix(task) + "index" for task in shown]].notna().set_axis(shown, axis=1)
    if board.synthetic and has_index.any(axis=None):
        rows = rows[has_index.any(axis=1)]
        shown = [task for task in shown if has_index[task].any()]
        rows = rows.sort_values(_prefix(shown[0]) + "index", ascending=False, kind="stable")
    columns = [_index_column(board, task, "descending" if task == shown[0] else "") for task in shown]
    columns += [_cost_column(cost) for cost in COSTS]
    columns.append(number_column("seeds", "seeds", 0, hint="smallest number of any cell"))
    columns.append(
        Column("revision", lambda row: Cell(" ".join(name[:10] for name in row["revision"].split()) or MISSING))
    )
    return _table(board, pattern, rows, columns, "compositional index", "index")


def _cost_column(cost: str) -> Column:
    return Column(COST_LABELS[cost], lambda row: cost_cell(cost, row[cost]), "lower")


def metrics_table(board: Board, pattern: str) -> Table:
    """Return the raw metrics and costs of one pattern, grouped by place, with trivial baselines in fixed rows."""
    results = board.results[board.results["pattern"] == pattern]
    trivial = trivial_baselines(results)
    fixed = pd.DataFrame({"attention": list(dict.fromkeys(name for *_, name in trivial)), "body": FIXED})
    attentions = _rows(board, pattern)[["attention", "sign", "href"]].assign(body=SORTED)
    rows = pd.concat([attentions, fixed]).fillna({"sign": "", "href": ""})
    columns = list(_metric_columns(board, results, trivial))
    return _table(board, pattern, rows, columns, "raw metrics, mean over seeds ± standard deviation", "metrics")


def _rows(board: Board, pattern: str) -> pd.DataFrame:
    """Return the rows of the leaderboard of one pattern, with the fields that :func:`frame_table` displays."""
    rows = board.table[board.table["pattern"] == pattern]
    signs = rows["verified"].map({"no": UNVERIFIED_MARK}).fillna("")
    return rows.assign(sign=signs, href=rows["attention"].map(card_link))


def _table(board: Board, pattern: str, rows: pd.DataFrame, columns: Sequence[Column], content: str, name: str) -> Table:
    table = frame_table(
        rows,
        columns,
        table_id=element_id(board.key, pattern, name),
        caption=f"{board.heading}, pattern {pattern}: {content}",
        legend=legend(board.results[board.results["pattern"] == pattern]),
    )
    if any(cell.text.endswith(ONE_SEED_MARK) for row in table.rows for cell in row.cells):
        table.legend.append(ONE_SEED_LEGEND)
    return table


def _prefix(task: str) -> str:
    return "" if task == AVERAGE else f"{task}."


def _index_column(board: Board, task: str, sort: str) -> Column:
    def cell(row: Fields) -> Cell:
        index, low, high = (row[_prefix(task) + bound] for bound in ("index", "low", "high"))
        of_task = {} if task == AVERAGE else {"task": task}
        href = records_link(**{name: row[name] for name in ("preset", "pattern", "attention")}, **of_task)
        reason = board.reasons.get((row["pattern"], row["attention"]), {}).get(task, "not scored")
        shown = number_cell(index, 3, reason, interval_text(low, high, 3), href)
        return _with_seed_mark(board, shown) if row["seeds"] == 1 else shown

    return Column("average" if task == AVERAGE else task, cell, "higher", sort=sort, marks_best=True)


def _with_seed_mark(board: Board, cell: Cell) -> Cell:
    """Mark a score without deviation as that of a single seed; published results do not record their seeds."""
    if cell.value is not None and not cell.detail and board.preset != PUBLISHED:
        cell.text += ONE_SEED_MARK
    return cell


def _metric_columns(
    board: Board, results: pd.DataFrame, trivial: Mapping[tuple[str, str, str], float]
) -> Iterator[Column]:
    """Yield the metrics of each place, then its costs; metrics at a single length are shown as curves."""
    pattern = results["pattern"].iloc[0]
    measured = board.measured[board.measured["pattern"] == pattern].groupby(["place", "metric"])
    places = results.drop_duplicates("place").sort_values([*COMPARISON_KEY])
    metrics = results[results["at_length"].isna()].drop_duplicates(["place", "metric"])
    for place, *names in places[["place", *COMPARISON_KEY]].itertuples(index=False, name=None):
        link = {"preset": board.preset, "pattern": pattern, **dict(zip(COMPARISON_KEY, names, strict=True))}
        link = {key: name for key, name in link.items() if name}
        columns = []
        for row in metrics[metrics["place"] == place].itertuples():
            hint = metric_meanings().get((row.task, row.metric), "") if board.synthetic else ""
            label = f"{row.metric} ({row.unit})" if row.unit else row.metric
            columns.append((row.metric, label, "higher" if row.higher_is_better else "lower", hint))
        if len(places) > 1:  # the index table shows the cost of a single place
            columns += [(cost, COST_LABELS[cost], "lower", "") for cost in COSTS]
        for metric, label, better, hint in columns:
            values = measured.get_group((place, metric))
            if metric in COSTS and values["value"].isna().all():
                continue
            fixed = {name: value for (*of, name), value in trivial.items() if of == [place, metric]}
            cells = _metric_cells(board, metric, values, link)
            cells |= {(FIXED, name): number_cell(value, decimals_for(values["value"])) for name, value in fixed.items()}
            yield Column(label, _cell_of(cells), better, hint, group=place.replace("/", " / "), marks_best=True)


def _cell_of(cells: Mapping[tuple[str, str], Cell]) -> Callable[[Fields], Cell]:
    no_result = {SORTED: "no result", FIXED: ""}
    return lambda row: cells.get((row["body"], row["attention"]), Cell(MISSING, reason=no_result[row["body"]]))


def _metric_cells(
    board: Board, metric: str, values: pd.DataFrame, link: Mapping[str, str]
) -> dict[tuple[str, str], Cell]:
    """Return mean and standard deviation of each attention, by body and name."""
    cells = {}
    decimals, reason = decimals_for(values["value"]), "NaN or inf in at least one run"
    for name, value, deviation in values[["attention", "value", "deviation"]].itertuples(index=False, name=None):
        href = records_link(**link, attention=name)
        if metric in COSTS:
            cells[SORTED, name] = cost_cell(metric, value, href)
        else:
            cell = number_cell(value, decimals, reason, deviation_text(deviation, decimals), href)
            cells[SORTED, name] = _with_seed_mark(board, cell)
    return cells
