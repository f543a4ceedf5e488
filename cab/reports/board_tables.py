"""Tables of the suite on the page and in a terminal: the board, and one table per cell."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cab.records.verified import LEGEND, UNVERIFIED_MARK
from cab.reports.card import card_link
from cab.reports.suite_board import COST_PATTERNS, Ability, BoardRow, SuiteBoard
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
    plain,
    records_link,
)
from cab.scoring.costs import LENGTH, MeasuredCost
from cab.scoring.statistics import MARGIN, ONE_SEED_LEGEND, ONE_SEED_MARK, Verdict
from cab.suite.cells import ANCHORS, PRESET, Key, SuiteCell, cell_descriptions, metric_meanings, suite_cells
from cab.suite.check import invalid_cells
from cab.suite.gain import SOLVED, CellGain
from cab.suite.tuning import TUNED
from cab.suite.verdict import DIVERGED_MARK, SLOTS_MARK, gain_text, interval_text, steps_text

CONSTANT = "constant"
"""Tag of attentions whose decode state has the same size at any length."""
UNITS = (("MiB", 2**20), ("KiB", 2**10), ("B", 1))
WORSE_MARK, OPEN_MARK = "▼", "?"
COST_BLOCK = f"layer of width 256 at {LENGTH:,} tokens"
BOARD_LEGEND = (
    "K: share of softmax attention's gain over no attention that is retained, in percent, with its 95% interval over "
    f"seeds in this cell. {WORSE_MARK}: significantly below softmax attention; {OPEN_MARK}: undecided (each column is "
    f"one family, Holm, 5%). Bold: the largest K and those equivalent to it within {MARGIN:g} points. ≥: still "
    f"learning when the budget ended. {DIVERGED_MARK}: training diverged. {SLOTS_MARK}: the options leave fewer slots "
    "than the cell has facts. State: numbers of the decode state of a layer in the same networks. Costs are those of "
    f"another configuration. {TUNED}: the learning rate is chosen per cell. {MISSING}: no result."
)


def board_table(board: SuiteBoard, abilities: Sequence[Ability] | None = None) -> Table:
    """Return the table of the board: one row per attention, by family; own rows are pinned.

    Args:
        board: the board.
        abilities: the columns (default: all); only attentions with results in one of them are shown.
    """
    abilities = board.abilities if abilities is None else abilities
    rows = [row for row in board.rows if any(ability.key in row.entries for ability in abilities)]
    fields = [
        {
            "attention": row.attention,
            "row": row,
            "sign": UNVERIFIED_MARK if row.verified == "no" else "",
            "href": card_link(row.attention.removesuffix(TUNED)),
            "detail": "yours" if row.own else row.family,
            "body": PINNED if row.own else SORTED,
            "tags": _tags(row),
        }
        for row in rows
    ]
    legend = [BOARD_LEGEND, ONE_SEED_LEGEND, *([LEGEND] if any(each["sign"] for each in fields) else [])]
    caption = "Abilities relative to softmax attention"
    columns = board_columns(abilities)
    return frame_table(fields, columns, table_id="suite-board-table", caption=caption, legend=legend)


def board_columns(abilities: Sequence[Ability]) -> list[Column]:
    """Return the columns of the board after the name of the attention."""
    recall = {ability.pattern: ability for ability in abilities if ability.cell.task == "probe"}
    columns = [*map(_gain_column, abilities), *(_steps_column(each) for each in recall.values())]
    columns += [
        Column("state", _state, "lower", "numbers of the decode state of a layer in the networks of recall CS"),
        Column("complexity", _of_row(lambda row: Cell(row.complexity or MISSING)), hint="declared growth of time"),
    ]
    for resource in ("time", "memory"):
        for pattern in COST_PATTERNS:
            columns.append(_cost_column(f"{resource} {pattern}", pattern, resource, "relative to softmax"))
    decoding = _cost_column("decode ms", "CS", "decode_ms", "milliseconds per decoded token")
    size = Column("state size", _state_bytes, "lower", "size of the decode state", group=COST_BLOCK)
    return [*columns, decoding, size]


def _of_row(cell: Callable[[BoardRow], Cell]) -> Callable[[Fields], Cell]:
    return lambda fields: cell(fields["row"])


def _tags(row: BoardRow) -> list[str]:
    """Return what the filter of the page selects: patterns, complexity and a state of constant size."""
    patterns = dict.fromkeys(entry.gain.cell.pattern for entry in row.entries.values())
    is_constant = row.state is not None and not row.state.grows
    return [*patterns, row.complexity, CONSTANT if is_constant else ""]


def _gain_column(ability: Ability) -> Column:
    def cell(row: BoardRow) -> Cell:
        entry = row.entries.get(ability.key)
        if entry is None:
            return Cell(MISSING)
        marks = {Verdict.WORSE: f" {WORSE_MARK}", Verdict.UNDECIDED: f" {OPEN_MARK}"}
        link = records_link(preset=PRESET, **_names(ability.cell), attention=row.attention)
        text = gain_text(entry.gain) + (marks.get(entry.verdict, "") if entry.verdict else "")
        return Cell(text, entry.gain.estimate.value, interval_text(*entry.gain.interval), link, best=entry.is_best)

    return Column(ability.label, _of_row(cell), "higher", cell_descriptions()[ability.key])


def _steps_column(ability: Ability) -> Column:
    def cell(row: BoardRow) -> Cell:
        entry = row.entries.get(ability.key)
        return number_cell(entry.steps if entry else None, 2)

    hint = f"mean number of steps to solve {ability.label}, relative to softmax attention, if every seed solved it"
    return Column(f"steps {ability.pattern}", _of_row(cell), "lower", hint)


def _cost_column(label: str, pattern: str, attribute: str, hint: str) -> Column:
    def cell(row: BoardRow) -> Cell:
        return number_cell(getattr(row.costs.get(pattern, MeasuredCost()), attribute), 2)

    return Column(label, _of_row(cell), "lower", hint, group=COST_BLOCK)


def _state(fields: Fields) -> Cell:
    state = fields["row"].state
    return Cell(state.text, state.total) if state else Cell(MISSING)


def _state_bytes(fields: Fields) -> Cell:
    cost = fields["row"].costs.get("CS", MeasuredCost())
    if not cost.state_bytes:
        return Cell(MISSING)
    unit, scale = next((unit, scale) for unit, scale in UNITS if cost.state_bytes >= scale)
    growth = CONSTANT if cost.has_constant_state else "grows"
    return Cell(f"{cost.state_bytes / scale:,.3g} {unit}", cost.state_bytes, growth)


@dataclass(frozen=True)
class CellBlock:
    """One cell: its name, what it tests, a remark on its part in the board, and its results."""

    name: str
    text: str
    remark: str
    table: Table


def cell_blocks(board: SuiteBoard) -> Iterator[CellBlock]:
    """Yield the cells with results, core cells first."""
    baselines: dict[Key, dict[str, float]] = {}
    for results in board.results:
        baselines.setdefault(results.cell.key, {}).update(results.baselines)
    for cell in sorted(suite_cells(), key=lambda cell: not cell.core):
        gains = board.cells[cell.key]
        if all(gain.attention in ANCHORS for gain, _ in gains):
            continue
        remark = "core cell" if cell.core else "not on the board"
        if cell.key in invalid_cells():
            remark = f"excluded: {invalid_cells()[cell.key]}"
        table = _cell_table(cell, gains, baselines[cell.key])
        yield CellBlock(str(cell), cell_descriptions()[cell.key], remark, table)


def _cell_table(cell: SuiteCell, gains: Sequence[tuple[CellGain, bool]], baselines: Mapping[str, float]) -> Table:
    """Return the results of a cell; trivial baselines have the metric only."""
    ranked = sorted(gains, key=lambda each: (-each[0].estimate.value, each[0].attention))
    decimals = decimals_for(gain.mean for gain, _ in ranked)
    means = {gain.attention: gain.mean for gain, _ in ranked}
    is_higher = means[ANCHORS[0]] > means[ANCHORS[1]]
    columns = [
        Column(cell.metric, lambda row: row["metric"], "higher" if is_higher else "lower"),
        Column("K", _of_field("K"), "higher", "share of softmax's gain retained, %", sort="descending"),
        Column("solved", _of_field("solved"), "higher", f"seeds that retain at least {SOLVED:g}%"),
        Column("steps to solve", _of_field("steps"), "lower", "mean number of steps, if every seed solved the cell"),
    ]
    rows = [
        {
            "attention": gain.attention,
            "body": PINNED if own else SORTED,
            "detail": "yours" if own else "",
            "metric": _metric_cell(gain, decimals),
            "K": Cell(gain_text(gain), gain.estimate.value, interval_text(*gain.interval)),
            "solved": Cell(f"{gain.solved} of {len(gain.points)}", gain.solved / len(gain.points)),
            "steps": Cell(steps_text(gain.steps), gain.steps.value) if gain.steps else Cell(MISSING),
        }
        for gain, own in ranked
    ]
    for name, value in baselines.items():
        rows.append({"attention": name, "body": FIXED, "metric": number_cell(value, decimals)})
    caption = f"{cell.metric}: {metric_meanings()[cell.task, cell.metric]}"
    legend = [ONE_SEED_LEGEND] if any(len(gain.points) == 1 for gain, _ in ranked) else []
    return frame_table(rows, columns, table_id=element_id("cell", *cell.key), caption=caption, legend=legend)


def _of_field(name: str) -> Callable[[Fields], Cell]:
    return lambda row: row.get(name) or Cell(MISSING)


def _metric_cell(gain: CellGain, decimals: int) -> Cell:
    deviation = f"± {plain(statistics.stdev(gain.values), decimals)}" if len(gain.values) > 1 else ""
    text = plain(gain.mean, decimals) + (ONE_SEED_MARK if len(gain.points) == 1 else "")
    return Cell(text, gain.mean, deviation, records_link(preset=PRESET, **_names(gain.cell), attention=gain.attention))


def _names(cell: SuiteCell) -> dict[str, str]:
    return {"task": cell.task, "backbone": cell.backbone, "pattern": cell.pattern}
