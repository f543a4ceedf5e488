"""The board of the suite: what each attention can do, compared with softmax attention, and what it costs.

A column is an ability in a pattern, which is one core cell; K is not averaged over abilities. Costs are those of
another configuration than K, so they form a block of their own.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cab.files.disk import sanitize_text
from cab.files.text_table import read_csv
from cab.patterns import pattern_rank
from cab.records.record import REFERENCE_DIRS, Record, Status
from cab.records.results import installed_code, with_program_names
from cab.registry.registries import ATTENTIONS
from cab.results.cells import (
    ANCHORS,
    FOLDER,
    SOFTMAX,
    TUNED,
    CellResults,
    Key,
    SuiteCell,
    collect,
    own_runs,
    records_of,
    runs_of,
    suite_cells,
)
from cab.results.check import invalid_cells
from cab.results.costs import (
    LENGTH,
    RUNS as COST_RUNS,
    Costs,
    MeasuredCost,
    State,
    cost_hardware,
    cost_of,
    is_committed,
    measured_costs,
)
from cab.results.gain import CellGain, suite_gains
from cab.results.state import suite_states
from cab.results.statistics import Verdict

RECALL = "probe"
"""Task of the cells with 64 facts: abilities ``recall`` and ``source to target``."""
ABILITIES = ("recall", "lookup", "source to target", "periodic copy")
"""Column ``ability`` of configs/suite/cells.csv, in the order of the columns of the board."""
COST_PATTERNS = tuple(COST_RUNS)
"""Patterns in which costs are measured; only the causal one has a decode state."""
OTHER = "other"
"""Family of attentions that configs/suite/families.csv does not list."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The result of an attention in an ability.

    Attributes:
        steps: mean number of steps to solve relative to softmax attention; None unless every seed solved the cell.
    """

    gain: CellGain
    steps: float | None

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on the attention compared with softmax attention; None for an anchor."""
        return self.gain.verdict


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """One attention, with the recipe's learning rate or with tuned ones.

    Attributes:
        own: whether the results are the user's and not the bundled reference results.
        family: one of :func:`families`, or :data:`OTHER`.
        state: decode state in the network of ``recall``; None if it is unknown or there is no causal pattern.
        complexity: declared growth of time with the length; empty if unknown.
        costs: cost at 8,192 tokens by pattern, in a layer of width 256 with default options.
    """

    attention: str
    own: bool
    family: str
    entries: dict[Key, Entry]
    state: State | None = None
    complexity: str = ""
    costs: dict[str, MeasuredCost] = field(default_factory=dict)

    @property
    def verified(self) -> str:
        """Whether the code of all runs is verified: ``yes``, ``no`` or ``unknown``."""
        verdicts = {entry.gain.verified for entry in self.entries.values()}
        return next(verdict for verdict in ("no", "unknown", "yes") if verdict in verdicts)

    @property
    def seeds(self) -> int:
        """Smallest number of seeds in any cell."""
        return min(len(entry.gain.points) for entry in self.entries.values())

    @property
    def is_tuned(self) -> bool:
        """Whether the learning rates are tuned."""
        return self.attention.endswith(TUNED)

    def entry(self, task: str, pattern: str) -> Entry | None:
        """Return the result in the cell of a task and pattern."""
        return next((entry for key, entry in self.entries.items() if (key[0], key[2]) == (task, pattern)), None)


@dataclass(frozen=True)
class SuiteBoard:
    """The board, from which page, tables, figures, CSV file and main sentence are made.

    Attributes:
        results: the results of every cell, own ones after the reference results.
        cells: K of every attention in every cell with results, each with whether the results are the user's.
        abilities: the core cells with results, which are the columns, by pattern.
        rows: the rows by family, the largest recall first.
    """

    results: list[CellResults]
    cells: dict[Key, list[tuple[CellGain, bool]]]
    abilities: list[SuiteCell]
    rows: list[BoardRow]

    @property
    def patterns(self) -> list[str]:
        """Patterns with columns."""
        return list(dict.fromkeys(ability.pattern for ability in self.abilities))

    @property
    def csv(self) -> pd.DataFrame:
        """The table ``suite.csv``."""
        table = pd.DataFrame([_fields(row, self.abilities) for row in self.rows]).round(6).convert_dtypes()
        flags = table.select_dtypes("boolean").columns
        return table.assign(**{name: table[name].map({True: "yes", False: "no"}) for name in flags})


