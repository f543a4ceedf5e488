"""Comparison of an attention with the reference results of the suite: index, rank and weakest metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from cab.patterns import pattern_rank
from cab.records.record import Record, Status
from cab.records.results import MINI_DIR, table_of, whole_records
from cab.scoring.index import AVERAGE, Scores, score
from cab.scoring.order import order_table
from cab.suite.cells import CellScores, collect
from cab.suite.check import check_cell

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str, str]
"""Task, backbone, pattern."""
HEADER = (
    *("pattern", "index", "low", "high", "rank"),
    *("significantly better", "significantly worse", "CPU s/run", "weakest metric"),
)


@dataclass(frozen=True)
class Comparison:
    """The comparison of one attention with others.

    Attributes:
        attention: its name.
        others: number of attentions it is compared with.
        rows: one row per pattern, with the columns of :data:`HEADER`.
        left_out: cells that are excluded from the index, with reasons.
    """

    attention: str
    others: int
    rows: list[list[str]]
    left_out: list[str]


def compare_with_reference(records: Sequence[Record], reference: Path = MINI_DIR) -> list[Comparison]:
    """Compare each attention of ``records`` with the records in the folder ``reference``.

    Cells that do not measure attention according to the reference (see :mod:`cab.suite.check`) are excluded and listed.
    """
    names = list(dict.fromkeys(record.cell["attention"] for record in records))
    known = [record for _, record in whole_records(reference, [])]
    return [
        _comparison(
            name,
            [record for record in records if record.cell["attention"] == name],
            [record for record in known if record.cell["attention"] != name],
        )
        for name in names
    ]


def _comparison(name: str, mine: Sequence[Record], others: Sequence[Record]) -> Comparison:
    cells = {cell.cell.key: cell for cell in collect(others)}
    failures = {key: "; ".join(check_cell(cell).failures) for key, cell in cells.items()}
    unfinished = {_key(r): f"seed {r.cell['seed']} is {r.status}" for r in mine if r.status is not Status.FINISHED}
    ran = dict.fromkeys(_key(record) for record in mine)
    reasons = {key: unfinished.get(key) or failures.get(key, "not a cell of the suite") for key in ran}
    left_out = [f"{' '.join(key)}: {reason}" for key, reason in reasons.items() if reason]
    compared = [key for key, reason in reasons.items() if not reason]
    if not compared:
        return Comparison(name, 0, [], left_out)
    results = table_of(record for record in (*mine, *others) if _key(record) in compared)
    scores = score(results)
    patterns = sorted({pattern for _, _, pattern in compared}, key=pattern_rank)
    rows = [_row(name, scores, [cells[key] for key in compared if key[2] == pattern]) for pattern in patterns]
    return Comparison(name, results["attention"].nunique() - 1, rows, left_out)


def _key(record: Record) -> Key:
    return record.cell["task"], record.cell["backbone"], record.cell["pattern"]


def _row(name: str, scores: Scores, cells: Sequence[CellScores]) -> list[str]:
    """Return the columns of :data:`HEADER` for one pattern."""
    pattern = cells[0].cell.pattern
    table = scores.table[(scores.table["pattern"] == pattern) & (scores.table["task"] == AVERAGE)]
    table = table.dropna(subset=["index"]).set_index("attention")
    if name not in table.index:
        return [pattern, *["-"] * (len(HEADER) - 1)]
    own = table.loc[[name]].to_dict("records")[0]
    order = order_table(scores)
    order = order[(order["pattern"] == pattern) & (order["task"] == AVERAGE) & (order["resolved"] == "yes")]
    above, below = order[order["worse"] == name]["better"], order[order["better"] == name]["worse"]
    runs = scores.results[(scores.results["pattern"] == pattern) & (scores.results["attention"] == name)]
    seconds = [record.cost.cpu_seconds or math.nan for record in runs.drop_duplicates("file")["record"]]
    return [
        pattern,
        *(_number(own[column]) for column in ("index", "low", "high")),
        f"{list(table.index).index(name) + 1} of {len(table)}",
        ", ".join(above) or "-",
        ", ".join(below) or "-",
        f"{fmean(seconds):.0f}",
        _weakest_metric(name, scores.results, cells),
    ]


def _weakest_metric(name: str, results: pd.DataFrame, cells: Sequence[CellScores]) -> str:
    """Return the cell and metric with the smallest share of vanilla's gain over no attention."""
    shares = []
    for cell in cells:
        place = (results["task"] == cell.cell.task) & (results["backbone"] == cell.cell.backbone)
        here = results[place & (results["pattern"] == cell.cell.pattern)]
        means = here.groupby(["metric", "attention"])["value"].mean().unstack()
        for metric, row in means.map(cell.cell.scaled).iterrows():
            gain = row["vanilla"] - row["none"]
            if gain and not math.isnan(row[name]):
                shares.append(((row[name] - row["none"]) / gain, f"{cell.cell.task} {cell.cell.backbone} {metric}"))
    if not shares:
        return "-"
    share, where = min(shares)
    return f"{where}: {max(share, 0.0):.0%} of vanilla's gain"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
