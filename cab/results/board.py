"""The board of the suite: what each attention can do, compared with softmax attention, and what it costs.

The board is a data frame: rows are attentions, and columns are core cells, an ability in a pattern each; K is not
averaged over them. Costs are those of another configuration than K.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cab.files.disk import listed, sanitize_text
from cab.files.text_table import read_csv
from cab.patterns import pattern_rank
from cab.records.files import REFERENCE_DIRS
from cab.records.record import Record
from cab.records.results import installed_code, load_results, names_of_programs
from cab.registry.registries import ATTENTIONS
from cab.results.cells import (
    ANCHORS,
    FOLDER,
    SOFTMAX,
    TUNED,
    SuiteCell,
    cell_descriptions,
    own_runs,
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
    cost_of,
    is_committed,
    measured_costs,
)
from cab.results.formats import Cell, gain, numbers, texts
from cab.results.gain import MATCHING, gains_frame
from cab.results.state import suite_states
from cab.results.table import OWN, Column, Row, Table

RECALL = "probe"
"""Task of the cells with 64 facts: abilities ``recall`` and ``source to target``."""
ABILITIES = ("recall", "lookup", "source to target", "periodic copy")
"""Column ``ability`` of configs/suite/cells.csv, in the order of the columns of the board."""
OTHER = "other"
"""Family of attentions that configs/suite/families.csv does not list."""
CONSTANT, SUBQUADRATIC = "constant", "subquadratic"
"""Tags of attentions whose decode state has the same size at any length, and whose time grows slower than n^2."""
TIME = f"CS.time_{LENGTH}_vs_softmax"
"""Column with the time of a causal layer."""
COST_LAYER = f"a layer of width 256 at {LENGTH:,} tokens"
DECODING = "decode ms", "milliseconds per decoded token, causal, of a layer of width 512"
RELATIVE = "relative to softmax attention"
REMARKS = (
    "Share of softmax attention's gain over no attention that is retained, in percent (≤ its one-sided 95% bound over "
    "seeds, adjusted over the column; Holm). Solved: at the ceiling in every seed. Bold: no worse than softmax "
    "attention. State: numbers of the decode state of a layer in the networks of recall. Costs are those of another "
    f"configuration. {TUNED}: the learning rate is chosen per cell."
)
NAMES = ("family", "attention", "own", "verified", "seeds")
"""First columns of the board."""
FIELDS = {
    **{name: name for name in ("K", "low", "high", "bound", "seeds", "solved", "steps_vs_softmax")},
    **{"vs_softmax": "verdict", "best": "best", "note": "note"},
}
"""Fields of a core cell in ``suite.csv``, and columns of :func:`core_gains`."""


class Suite(NamedTuple):
    """Results in the cells of the suite as the table of :func:`cab.load_results`, as K, and as the board."""

    results: pd.DataFrame
    gains: pd.DataFrame
    board: pd.DataFrame


def suite_of(results: pd.DataFrame, costs: Costs | None = None, *, with_reference: bool = False) -> Suite | None:
    """Return the results of the suite, after the reference results if they are requested; None without K."""
    results = with_suite_references(results) if with_reference else results
    gains = gains_frame(results)
    is_scored = (gains["seeds"] > 0) & ~gains["attention"].isin(ANCHORS)
    return Suite(results, gains, suite_board(gains, results, costs)) if is_scored.any() else None


def with_suite_references(results: pd.DataFrame) -> pd.DataFrame:
    """Return the user's runs after all bundled results of the suite; one name in a cell is one program.

    Unlike :func:`cab.records.results.with_reference_results`, which adds one folder per place, it adds all of them.
    """
    own = results[results["file"].isin(own_runs(results)["file"])]
    together = pd.concat([load_results(REFERENCE_DIRS), own], ignore_index=True)
    runs = runs_of(together)
    names = dict(zip(runs["file"], names_of_programs(list(runs["record"])), strict=True))
    return together.assign(attention=together["file"].map(names))


def core_cells() -> dict[tuple[str, str, str], SuiteCell]:
    """Return the core cells that measure attention, in the order of the columns of the board."""
    cells = [cell for cell in suite_cells() if cell.core and cell.key not in invalid_cells()]
    cells.sort(key=lambda cell: (pattern_rank(cell.pattern), ABILITIES.index(cell.ability)))
    return {cell.key: cell for cell in cells}


def prefix(cell: SuiteCell) -> str:
    """Return the start of the columns of a cell in the board, such as ``CS.recall``."""
    return f"{cell.pattern}.{cell.ability.replace(' ', '_')}"


def core_gains(gains: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of :func:`cab.results.gain.gains_frame` with K in a core cell.

    Further columns: ``column`` (:func:`prefix`), ``own``, ``steps_vs_softmax``, and ``best``, whether verified code
    matches softmax attention.
    """
    columns = {key: prefix(cell) for key, cell in core_cells().items()}
    keys = zip(gains["task"], gains["backbone"], gains["pattern"], strict=True)
    core = gains.assign(column=[columns.get(key, "") for key in keys], own=gains["source"] == "own")
    core = core[(core["column"] != "") & (core["seeds"] > 0)]
    softmax = core[core["attention"] == SOFTMAX].set_index("column")["steps"]
    matches = (core["attention"] == SOFTMAX) | core["verdict"].isin(MATCHING)
    relative = core["steps"] / core["column"].map(softmax).astype(float)
    return core.assign(steps_vs_softmax=relative, best=matches & (core["verified"] == "yes"))