def suite_board(
    results: pd.DataFrame, costs: Costs | None = None, *, with_reference: bool = False
) -> SuiteBoard | None:
    """Return the board of the suite's results in a table of :func:`cab.load_results`; None without results.

    Args:
        results: the table; rows from the folders of the reference results are not the user's own.
        costs: costs of attentions without a committed one, which replace those stored with the results.
    """
    runs, own = runs_of(results), own_runs(results)
    reference = list(records_of(REFERENCE_DIRS)) if with_reference else list(runs.drop(own.index)["record"])
    # own runs of other code under a reference's name have another one
    named = with_program_names([*reference, *own["record"]])
    results_of = collect(named[: len(reference)]), collect(named[len(reference) :])
    for cell in results_of[1]:
        cell.warn()
    if not any(cell.runs for cells in results_of for cell in cells):
        return None
    gains, own_gains = suite_gains(results_of[0]), suite_gains(results_of[1], results_of[0])
    own_gains = {
        key: {name: gain for name, gain in of_cell.items() if name not in ANCHORS} for key, of_cell in own_gains.items()
    }
    own_folders = list(dict.fromkeys(Path(file).parent for file in own["file"]))
    programs: dict[str, list[Record]] = {}
    for record in named[len(reference) :]:
        programs.setdefault(str(record.cell["attention"]), []).append(record)
    rows = []
    for (attention, is_own), entries in _entries(gains, own_gains).items():
        facts = _facts(attention.removesuffix(TUNED), programs[attention] if is_own else [], own_folders, costs or {})
        rows.append(BoardRow(attention=attention, own=is_own, entries=entries, **facts))
    used = {key for row in rows if row.attention not in ANCHORS for key in row.entries}
    abilities = [cell for cell in suite_cells() if cell.key in used]
    abilities.sort(key=lambda cell: (pattern_rank(cell.pattern), ABILITIES.index(cell.ability)))
    cells = {
        key: [*((gain, False) for gain in found.values()), *((gain, True) for gain in own_gains[key].values())]
        for key, found in gains.items()
    }
    return SuiteBoard([*results_of[0], *results_of[1]], cells, abilities, sorted(rows, key=_order))


Gains = Mapping[str, CellGain]


def _entries(gains: Mapping[Key, Gains], own_gains: Mapping[Key, Gains]) -> dict[tuple[str, bool], dict[Key, Entry]]:
    """Return the entries in the core cells, by attention and by whether its results are the user's."""
    entries: dict[tuple[str, bool], dict[Key, Entry]] = {}
    for cell in suite_cells():
        reference, own = gains[cell.key], own_gains[cell.key]
        if not cell.core or cell.key in invalid_cells() or not reference:
            continue
        softmax = reference[SOFTMAX].steps
        for name, gain in [*reference.items(), *own.items()]:
            steps = gain.steps.value / softmax.value if gain.steps and softmax else None
            entries.setdefault((name, gain is own.get(name)), {})[cell.key] = Entry(gain=gain, steps=steps)
    return entries


def _order(row: BoardRow) -> tuple[int, float, str, bool]:
    """Sort by family, then by recall."""
    names = list(dict.fromkeys(families().values()))
    recall = [entry.gain.retained for entry in row.entries.values() if entry.gain.cell.task == RECALL]
    family = names.index(row.family) if row.family in names else len(names)
    return family, -statistics.fmean(recall or [-1.0]), row.attention, row.own


@functools.cache
def families() -> dict[str, str]:
    """Return the family of each attention, in the order of the families."""
    return {name: row["family"] for row in read_csv(FOLDER / "families.csv") for name in row["attentions"].split()}


def _facts(name: str, runs: Sequence[Record], folders: Sequence[Path], costs: Costs) -> dict[str, Any]:
    """Return family, state, complexity and costs of an attention.

    The tables of this repository apply to the code of the user's ``runs`` only if it is the same; otherwise, its costs
    are those in ``costs``, or those that were measured with this code and stored in ``folders``.
    """
    is_ours = all(map(is_committed, runs))
    table = {**costs, **(measured_costs() if is_ours else {})}
    known = {pattern: cost for (measured, pattern), cost in table.items() if measured == name}
    for run in runs:
        if (cost := cost_of(run, folders)) != MeasuredCost():
            known.setdefault(str(run.cell["pattern"]), cost)
    declared = next((cost.complexity for cost in known.values()), "")
    if name in ATTENTIONS and all(run.attention_code == installed_code(name) for run in runs):
        declared = ATTENTIONS.get(name).complexity
    return {
        "family": families().get(name, OTHER) if is_ours else OTHER,
        "state": (is_ours and suite_states().get(name)) or known.get("CS", MeasuredCost()).suite_state,
        "complexity": declared,
        "costs": known,
    }


