"""The board of the suite, and its findings in sentences: what each attention can do compared with softmax attention.

The board is a data frame: rows are attentions, and columns are core cells, an ability in a pattern each; K is not
averaged over them. Costs are those of another configuration than K.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cab.files.disk import listed, sanitize_text
from cab.files.text_table import read_csv
from cab.patterns import pattern_rank
from cab.records.names import installed_code
from cab.records.verified import VERIFIED_STATES
from cab.registry.registries import ATTENTIONS
from cab.results.cells import ANCHORS, SOFTMAX, SUITE, TUNED, SuiteCell, cell_descriptions, suite_cells
from cab.results.costs import (
    LENGTH,
    RUNS as COST_RUNS,
    Costs,
    MeasuredCost,
    State,
    cost_of,
    is_committed,
    measured_costs,
    suite_states,
)
from cab.results.formats import TableCell, gain, numbers, texts
from cab.results.load import OWN, runs_of
from cab.results.retained import MATCHING, gains_table
from cab.results.statistics import Verdict
from cab.results.table import Column, Row, Table
from cab.results.validity import invalid_cells

RECALL = "probe"
"""Task of the cells with 64 facts: abilities ``recall`` and ``source to target``."""
ABILITIES = ("recall", "lookup", "source to target", "periodic copy")
"""Column ``ability`` of configs/suite/cells.csv, in the order of the columns of the board."""
OTHER_FAMILY = "other"
"""Family of attentions that configs/suite/families.csv does not list."""
CONSTANT, SUBQUADRATIC = "constant", "subquadratic"
"""Tags of attentions whose decode state has the same size at any length, and whose time grows slower than n^2."""
TIME = f"CS.time_{LENGTH}_vs_softmax"
"""Column with the time of a causal layer."""
COST_LAYER = f"a layer of width 256 at {LENGTH:,} tokens"
DECODING_TEXTS = "decode ms", "milliseconds per decoded token, causal, of a layer of width 512"
RELATIVE = "relative to softmax attention"
REMARKS = (
    "Share of softmax attention's gain over no attention that is retained, in percent (≤ its one-sided 95% bound over "
    "seeds, adjusted over the column; Holm). Solved: at the ceiling in every seed. Bold: no worse than softmax "
    "attention. State: numbers of the decode state of a layer in the networks of recall. Costs are those of another "
    f"configuration. {TUNED}: the learning rate is chosen per cell."
)
NAME_COLUMNS = ("family", "attention", "own", "verified", "seeds")
"""First columns of the board."""
FIELDS = ("K", "low", "high", "bound", "seeds", "reached_90", "steps_vs_softmax", "vs_softmax", "best", "note")
"""Fields of a core cell in ``suite.csv``, which are columns of :func:`core_gains`."""
VERDICT_PHRASES = {
    Verdict.BETTER: "are better",
    Verdict.WORSE: "are worse than softmax attention",
    Verdict.EQUIVALENT: "are equivalent to it",
    Verdict.SOLVED: "solve the cell in every seed",
    Verdict.UNDECIDED: "are undecided",
}
EXAMPLES = ("linear", "local")
"""Attentions that are named besides the best two."""


class Suite(NamedTuple):
    """Results in the cells of the suite as a frame of :func:`cab.load_results`, as K, also of core cells, and as board.

    The cells of tables and sentences are made from ``core``; the board is ``suite.csv``, with the facts of each row.
    """

    frame: pd.DataFrame
    gains: pd.DataFrame
    core: pd.DataFrame
    board: pd.DataFrame


def suite_of(frame: pd.DataFrame, costs: Costs | None = None) -> Suite | None:
    """Return the results of the suite in a frame; None without K."""
    gains = gains_table(frame)
    is_scored = (gains["seeds"] > 0) & ~gains["attention"].isin(ANCHORS)
    core = core_gains(gains)
    return Suite(frame, gains, core, suite_board(core, frame, costs)) if is_scored.any() else None


def core_cells() -> dict[tuple[str, str, str], SuiteCell]:
    """Return the core cells that measure attention, in the order of the columns of the board."""
    cells = [cell for cell in suite_cells() if cell.core and cell.key not in invalid_cells()]
    cells.sort(key=lambda cell: (pattern_rank(cell.pattern), ABILITIES.index(cell.ability)))
    return {cell.key: cell for cell in cells}


def prefix(cell: SuiteCell) -> str:
    """Return the start of the columns of a cell in the board, such as ``CS.recall``."""
    return f"{cell.pattern}.{cell.ability.replace(' ', '_')}"


def core_gains(gains: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of :func:`cab.results.retained.gains_table` with K in a core cell.

    Further columns: ``column`` (:func:`prefix`), ``own``, ``steps_vs_softmax``, and ``best``, whether verified code
    matches softmax attention.
    """
    columns = {key: prefix(cell) for key, cell in core_cells().items()}
    keys = zip(gains["task"], gains["backbone"], gains["pattern"], strict=True)
    core = gains.assign(column=[columns.get(key, "") for key in keys], own=gains["source"] == OWN)
    core = core[(core["column"] != "") & (core["seeds"] > 0)]
    softmax = core[core["attention"] == SOFTMAX].set_index("column")["steps"]
    matches = (core["attention"] == SOFTMAX) | core["verdict"].isin(MATCHING)
    relative = core["steps"] / core["column"].map(softmax).astype(float)
    best = matches & (core["verified"] == "yes")
    return core.assign(steps_vs_softmax=relative, best=best, vs_softmax=core["verdict"])


