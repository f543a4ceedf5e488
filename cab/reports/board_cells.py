"""The cells of the suite on the page: what each one tests, and the results in it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from cab.files.disk import sanitize_text
from cab.reports.suite_board import SuiteBoard
from cab.reports.tables import MISSING, Column, Entry, Row, Table, decimals_for, element_id, plain, records_link
from cab.scoring.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK
from cab.suite.anchors import ATTENTIONS as ANCHORS
from cab.suite.cells import PRESET
from cab.suite.check import invalid_cells
from cab.suite.descriptions import cell_descriptions, metric_meanings
from cab.suite.gain import SOLVED, CellGain
from cab.suite.results import CellResults
from cab.suite.table import cell_text, interval_text, steps_text


@dataclass(frozen=True)
class CellBlock:
    """One cell: its name, what it tests, a remark on its part in the scores, and its results."""

    name: str
    text: str
    remark: str
    table: Table


def cell_blocks(board: SuiteBoard) -> Iterator[CellBlock]:
    """Yield the cells with results, core cells first."""
    for results in sorted(board.results, key=lambda each: not each.cell.core):
        gains = board.gains.cells[results.cell.key]
        if not gains or not results.runs:
            continue
        cell = results.cell
        remark = "core cell" if cell.core else "not in K"
        if cell.key in invalid_cells():
            remark = f"excluded: {invalid_cells()[cell.key]}"
        yield CellBlock(str(cell), cell_descriptions()[cell.key], remark, _table(results, gains))


def _table(results: CellResults, gains: dict[str, CellGain]) -> Table:
    cell = results.cell
    ranked = sorted(gains.values(), key=lambda gain: (-gain.own.value, gain.attention))
    is_higher = gains[ANCHORS[0]].mean > gains[ANCHORS[1]].mean
    columns = [
        Column("attention"),
        Column(cell.metric, *(("↑", "higher is better") if is_higher else ("↓", "lower is better"))),
        Column("K", "↑", "share of softmax's gain retained, %; higher is better", sort="descending"),
        Column("solved", "↑", f"seeds that retain at least {SOLVED:g}%; higher is better"),
        Column("steps to solve", "↓", "mean number of steps, if every seed solved the cell; lower is better"),
    ]
    meaning = metric_meanings()[cell.task, cell.metric]
    table = Table(element_id("cell", *cell.key), f"{cell.metric}: {meaning}", columns, [])
    decimals = decimals_for(gain.mean for gain in ranked)
    fields = {"preset": PRESET, "task": cell.task, "backbone": cell.backbone, "pattern": cell.pattern}
    for gain in ranked:
        link = records_link(**fields, attention=gain.attention)
        table.rows.append(Row(sanitize_text(gain.attention), _entries(gain, results, decimals, link)))
    for name, value in results.baselines.items():
        table.fixed.append(
            Row(sanitize_text(name), [Entry(plain(value, decimals)), *[Entry(MISSING)] * 3], kind="baseline")
        )
    if any(len(gain.points) == 1 for gain in ranked):
        table.legend = [ONE_SEED_LEGEND]
    return table


def _entries(gain: CellGain, results: CellResults, decimals: int, link: str) -> list[Entry]:
    values = results.values(gain.attention)
    spread = f"± {plain(statistics.stdev(values), decimals)}" if len(values) > 1 else ""
    mark = "" if len(values) > 1 else ONE_SEED_MARK
    interval = "" if gain.attention in ANCHORS or not gain.total.is_known else interval_text(*gain.total.interval())
    return [
        Entry(plain(gain.mean, decimals) + mark, gain.mean, spread, link),
        Entry(cell_text(gain), gain.own.value, interval),
        Entry(f"{gain.solved} of {len(gain.points)}", gain.solved / len(gain.points)),
        Entry(steps_text(gain.steps), gain.steps.value) if gain.steps else Entry(MISSING),
    ]
