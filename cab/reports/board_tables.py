"""Tables of the suite on the page, in Markdown and in a terminal: the board, and the numbers of every cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from cab.records.verified import LEGEND, UNVERIFIED_MARK
from cab.reports.card import card_link
from cab.reports.suite_board import RECALL, BoardRow, Entry, SuiteBoard
from cab.reports.tables import (
    MISSING,
    Column,
    Table,
    TableCell,
    data_table,
    element_id,
    frame_table,
    number_cell,
    plain,
)
from cab.results.cells import ANCHORS, TUNED, Key, SuiteCell, cell_descriptions, metric_meanings, suite_cells
from cab.results.check import invalid_cells
from cab.results.costs import LENGTH, MeasuredCost
from cab.results.statistics import ONE_SEED_MARK, Verdict

YOURS = "yours"
CONSTANT, SUBQUADRATIC = "constant", "subquadratic"
"""Tags of attentions whose decode state has the same size at any length, and whose time grows slower than n^2."""
COST_BLOCK = f"a layer of width 256 at {LENGTH:,} tokens"
RESOURCES = ("time", "memory")
ABILITY_BLOCK = "share of softmax's gain retained, %"
STYLES = {
    Verdict.WORSE: ("below", " ▼"),
    Verdict.UNDECIDED: ("open", " ?"),
    Verdict.EQUIVALENT: ("match", ""),
    Verdict.SOLVED: ("match", ""),
    Verdict.BETTER: ("match", ""),
    Verdict.ONE_SEED: ("single", ""),
}
"""Style and sign of each verdict against softmax attention."""
BOARD_LEGEND = (
    "Share of softmax attention's gain over no attention that is retained, in percent, ≤ its one-sided 95% bound over "
    "seeds, adjusted over the column (Holm). ▼: worse, the bound is below 98. ?: undecided. ≥: still learning when the "
    f"budget ended. {ONE_SEED_MARK}: a single seed, not tested. 3 of 3: seeds that solve the cell. Bold: the best, and "
    "results no worse than softmax attention. State: numbers of the decode state of a layer in the networks of recall. "
    f"Costs are those of another configuration. {TUNED}: the learning rate is chosen per cell."
)
"""The only explanation of the signs: on the page, in Markdown and in a terminal."""


def board_table(board: SuiteBoard, abilities: Sequence[SuiteCell] | None = None) -> Table:
    """Return the table of the board: one row per attention, by family; the user's rows are first.

    Args:
        abilities: the columns (default: all); only attentions with results in one of them are shown.
    """
    abilities = board.abilities if abilities is None else abilities
    rows = [row for row in board.rows if any(ability.key in row.entries for ability in abilities)]
    fields = [
        {
            "attention": row.attention,
            "row": row,
            "sign": UNVERIFIED_MARK if row.verified == "no" else "",
            "href": "" if row.own else card_link(row.attention.removesuffix(TUNED)),
            "detail": YOURS if row.own else "",
            "group": YOURS if row.own else row.family,
            "tags": _tags(row),
        }
        for row in sorted(rows, key=lambda row: not row.own)
    ]
    legend = [BOARD_LEGEND, *([LEGEND] if any(each["sign"] for each in fields) else [])]
    columns = board_columns(abilities, sorted({pattern for row in rows for pattern in row.costs}))
    return frame_table(fields, columns, table_id="suite-board-table", caption="", legend=legend)


def board_columns(abilities: Sequence[SuiteCell], cost_patterns: Sequence[str]) -> list[Column]:
    """Return the columns of the board after the name of the attention."""
    relative, columns = "relative to softmax attention", []
    for ability in abilities:
        options: dict[str, Any] = {"group": ABILITY_BLOCK, "pattern": ability.pattern}
        hint = cell_descriptions()[ability.key]
        columns.append(_column(ability.heading, partial(_gain, ability.key), hint, "higher", **options))
    for ability in (ability for ability in abilities if ability.task == RECALL):
        options = {"pattern": ability.pattern, "is_minor": ability.pattern != "CS"}
        hint = f"steps to solve {ability.heading}, {relative}, if every seed solved it"
        columns.append(_column(f"steps {ability.pattern}", partial(_steps, ability.key), hint, **options))
    if any(ability.pattern == "CS" for ability in abilities):
        columns.append(_column("state", _state, "numbers of the decode state of a layer in recall", pattern="CS"))
    columns.append(_column("growth", _growth, "declared growth of time with the length", ""))
    columns.append(_column("note", _note, "cells with diverged runs or fewer slots than facts", "", is_minor=True))
    columns.append(_column("seeds", _seeds, "smallest number", "", is_minor=True))
    costs = [(name, pattern, name, f"forward pass {relative}") for pattern in cost_patterns for name in RESOURCES]
    for label, pattern, name, hint in (
        *costs,
        ("decode ms", "", "decode_ms", "milliseconds per decoded token, causal"),
    ):
        options = {"group": COST_BLOCK, "pattern": pattern, "is_minor": name != "time"}
        columns.append(_column(f"{label} {pattern}".strip(), partial(_cost, pattern or "CS", name), hint, **options))
    return columns


def _column(
    label: str, cell: Callable[[BoardRow], TableCell], hint: str, better: str = "lower", **options: Any
) -> Column:
    return Column(label, lambda fields: cell(fields["row"]), better, hint, **options)


def _gain(key: Key, row: BoardRow) -> TableCell:
    return entry_cell(row.entries[key]) if key in row.entries else TableCell(MISSING)


def _steps(key: Key, row: BoardRow) -> TableCell:
    return number_cell(row.entries[key].steps if key in row.entries else None, 1)


def _state(row: BoardRow) -> TableCell:
    return TableCell(row.state.text, row.state.total) if row.state else TableCell(MISSING, reason=_unmeasured(row))


def _growth(row: BoardRow) -> TableCell:
    return TableCell(row.complexity.replace("^2", "²") or MISSING)


def _seeds(row: BoardRow) -> TableCell:
    return TableCell(str(row.seeds), row.seeds)


def _note(row: BoardRow) -> TableCell:
    """Return the remarks that have no sign, with their cells."""
    remarks: dict[str, list[str]] = {}
    for entry in row.entries.values():
        cell = f"{entry.gain.cell.ability} {entry.gain.cell.pattern}"
        for remark, is_noted in (("diverged", entry.gain.diverged), ("few slots", entry.gain.slots)):
            if is_noted:
                remarks.setdefault(remark, []).append(cell)
    return TableCell("; ".join(f"{remark}: {', '.join(cells)}" for remark, cells in remarks.items()) or MISSING)


def _cost(pattern: str, name: str, row: BoardRow) -> TableCell:
    cost = row.costs.get(pattern, MeasuredCost())
    if cost.length != LENGTH and name in RESOURCES:
        return TableCell(MISSING, reason=f"{getattr(cost, name):.2f} at {cost.length:,} tokens")
    return number_cell(getattr(cost, name), 2, _unmeasured(row))


def _unmeasured(row: BoardRow) -> str:
    return "costs and state of your code are measured by `cab run suite=core`" if row.own else ""


def _tags(row: BoardRow) -> list[str]:
    """Return what a reader can choose: patterns, a state of constant size, and time below n^2."""
    patterns = dict.fromkeys(entry.gain.cell.pattern for entry in row.entries.values())
    is_constant = not row.state.grows if row.state else row.costs.get("CS", MeasuredCost()).has_constant_state
    tags = {CONSTANT: is_constant, SUBQUADRATIC: row.complexity not in ("", "n^2")}
    return [*patterns, *(tag for tag, is_given in tags.items() if is_given)]


def entry_cell(entry: Entry) -> TableCell:
    """Return K of an attention in an ability, with its marks."""
    gain = entry.gain
    style, sign = STYLES.get(entry.verdict, ("", "")) if entry.verdict else ("", "")
    text = f"{'≥ ' if gain.is_lower_bound else ''}{plain(round(gain.estimate.value) + 0.0, 0)}"
    detail = "" if math.isnan(gain.bound) else f"≤ {gain.bound:.0f}"
    if entry.verdict is Verdict.SOLVED:
        detail = f"{gain.solved} of {len(gain.points)}"
    marks = sign if len(gain.points) > 1 else ONE_SEED_MARK
    if gain.verified != "yes":
        style = ""
    style += " best" if gain.is_best else ""
    return TableCell(text, gain.estimate.value, detail, style=style.strip(), marks=marks)


def cell_sections(board: SuiteBoard) -> Iterator[tuple[str, str, Table]]:
    """Yield name, description and results of each cell, those of the board first; baselines have the metric only."""
    baselines: dict[Key, dict[str, float]] = {}
    for results in board.results:
        baselines.setdefault(results.cell.key, {}).update(results.baselines)
    for cell in sorted(suite_cells(), key=lambda cell: not cell.core):
        gains = sorted(board.cells[cell.key], key=lambda each: -each[0].estimate.value)
        if all(gain.attention in ANCHORS for gain, _ in gains):
            continue
        rows = [
            {
                "attention": gain.attention + (f" ({YOURS})" if is_own else ""),
                cell.metric: gain.mean,
                "standard deviation": statistics.stdev(gain.values) if len(gain.values) > 1 else math.nan,
                "K": gain.estimate.value,
                "low": gain.interval[0],
                "high": gain.interval[1],
                "seeds": len(gain.points),
                "solved": gain.solved,
                "steps to solve": gain.steps.value if gain.steps else math.nan,
            }
            for gain, is_own in gains
        ]
        rows += [{"attention": name, cell.metric: value} for name, value in baselines[cell.key].items()]
        meaning = f"{cell.metric}: {metric_meanings()[cell.task, cell.metric]}."
        remark = f"Excluded: {invalid_cells()[cell.key]}." if cell.key in invalid_cells() else ""
        caption, table_id = f"{cell}: means over seeds, and the 95% interval of K", element_id("cell", *cell.key)
        table = data_table(pd.DataFrame(rows), table_id=table_id, caption=caption, sort="K")
        yield str(cell), " ".join(filter(None, (cell_descriptions()[cell.key], meaning, remark))), table
