"""Tables of the suite on the page: the board, and one table per cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cab.records.verified import LEGEND, UNVERIFIED_MARK
from cab.reports.card import card_link
from cab.reports.suite_board import COST_PATTERNS, SuiteBoard
from cab.reports.tables import (
    FIXED,
    MISSING,
    PINNED,
    SORTED,
    Cell,
    Column,
    Fields,
    Table,
    decimals_for,
    element_id,
    frame_table,
    number_cell,
    number_column,
    plain,
    records_link,
    text_column,
)
from cab.scoring.costs import LENGTH
from cab.scoring.statistics import MARGIN, ONE_SEED_LEGEND, ONE_SEED_MARK, Estimate
from cab.suite.cells import ANCHORS, PRESET, CellResults, cell_descriptions, metric_meanings
from cab.suite.check import invalid_cells
from cab.suite.gain import SOLVED, CellGain
from cab.suite.tuning import FACTORS, TUNED, USABLE
from cab.suite.verdict import cell_text, interval_text, steps_text

CONSTANT = "constant"
"""Tag of attentions whose decode state has the same size at any length."""
UNITS = (("MiB", 2**20), ("KiB", 2**10), ("B", 1))
BOARD_LEGEND = (
    "Second lines: 95% interval over seeds. Bold: no attention is significantly better (Holm's correction, 95%, at "
    f"least {MARGIN:g} points); this includes attentions with a wide interval. Order: mean K over patterns, "
    f"which is not a ranking. {TUNED}: the learning rate is chosen per cell. Without all core cells, the number of "
    "cells with results replaces K. Costs are those of a layer of width 256 with default options, K that of small "
    f"networks with the options of the suite. {MISSING}: no result or measurement."
)


def board_table(board: SuiteBoard) -> Table:
    """Return the table of the page: one row per attention, in the order of the board; own rows are pinned."""
    tags: Any = [_tags(row, board.patterns) for row in board.table.to_dict("records")]
    rows = board.table.assign(
        sign=board.table["verified"].map({"no": UNVERIFIED_MARK}).fillna(""),
        href=board.table["attention"].str.removesuffix(TUNED).map(card_link),
        detail=board.table["own"].map({True: "yours", False: ""}),
        body=board.table["own"].map({True: PINNED, False: SORTED}),
        tags=tags,
    )
    caption = "K: share of softmax attention's gain over no attention that is retained, in percent"
    legend = [BOARD_LEGEND, ONE_SEED_LEGEND, *([LEGEND] if rows["sign"].any() else [])]
    return frame_table(
        rows, board_columns(board.patterns), table_id="suite-board-table", caption=caption, legend=legend
    )


def board_columns(patterns: list[str]) -> list[Column]:
    """Return the columns of the board after the name of the attention."""
    columns = [
        *map(_gain_column, patterns),
        Column("worst cell", _worst_cell, "higher", "smallest K of any core cell"),
        Column(
            "solved",
            _solved,
            "higher",
            f"runs that retain at least {SOLVED:g}% of softmax's gain. Second line: learning rates of tune=true that "
            f"retain at least {USABLE:.0%} of what the best retains, in the worst core cell",
        ),
        Column("verified", _verified, hint="whether the code passed cab verify"),
    ]
    for resource in ("time", "memory"):
        for pattern in COST_PATTERNS:
            name = f"{pattern}.{resource}_{LENGTH}_vs_softmax"
            hint = f"forward pass in pattern {pattern} at {LENGTH:,} tokens relative to softmax"
            columns.append(number_column(f"{resource} {pattern}", name, 2, better="lower", hint=hint))
    decoding, params = "milliseconds per decoded token", "parameters relative to the network with softmax"
    return [
        *columns,
        number_column("decode ms", "decode_ms_per_token", 2, better="lower", hint=decoding),
        Column("state", _state, "lower", f"size of the decode state at {LENGTH:,} tokens"),
        number_column("params", "parameters_vs_softmax", 2, better="lower", hint=params),
        text_column("complexity", "complexity", hint="declared growth with the length"),
    ]


def _tags(row: Mapping[Any, Any], patterns: list[str]) -> list[str]:
    """Return what the filter of the page selects: patterns, complexity and a state of constant size."""
    shown = [pattern for pattern in patterns if row[f"{pattern}.cells"] > 0]
    return [*shown, row["complexity"], CONSTANT if row["constant_state"] is True else ""]


def _gain_column(pattern: str) -> Column:
    def cell(row: Fields) -> Cell:
        share, low, high, cells, core, seeds, is_best = (
            row[f"{pattern}.{name}"]
            for name in ("K", "low", "high", "cells", "core_cells", "seeds", "not_worse_than_best")
        )
        if not cells > 0:
            return Cell(MISSING)
        link = records_link(preset=PRESET, pattern=pattern, attention=row["attention"])
        if math.isnan(share):
            return Cell(_marked(f"{cells:.0f} of {core:.0f} cells", seeds), href=link)
        detail = "" if math.isnan(low) else f"{low:.1f} to {high:.1f}"
        return Cell(_marked(f"{share:.1f}", seeds), share, detail, link, best=is_best)

    return Column(f"K {pattern}", cell, "higher", "share of softmax's gain retained, %")


def _marked(text: str, seeds: int) -> str:
    return f"{text}{ONE_SEED_MARK}" if seeds == 1 else text


def _worst_cell(row: Fields) -> Cell:
    task, _, pattern = row["worst_cell"].split()  # core cells of a task and pattern have the same backbone
    share = round(row["worst_cell_K"], 1) + 0.0
    return Cell(_marked(f"{share:.1f}", row["worst_cell_seeds"]), row["worst_cell_K"], f"{task} {pattern}")


def _verified(row: Fields) -> Cell:
    return Cell(row["verified"], float(row["verified"] == "yes"))


def _solved(row: Fields) -> Cell:
    usable = row["usable_rates"]
    rates = f"{usable:.0f} of {len(FACTORS)} rates" if usable is not None and usable == usable else ""
    return Cell(f"{row['solved']}/{row['runs']}", row["solved"] / row["runs"], rates)


def _state(row: Fields) -> Cell:
    size = row["state_bytes"]
    if not size > 0:
        return Cell(MISSING)
    unit, scale = next((unit, scale) for unit, scale in UNITS if size >= scale)
    return Cell(f"{size / scale:,.3g} {unit}", size, CONSTANT if row["constant_state"] is True else "grows")


@dataclass(frozen=True)
class CellBlock:
    """One cell: its name, what it tests, a remark on its part in the scores, and its results."""

    name: str
    text: str
    remark: str
    table: Table


def cell_blocks(board: SuiteBoard) -> Iterator[CellBlock]:
    """Yield the cells with results, core cells first."""
    for results in sorted(board.results, key=lambda results: not results.cell.core):
        cell, gains = results.cell, board.gains.cells[results.cell.key]
        if not gains or not results.runs:
            continue
        remark = "core cell" if cell.core else "not in K"
        if cell.key in invalid_cells():
            remark = f"excluded: {invalid_cells()[cell.key]}"
        yield CellBlock(str(cell), cell_descriptions()[cell.key], remark, _cell_table(results, gains))


def _cell_table(results: CellResults, gains: Mapping[str, CellGain]) -> Table:
    """Return the results of a cell; trivial baselines have the metric only."""
    cell = results.cell
    ranked = sorted(gains.values(), key=lambda gain: (-gain.estimate.value, gain.attention))
    decimals = decimals_for(gain.mean for gain in ranked)
    is_higher = gains[ANCHORS[0]].mean > gains[ANCHORS[1]].mean
    columns = [
        Column(cell.metric, lambda row: row["metric"], "higher" if is_higher else "lower"),
        Column("K", _of_gain("K"), "higher", "share of softmax's gain retained, %", sort="descending"),
        Column("solved", _of_gain("solved"), "higher", f"seeds that retain at least {SOLVED:g}%"),
        Column("steps to solve", _of_gain("steps"), "lower", "mean number of steps, if every seed solved the cell"),
    ]
    rows = [
        {
            "attention": gain.attention,
            "body": SORTED,
            "metric": _metric_cell(results, gain, decimals),
            "K": Cell(cell_text(gain), gain.estimate.value, "" if gain.attention in ANCHORS else _interval(gain.total)),
            "solved": Cell(f"{gain.solved} of {len(gain.points)}", gain.solved / len(gain.points)),
            "steps": Cell(steps_text(gain.steps), gain.steps.value) if gain.steps else Cell(MISSING),
        }
        for gain in ranked
    ]
    for name, value in results.baselines.items():
        rows.append({"attention": name, "body": FIXED, "metric": number_cell(value, decimals)})
    caption = f"{cell.metric}: {metric_meanings()[cell.task, cell.metric]}"
    legend = [ONE_SEED_LEGEND] if any(len(gain.points) == 1 for gain in ranked) else []
    return frame_table(rows, columns, table_id=element_id("cell", *cell.key), caption=caption, legend=legend)


def _of_gain(name: str) -> Callable[[Fields], Cell]:
    return lambda row: row.get(name) or Cell(MISSING)


def _interval(total: Estimate) -> str:
    return interval_text(*total.interval()) if total.is_known else ""


def _metric_cell(results: CellResults, gain: CellGain, decimals: int) -> Cell:
    cell, values = results.cell, results.values(gain.attention)
    spread = f"± {plain(statistics.stdev(values), decimals)}" if len(values) > 1 else ""
    fields = {"task": cell.task, "backbone": cell.backbone, "pattern": cell.pattern, "attention": gain.attention}
    text = _marked(plain(gain.mean, decimals), len(gain.points))
    return Cell(text, gain.mean, spread, records_link(preset=PRESET, **fields))