def suite_board(core: pd.DataFrame, frame: pd.DataFrame, costs: Costs | None = None) -> pd.DataFrame:
    """Return the board with the columns of ``suite.csv``: one row per attention, by family, the best recall first.

    Args:
        core: :func:`core_gains` of ``frame``.
        costs: costs of attentions without a committed one, which replace those stored with the results.
    """
    own = runs_of(frame[frame["source"] == OWN])
    shown = set(core.loc[~core["attention"].isin(ANCHORS), "column"])
    columns = [name for name in map(prefix, core_cells().values()) if name in shown]
    folders = list(dict.fromkeys(Path(file).parent for file in own["file"]))
    groups: Any = own.groupby("attention")
    names = ["pattern", "program", "earlier_program"]
    programs = {name: list(of[names].drop_duplicates().itertuples(index=False, name=None)) for name, of in groups}
    order = list(dict.fromkeys(families().values()))
    rows, places = [], []
    for (attention, is_own), cells in core.groupby(["attention", "own"], sort=False):
        of_column = {cell["column"]: cell for cell in cells.to_dict("records")}
        facts = _facts(str(attention), programs.get(attention, ()) if is_own else (), folders, costs or {})
        rows.append(
            {
                **{"family": facts.pop("family"), "attention": attention, "own": is_own},
                "verified": min(cells["verified"], key=VERIFIED_STATES.index),
                "seeds": cells["seeds"].min(),
                **{f"{column}.{name}": of_column.get(column, {}).get(name) for column in columns for name in FIELDS},
                **facts,
            }
        )
        recall = cells.loc[cells["task"] == RECALL, "K"].clip(0, 100)
        family = rows[-1]["family"]
        rank = order.index(family) if family in order else len(order)
        places.append((rank, -recall.mean() if len(recall) else 1.0, attention, is_own))
    ranked = [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]
    return pd.DataFrame(ranked, columns=None if ranked else NAME_COLUMNS)


def suite_csv(board: pd.DataFrame) -> pd.DataFrame:
    """Return the table ``suite.csv``."""
    shown = board.round(6).convert_dtypes()
    flags = shown.select_dtypes("boolean").columns
    return shown.assign(**{name: shown[name].map({True: "yes", False: "no"}) for name in flags})


@functools.cache
def families() -> dict[str, str]:
    """Return the family of each attention, in the order of the families."""
    return {name: row["family"] for row in read_csv(SUITE / "families.csv") for name in row["attentions"].split()}