def suite_board(gains: pd.DataFrame, results: pd.DataFrame, costs: Costs | None = None) -> pd.DataFrame:
    """Return the board with the columns of ``suite.csv``: one row per attention, by family, the best recall first.

    Args:
        gains: :func:`cab.results.gain.gains_frame` of ``results``.
        costs: costs of attentions without a committed one, which replace those stored with the results.
    """
    core, own = core_gains(gains), own_runs(results)
    shown = set(core.loc[~core["attention"].isin(ANCHORS), "column"])
    columns = [name for name in map(prefix, core_cells().values()) if name in shown]
    folders = list(dict.fromkeys(Path(file).parent for file in own["file"]))
    order = list(dict.fromkeys(families().values()))
    rows, places = [], []
    for (attention, is_own), cells in core.groupby(["attention", "own"], sort=False):
        runs = list(own.loc[own["attention"] == attention, "record"]) if is_own else []
        of_column = {cell["column"]: cell for cell in cells.to_dict("records")}
        facts = _facts(str(attention).removesuffix(TUNED), runs, folders, costs or {})
        rows.append(
            {
                **{"family": facts.pop("family"), "attention": attention, "own": is_own},
                "verified": min(cells["verified"], key=("no", "unknown", "yes").index),
                "seeds": cells["seeds"].min(),
                **{f"{c}.{name}": of_column.get(c, {}).get(field) for c in columns for name, field in FIELDS.items()},
                **facts,
            }
        )
        recall = cells.loc[cells["task"] == RECALL, "K"].clip(0, 100)
        family = rows[-1]["family"]
        rank = order.index(family) if family in order else len(order)
        places.append((rank, -recall.mean() if len(recall) else 1.0, attention, is_own))
    ranked = [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]
    return pd.DataFrame(ranked, columns=None if ranked else NAMES)


def suite_csv(board: pd.DataFrame) -> pd.DataFrame:
    """Return the table ``suite.csv``."""
    shown = board.round(6).convert_dtypes()
    flags = shown.select_dtypes("boolean").columns
    return shown.assign(**{name: shown[name].map({True: "yes", False: "no"}) for name in flags})


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
    known_costs = {**costs, **(measured_costs() if is_ours else {})}
    known = {pattern: cost for (measured, pattern), cost in known_costs.items() if measured == name}
    for run in runs:
        if (cost := cost_of(run, folders)) != MeasuredCost():
            known.setdefault(str(run.cell["pattern"]), cost)
    declared = next((cost.complexity for cost in known.values()), "")
    if name in ATTENTIONS and all(run.attention_code == installed_code(name) for run in runs):
        declared = ATTENTIONS.get(name).complexity
    causal = known.get("CS", MeasuredCost())
    state = (is_ours and suite_states().get(name)) or causal.suite_state
    at_length = {pattern: cost for pattern, cost in known.items() if cost.length == LENGTH}
    return {
        "family": families().get(name.partition("(")[0], OTHER) if is_ours else OTHER,
        "suite_state_numbers": state.numbers if state else None,
        "suite_state_grows": state.grows if state else None,
        "complexity": declared,
        **{
            f"{pattern}.{resource}_{LENGTH}_vs_softmax": getattr(at_length.get(pattern), resource, None)
            for resource in ("time", "memory")
            for pattern in dict.fromkeys((*COST_RUNS, *known))
        },
        "decode_ms_per_token": causal.decode_ms,
        "state_bytes": causal.state_bytes,
        "constant_state": causal.has_constant_state if causal.state_bytes else None,
    }


# --- tables -----------------------------------------------------------------------------------------------------------


