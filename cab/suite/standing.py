"""Where an attention stands among the records of the suite: its index, its rank, and where it loses most."""

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
HEADER = ("pattern", "index", "low", "high", "rank", "resolved above", "resolved below", "CPU s a run", "loses most")


@dataclass(frozen=True)
class Standing:
    """One attention among others: a row a pattern by :data:`HEADER`, and why cells of it are in no index."""

    attention: str
    others: int
    rows: list[list[str]]
    left_out: list[str]


def standings(records: Sequence[Record], field: Path = MINI_DIR) -> list[Standing]:
    """Where each attention of ``records`` stands among the records in the folder ``field``.

    Cells in which those records do not measure attention (see :mod:`cab.suite.check`) are left out, and named.
    """
    names = list(dict.fromkeys(record.cell["attention"] for record in records))
    known = [record for _, record in whole_records(field, [])]
    return [
        _standing(
            name,
            [record for record in records if record.cell["attention"] == name],
            [record for record in known if record.cell["attention"] != name],
        )
        for name in names
    ]


def _standing(name: str, mine: Sequence[Record], others: Sequence[Record]) -> Standing:
    cells = {cell.cell.key: cell for cell in collect(others)}
    failures = {key: "; ".join(check_cell(cell).failures) for key, cell in cells.items()}
    unfinished = {_key(r): f"seed {r.cell['seed']} is {r.status}" for r in mine if r.status is not Status.FINISHED}
    ran = dict.fromkeys(_key(record) for record in mine)
    reasons = {key: unfinished.get(key) or failures.get(key, "no cell of the suite") for key in ran}
    left_out = [f"{' '.join(key)}: {reason}" for key, reason in reasons.items() if reason]
    compared = [key for key, reason in reasons.items() if not reason]
    if not compared:
        return Standing(name, 0, [], left_out)
    results = table_of(record for record in (*mine, *others) if _key(record) in compared)
    scores = score(results)
    patterns = sorted({pattern for _, _, pattern in compared}, key=pattern_rank)
    rows = [_row(name, scores, [cells[key] for key in compared if key[2] == pattern]) for pattern in patterns]
    return Standing(name, results["attention"].nunique() - 1, rows, left_out)


def _key(record: Record) -> Key:
    return record.cell["task"], record.cell["backbone"], record.cell["pattern"]


def _row(name: str, scores: Scores, cells: Sequence[CellScores]) -> list[str]:
    """By :data:`HEADER`."""
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
        _loss(name, scores.results, cells),
    ]


def _loss(name: str, results: pd.DataFrame, cells: Sequence[CellScores]) -> str:
    """The cell, and the part of it that is scored apart, in which the least of vanilla's gain over none is kept."""
    kept = []
    for cell in cells:
        place = (results["task"] == cell.cell.task) & (results["backbone"] == cell.cell.backbone)
        here = results[place & (results["pattern"] == cell.cell.pattern)]
        means = here.groupby(["metric", "attention"])["value"].mean().unstack()
        for metric, row in means.map(cell.cell.scaled).iterrows():
            gain = row["vanilla"] - row["none"]
            if gain and not math.isnan(row[name]):
                kept.append(((row[name] - row["none"]) / gain, f"{cell.cell.task} {cell.cell.backbone} {metric}"))
    if not kept:
        return "-"
    share, where = min(kept)
    return f"{where}: {f'{share:.0%}' if share > 0 else 'nothing'} of vanilla's gain"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