def _fields(row: BoardRow, abilities: Iterable[SuiteCell]) -> dict[str, Any]:
    """Return the fields of a row of ``suite.csv``."""
    fields: dict[str, Any] = {
        "family": row.family,
        "attention": row.attention,
        "own": row.own,
        "verified": row.verified,
        "seeds": row.seeds,
    }
    for ability in abilities:
        start = f"{ability.pattern}.{ability.ability.replace(' ', '_')}"
        fields |= {f"{start}.{name}": value for name, value in _entry_fields(row.entries.get(ability.key))}
    fields |= {
        "suite_state_numbers": row.state and row.state.numbers,
        "suite_state_grows": row.state and row.state.grows,
        "complexity": row.complexity,
    }
    for resource in ("time", "memory"):
        for pattern in dict.fromkeys((*COST_PATTERNS, *row.costs)):
            cost = row.costs.get(pattern, MeasuredCost())
            value = getattr(cost, resource) if cost.length == LENGTH else None
            fields[f"{pattern}.{resource}_{LENGTH}_vs_softmax"] = value
    decoding = row.costs.get("CS", MeasuredCost())
    return fields | {
        "decode_ms_per_token": decoding.decode_ms,
        "state_bytes": decoding.state_bytes,
        "constant_state": decoding.has_constant_state if decoding.state_bytes else None,
    }


def _entry_fields(entry: Entry | None) -> Iterator[tuple[str, Any]]:
    gain = entry.gain if entry else None
    low, high = gain.interval if gain else (None, None)
    yield from (("K", gain and gain.estimate.value), ("low", low), ("high", high), ("bound", gain and gain.bound))
    yield from (("seeds", gain and len(gain.points)), ("solved", gain and gain.solved))
    yield from (("steps_vs_softmax", entry and entry.steps), ("vs_softmax", entry and entry.verdict))
    yield from (("best", gain and gain.is_best), ("note", gain and gain.note))


def board_facts(board: SuiteBoard) -> Iterator[str]:
    """Yield number, date and hardware of the runs, and the hardware of the cost measurements."""
    runs = [run for cell in board.results for seeds in cell.runs.values() for run in seeds.values()]
    runs = [run for run in runs if run.status is Status.FINISHED]
    names = {row.attention.removesuffix(TUNED) for row in board.rows} - set(ANCHORS)
    yield f"{len(names)} attentions besides {' and '.join(ANCHORS)}, {len(runs)} runs"
    dates = sorted({run.started[:10] for run in runs if run.started})
    if dates:
        machines = " and ".join(sorted({_machine(run.hardware) for run in runs}))
        yield f"trained {' to '.join(dict.fromkeys((dates[0], dates[-1])))} on {machines}"
    yield f"costs measured on {' and '.join(cost_hardware())}"
    committed = measured_costs().values()
    if any(cost not in committed for row in board.rows for cost in row.costs.values()):
        yield "those of your classes on your machine"


def _machine(hardware: Mapping[str, Any]) -> str:
    device = hardware.get("device")
    name = hardware.get("cpu" if device == "cpu" else "gpu") or device or "unknown hardware"
    threads = hardware.get("threads")
    return sanitize_text(f"{name}, {threads} thread{'s' * (threads != 1)}" if threads else name)


class Point(NamedTuple):
    """Cost and K of an attention in causal recall."""

    cost: float
    k: float
    is_single: bool
    is_own: bool


def state_of(row: BoardRow) -> float | None:
    """Return the numbers of the decode state in the network of ``recall``."""
    return row.state.total if row.state else None


def time_of(row: BoardRow) -> float | None:
    """Return the time of a causal layer at 8,192 tokens relative to softmax attention."""
    cost = row.costs.get("CS", MeasuredCost())
    return cost.time if cost.length == LENGTH else None


def recall_points(board: SuiteBoard, cost: Callable[[BoardRow], float | None]) -> dict[str, Point]:
    """Return the points of a figure of causal recall against a cost, without tuned learning rates."""
    points = {}
    for row in board.rows:
        if (entry := row.entry(RECALL, "CS")) and (value := cost(row)) and not row.is_tuned:
            name = sanitize_text(row.attention) + (" (yours)" if row.own else "")
            points[name] = Point(value, entry.gain.estimate.value, len(entry.gain.points) == 1, row.own)
    return points