def board_table(board: pd.DataFrame, *, pattern: str = "") -> Table:
    """Return the table of the board, the user's rows first; or the cells of one pattern, without costs."""
    cells = [cell for cell in core_cells().values() if f"{prefix(cell)}.K" in board and pattern in ("", cell.pattern)]
    shown = board[board[[f"{prefix(cell)}.K" for cell in cells]].notna().any(axis=1)]
    shown = shown.sort_values("own", ascending=False, kind="stable")
    records = shown.to_dict("records")
    rows = [
        Row(sanitize_text(row["attention"]), row["verified"], OWN if row["own"] else "", _tags(row)) for row in records
    ]
    columns = [Column("family", texts(shown["family"]))]
    for cell in cells:
        gains = [gain(gain_fields(row, prefix(cell))) for row in records]
        columns.append(Column(cell.heading, gains, "higher", cell_descriptions()[cell.key], pattern=cell.pattern))
    for cell in (cell for cell in cells if cell.task == RECALL):
        steps = numbers(shown[f"{prefix(cell)}.steps_vs_softmax"].astype(float), 1)
        hint = f"steps to solve {cell.heading}, {RELATIVE}, if every seed solved it"
        columns.append(Column(f"steps {cell.pattern}", steps, "lower", hint, pattern=cell.pattern))
    if any(cell.pattern == "CS" for cell in cells):
        states = [Cell() if (state := _state(row)) is None else Cell(state.text, state.total) for row in records]
        columns.append(
            Column("state", states, "lower", "numbers of the decode state of a layer in recall", pattern="CS")
        )
    growth = texts(row["complexity"].replace("^2", "²") for row in records)
    columns.append(Column("growth", growth, hint="declared growth of time with the length"))
    columns.append(Column("seeds", numbers(shown["seeds"], 0), hint="smallest number"))
    columns += [] if pattern else _costs(shown)
    remarks = texts(_remarks(row, cells) for row in records)
    columns.append(Column("note", remarks, hint="cells with diverged runs or fewer slots than facts"))
    return Table(rows, columns, id="suite-board-table", remarks=[REMARKS])


def gain_fields(row: Mapping[Any, Any], column: str) -> dict[str, Any]:
    """Return the fields of a core cell in a row of the board for :func:`cab.results.formats.gain`."""
    return {field: row[f"{column}.{name}"] for name, field in FIELDS.items()}


def _costs(board: pd.DataFrame) -> Iterator[Column]:
    """Yield time and memory by pattern, and the time of decoding."""
    reason = f"not measured at {LENGTH:,} tokens; `cab run suite=core` measures costs and state"
    names = sorted(str(name) for name in board if f"_{LENGTH}_vs_softmax" in str(name))
    for name in [*names, "decode_ms_per_token"]:
        pattern, _, resource = name.removesuffix(f"_{LENGTH}_vs_softmax").rpartition(".")
        label, hint = (f"{resource} {pattern}", f"forward pass {RELATIVE}, {COST_LAYER}") if pattern else DECODING
        yield Column(label, numbers(board[name].astype(float), 2, reason), "lower", hint, pattern=pattern)


def _state(row: Mapping[Any, Any]) -> State | None:
    numbers_of_state, grows = row["suite_state_numbers"], row["suite_state_grows"]
    return None if pd.isna(numbers_of_state) else State(numbers_of_state, bool(grows))


def _remarks(row: Mapping[Any, Any], cells: Sequence[SuiteCell]) -> str:
    """Return the remarks that have no sign, with their cells."""
    notes = {cell.heading: str(row[f"{prefix(cell)}.note"]) for cell in cells}
    found = {word: [name for name, note in notes.items() if word in note] for word in ("diverged", "few slots")}
    return "; ".join(f"{word}: {listed(names, shown=2)}" for word, names in found.items() if names)


def _tags(row: Mapping[Any, Any]) -> list[str]:
    """Return what a reader can choose: patterns, a state of constant size, and time below n^2."""
    patterns = [name.split(".")[0] for name, value in row.items() if name.endswith(".K") and not pd.isna(value)]
    grows = row["suite_state_grows"]
    is_constant = row["constant_state"] is True if pd.isna(grows) else not grows
    tags = {CONSTANT: is_constant, SUBQUADRATIC: row["complexity"] not in ("", "n^2")}
    return [*dict.fromkeys(patterns), *(tag for tag, is_given in tags.items() if is_given)]


def state_size(board: pd.DataFrame) -> pd.Series:
    """Return the numbers of the decode state of each row in the network of ``recall``."""
    sizes = [(state := _state(row)) and state.total for row in board.to_dict("records")]
    return pd.Series(sizes, index=board.index, dtype=float)


def recall_points(board: pd.DataFrame, costs: pd.Series) -> pd.DataFrame:
    """Return the points of a figure of causal recall against a cost, without tuned learning rates.

    Columns cost, K, single (whether there is a single seed) and own, by name.
    """
    found = board.reindex(columns=["attention", "own", "CS.recall.K", "CS.recall.seeds"])
    names = [sanitize_text(name) + " (yours)" * own for name, own in zip(found["attention"], found["own"], strict=True)]
    shown = {"cost": costs, "K": found["CS.recall.K"], "own": found["own"], "single": found["CS.recall.seeds"] == 1}
    points = pd.DataFrame(shown).astype({"cost": float, "K": float}).set_axis(names)
    is_tuned = found["attention"].str.endswith(TUNED).to_numpy(dtype=bool)
    return points[~is_tuned & (points["cost"] > 0)].dropna(subset="K")
