"""Tables of the suite on the page: the board, and one table per cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cab.records.results import LEGEND, UNVERIFIED_MARK
from cab.reports.card import card_link
from cab.reports.suite_board import COST_PATTERNS, SuiteBoard
from cab.reports.tables import (
    FIXED,
    MISSING,
    PINNED,
    SORTED,
    Cell,
    Column,
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
from cab.scoring.statistics import MARGIN, ONE_SEED_LEGEND, ONE_SEED_MARK
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
Fields = Mapping[str, Any]


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
    cost_hint = f"forward pass in pattern {{}} at {LENGTH:,} tokens relative to softmax"
    costs = [
        number_column(
            f"{name} {pattern}",
            f"{pattern}.{name}_{LENGTH}_vs_softmax",
            2,
            better="lower",
            hint=cost_hint.format(pattern),
        )
        for name in ("time", "memory")
        for pattern in COST_PATTERNS
    ]
    return [
        *map(_gain_column, patterns),
        Column("worst cell", _worst_cell, "higher", "smallest K of any core cell"),
        Column(
            "solved",
            _solved,
            "higher",
            f"runs that retain at least {SOLVED:g}% of softmax's gain. Second line: learning rates of tune=true that "
            f"retain at least {USABLE:.0%} of what the best retains, in the worst core cell",
        ),
        Column(
            "verified",
            lambda row: Cell(row["verified"], float(row["verified"] == "yes")),
            hint="whether the code passed cab verify",
        ),
        *costs,
        number_column("decode ms", "decode_ms_per_token", 2, better="lower", hint="milliseconds per decoded token"),
        Column("state", _state, "lower", f"size of the decode state at {LENGTH:,} tokens"),
        number_column(
            "params",
            "parameters_vs_softmax",
            2,
            better="lower",
            hint="parameters relative to the network with softmax",
        ),
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
        mark = ONE_SEED_MARK if seeds == 1 else ""
        link = records_link(preset=PRESET, pattern=pattern, attention=row["attention"])
        if math.isnan(share):
            return Cell(f"{cells:.0f} of {core:.0f} cells{mark}", href=link)
        detail = "" if math.isnan(low) else f"{low:.1f} to {high:.1f}"
        return Cell(f"{share:.1f}{mark}", share, detail, link, best=is_best)

    return Column(f"K {pattern}", cell, "higher", "share of softmax's gain retained, %")


def _worst_cell(row: Fields) -> Cell:
    task, _, pattern = row["worst_cell"].split()  # core cells of a task and pattern have the same backbone
    mark = ONE_SEED_MARK if row["worst_cell_seeds"] == 1 else ""
    return Cell(f"{round(row['worst_cell_K'], 1) + 0.0:.1f}{mark}", row["worst_cell_K"], f"{task} {pattern}")


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


def _cell_table(results: CellResults, gains: dict[str, CellGain]) -> Table:
    cell = results.cell
    ranked = sorted(gains.values(), key=lambda gain: (-gain.estimate.value, gain.attention))
    decimals = decimals_for(gain.mean for gain in ranked)
    fields = {"preset": PRESET, "task": cell.task, "backbone": cell.backbone, "pattern": cell.pattern}

    def metric(row: Fields) -> Cell:
        if row["body"] == FIXED:
            return number_cell(row["value"], decimals)
        values = results.values(row["attention"])
        spread = f"± {plain(statistics.stdev(values), decimals)}" if len(values) > 1 else ""
        text = plain(row["gain"].mean, decimals) + ("" if len(values) > 1 else ONE_SEED_MARK)
        return Cell(text, row["gain"].mean, spread, records_link(**fields, attention=row["attention"]))

    def share(gain: CellGain) -> Cell:
        has_interval = gain.attention not in ANCHORS and gain.total.is_known
        return Cell(cell_text(gain), gain.estimate.value, interval_text(*gain.total.interval()) if has_interval else "")

    def solved(gain: CellGain) -> Cell:
        return Cell(f"{gain.solved} of {len(gain.points)}", gain.solved / len(gain.points))

    def steps(gain: CellGain) -> Cell:
        return Cell(steps_text(gain.steps), gain.steps.value) if gain.steps else Cell(MISSING)

    def of_gain(show: Any) -> Any:
        return lambda row: Cell(MISSING) if row["body"] == FIXED else show(row["gain"])

    is_higher = gains[ANCHORS[0]].mean > gains[ANCHORS[1]].mean
    columns = [
        Column(cell.metric, metric, "higher" if is_higher else "lower"),
        Column("K", of_gain(share), "higher", "share of softmax's gain retained, %", sort="descending"),
        Column("solved", of_gain(solved), "higher", f"seeds that retain at least {SOLVED:g}%"),
        Column("steps to solve", of_gain(steps), "lower", "mean number of steps, if every seed solved the cell"),
    ]
    rows = [{"attention": gain.attention, "body": SORTED, "gain": gain} for gain in ranked]
    fixed = [{"attention": name, "body": FIXED, "value": value} for name, value in results.baselines.items()]
    caption = f"{cell.metric}: {metric_meanings()[cell.task, cell.metric]}"
    legend = [ONE_SEED_LEGEND] if any(len(gain.points) == 1 for gain in ranked) else []
    return frame_table([*rows, *fixed], columns, table_id=element_id("cell", *cell.key), caption=caption, legend=legend)