def _facts(
    attention: str, programs: Iterable[tuple[str, str, str]], folders: Sequence[Path], costs: Costs
) -> dict[str, Any]:
    """Return family, state, complexity and costs of an attention.

    The tables of this repository apply to the user's ``programs`` (pattern, code and its earlier digest) only if the
    code is the same. Otherwise, the costs are those in ``costs``, or those that were measured with this code and stored
    in ``folders``.
    """
    name = attention.removesuffix(TUNED)
    is_ours = all(is_committed(attention, code) for _, code, _ in programs)
    known_costs = {**costs, **(measured_costs() if is_ours else {})}
    known = {pattern: cost for (measured, pattern), cost in known_costs.items() if measured == name}
    for pattern, code, earlier in programs:
        if (cost := cost_of(attention, pattern, code, folders, earlier)) != MeasuredCost():
            known.setdefault(pattern, cost)
    declared = next((cost.complexity for cost in known.values()), "")
    if name in ATTENTIONS and all(code == installed_code(name) for _, code, _ in programs):
        declared = ATTENTIONS.get(name).complexity
    causal = known.get("CS", MeasuredCost())
    state = (is_ours and suite_states().get(name)) or causal.suite_state
    at_length = {pattern: cost for pattern, cost in known.items() if cost.length == LENGTH}
    return {
        "family": families().get(re.split(r"[ (]", name)[0], OTHER_FAMILY),
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


def board_table(suite: Suite, *, pattern: str = "") -> Table:
    """Return the table of the board, the user's rows first; or the cells of one pattern, without costs."""
    board, found = suite.board, {(row["column"], *_key(row)): row for row in suite.core.to_dict("records")}
    cells = [cell for cell in core_cells().values() if f"{prefix(cell)}.K" in board and pattern in ("", cell.pattern)]
    shown = board[board[[f"{prefix(cell)}.K" for cell in cells]].notna().any(axis=1)]
    shown = shown.sort_values("own", ascending=False, kind="stable")
    records = shown.to_dict("records")
    rows = [
        Row(sanitize_text(row["attention"]), row["verified"], OWN if row["own"] else "", _tags(row)) for row in records
    ]
    columns = [Column("family", texts(shown["family"]))]
    for cell in cells:
        gains = [found.get((prefix(cell), *_key(row))) for row in records]
        shares = [TableCell() if row is None else gain(row) for row in gains]
        columns.append(Column(cell.heading, shares, "higher", cell_descriptions()[cell.key], pattern=cell.pattern))
    for cell in (cell for cell in cells if cell.task == RECALL):
        steps = numbers(shown[f"{prefix(cell)}.steps_vs_softmax"].astype(float), 1)
        hint = f"steps to solve {cell.heading}, {RELATIVE}, if every seed solved it"
        columns.append(Column(f"steps {cell.pattern}", steps, "lower", hint, pattern=cell.pattern))
    if any(cell.pattern == "CS" for cell in cells):
        states = [
            TableCell() if (state := _state(row)) is None else TableCell(state.text, state.total) for row in records
        ]
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


def _key(row: Mapping[Any, Any]) -> tuple[str, bool]:
    """Return the attention of a row and whether it is the user's."""
    return row["attention"], row["own"]


def _costs(board: pd.DataFrame) -> Iterator[Column]:
    """Yield time and memory by pattern, and the time of decoding."""
    reason = f"not measured at {LENGTH:,} tokens; `cab run suite=core` measures costs and state"
    names = sorted(str(name) for name in board if f"_{LENGTH}_vs_softmax" in str(name))
    for name in [*names, "decode_ms_per_token"]:
        pattern, _, resource = name.removesuffix(f"_{LENGTH}_vs_softmax").rpartition(".")
        label, hint = (f"{resource} {pattern}", f"forward pass {RELATIVE}, {COST_LAYER}") if pattern else DECODING_TEXTS
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


# --- sentences --------------------------------------------------------------------------------------------------------


def main_sentence(suite: Suite) -> str:
    """Return all of :func:`findings`."""
    return " ".join(findings(suite))


def findings(suite: Suite) -> list[str]:
    """Return what attentions with a constant-size state recall, compared with softmax attention, and then details.

    Attentions without verified code, with a single seed or with a tuned learning rate are not counted, nor are own
    results of a reference attention.
    """
    board = suite.board
    counted = board[(board["verified"] == "yes") & ~board["attention"].str.endswith(TUNED)]
    counted = counted.sort_values("own", ascending=False, kind="stable").drop_duplicates("attention", keep="last")
    constant = {_key(row) for row in counted.to_dict("records") if row["suite_state_grows"] is False}
    recalls = suite.core[(suite.core["column"] == "CS.recall") & (suite.core["seeds"] > 1)]
    cells: list[dict[Any, Any]] = recalls.to_dict("records")
    recall = {row["attention"]: row for row in cells if _key(row) in constant and row["attention"] not in ANCHORS}
    if not recall:
        return ["No attention with a constant-size state, verified code and several seeds has results in recall."]
    verdicts = {word: sorted(name for name, cell in recall.items() if cell["verdict"] == word) for word in Verdict}
    matching = [name for verdict in MATCHING for name in verdicts[verdict]]
    parts = [f"{len(verdicts[Verdict.WORSE])} are worse than softmax attention in causal recall"]
    verbs = {"match": ("matches it", "match it"), "undecided": ("is undecided", "are undecided")}
    for word, names in (("match", matching), ("undecided", verdicts[Verdict.UNDECIDED])):
        parts += [f"{len(names)} ({', '.join(names)}) {verbs[word][len(names) > 1]}"] if names else []
    ranked = sorted(recall, key=lambda name: -min(max(recall[name]["K"], 0), 100))
    named = dict.fromkeys([*ranked[:2], *(name for name in EXAMPLES if name in recall)])
    seeds = min(int(recall[name]["seeds"]) for name in named)
    bounds = {name: "at least " * ("unfinished" in recall[name]["note"]) for name in named}
    shares = ", ".join(f"{name} retains {bounds[name]}{max(recall[name]['K'], 0):.0f}%" for name in named)
    details = (
        f"Of 64 facts, {shares} (at least {seeds} seeds each). {_decided(counted)} The networks have a width of 32 or "
        "64 and train on generated data for minutes; on real text, small networks rank attentions differently."
    )
    main = f"Of {len(recall)} attentions with a constant-size decode state, {', '.join(parts)}."
    return [sanitize_text(text) for text in (main, details)]


def _decided(board: pd.DataFrame) -> str:
    """Return how many results of an attention in a cell, with several seeds, have each verdict."""
    verdicts = Counter(value for name in board if str(name).endswith(".vs_softmax") for value in board[name])
    counts = {verdict: verdicts[verdict] for verdict in VERDICT_PHRASES if verdicts[verdict]}
    words = ", ".join(f"{count} {VERDICT_PHRASES[verdict]}" for verdict, count in counts.items())
    return f"Of all {sum(counts.values())} results of verified code with several seeds in a core cell, {words}."
