"""The leaderboard as a table: one row an attention and pattern, with index, raw metrics and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.reports.curves import is_curve
from cab.reports.suites import Suite, printable_results, split_suites
from cab.results import EXAMPLE_COMMAND, load_results

if TYPE_CHECKING:
    import pandas as pd

CELL = ["task", "dataset", "variant", "backbone"]
ROW = ["pattern", "attention"]
COSTS = ["params", "train_seconds", "peak_memory_bytes"]


def cell_fields(results: pd.DataFrame) -> dict[str, dict[str, str]]:
    """What raw metrics were measured on: ``task/dataset/variant/backbone`` and the four apart."""
    rows = results[CELL].drop_duplicates().sort_values(CELL)
    return {"/".join(filter(None, row)): dict(zip(CELL, row, strict=True)) for row in rows.itertuples(index=False)}


def with_cell(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` with the column ``cell``, see :func:`cell_fields`."""
    names = {tuple(fields.values()): cell for cell, fields in cell_fields(results).items()}
    return results.assign(cell=[names[row] for row in zip(*(results[name] for name in CELL), strict=True)])


def measurements(results: pd.DataFrame) -> pd.DataFrame:
    """Mean and deviation over seeds of every metric and cost.

    Columns pattern, attention, task, cell, metric, value, deviation, seeds. One seed has no deviation (NaN), and a seed
    without a number leaves the mean without one: there is no mean over missing values.
    """
    import pandas as pd

    results = with_cell(results)
    keys = ["pattern", "attention", "task", "cell"]
    runs = results.drop_duplicates([*keys, "seed", "hash", "file"])
    costs = runs[[*keys, "seed", *COSTS]].melt([*keys, "seed"], var_name="metric", value_name="value")
    costs["value"] = pd.to_numeric(costs["value"], errors="coerce")
    long = pd.concat([results[[*keys, "seed", "metric", "value"]], costs], ignore_index=True)
    grouped = long.groupby([*keys, "metric"], sort=False)
    table = grouped.agg(
        value=("value", "mean"),
        deviation=("value", "std"),
        known=("value", "count"),
        rows=("value", "size"),
        seeds=("seed", "nunique"),
    )
    table.loc[table["known"] < table["rows"], ["value", "deviation"]] = math.nan
    return table[["value", "deviation", "seeds"]].reset_index()


@dataclass(frozen=True)
class Board:
    """A scored suite: what the table, the page and the figures are made from.

    ``scores`` is what :func:`cab.scoring.score_table` gives, ``measured`` what :func:`measurements` gives, ``reasons``
    what :func:`missing_reasons` gives and ``table`` what :func:`leaderboard_table` gives.
    """

    suite: Suite
    scores: pd.DataFrame
    measured: pd.DataFrame
    reasons: dict[tuple[str, str], dict[str, str]]
    table: pd.DataFrame

    def tasks(self, pattern: str) -> list[str]:
        names = self.scores.loc[self.scores["pattern"] == pattern, "task"].unique()
        return [name for name in names if name != "all"]

    def benefit(self) -> pd.DataFrame:
        """The rows of :func:`cab.scoring.benefit_of_attention` that Figure 3b shows: noncausal self attention, in the
        tasks whose network was run without it too."""
        from cab.scoring import benefit_of_attention

        benefit = benefit_of_attention(self.scores)
        return benefit[(benefit["pattern"] == "NS") & benefit["without"].notna()]

    def rows(self, pattern: str) -> list[dict[str, Any]]:
        """The rows of ``table`` of one pattern, best first."""
        return [
            {str(name): value for name, value in row.items()}
            for row in self.table[self.table["pattern"] == pattern].to_dict("records")
        ]


def score_suite(suite: Suite, *, normalization: str) -> Board:
    """Score the results of a suite, on their own."""
    from cab.scoring import score_table

    scores = score_table(suite.results, normalization=normalization)
    measured = measurements(suite.results)
    reasons = missing_reasons(suite, scores)
    return Board(suite, scores, measured, reasons, leaderboard_table(suite, scores, measured, reasons))


def load_boards(sources: Iterable[str | Path], *, normalization: str) -> list[Board]:
    """The scored suites of all results in ``sources``.

    Raises:
        ValueError: no results at all, or results that cannot be scored.
    """
    results = load_results(sources)
    if results.empty:
        named = ", ".join(map(str, sources))
        raise UserError(f"no whole result in {named}: run a cell first, as in `{EXAMPLE_COMMAND}`")
    return [score_suite(suite, normalization=normalization) for suite in split_suites(printable_results(results))]


def write_csv(boards: Iterable[Board], out: Path) -> Path:
    """Write ``leaderboard.csv`` into ``out``: the tables of all suites below each other."""
    import pandas as pd

    out.mkdir(parents=True, exist_ok=True)
    path = out / "leaderboard.csv"
    pd.concat([board.table for board in boards], ignore_index=True).to_csv(path, index=False)
    return path


def leaderboard_table(
    suite: Suite, scores: pd.DataFrame, measured: pd.DataFrame, reasons: dict[tuple[str, str], dict[str, str]]
) -> pd.DataFrame:
    """The rows of ``leaderboard.csv`` of one suite, best index first within a pattern.

    Columns: preset, data, pattern, attention; ci, low, high (average over tasks) and ``TASK.ci|low|high``; why an
    index is missing; seeds, params, train_seconds (sums over the cells), peak_memory_bytes (the largest), revision;
    then ``CELL.METRIC``, means over seeds, for every metric and cost.
    """
    import pandas as pd

    index = _index_columns(scores)
    own = measured.groupby(ROW).agg(seeds=("seeds", "min"))
    own.insert(0, "missing", ["; ".join(dict.fromkeys(reasons.get(key, {}).values())) for key in own.index])
    own["revision"] = suite.results.groupby(ROW)["revision"].agg(lambda names: " ".join(sorted(set(names) - {""})))
    raw = measured.assign(column=measured["cell"] + "." + measured["metric"], cost=measured["metric"].isin(COSTS))
    order = raw.sort_values(["cell", "cost"], kind="stable")["column"].unique()
    raw = raw.pivot(index=ROW, columns="column", values="value")[order]
    table = pd.concat([own, _total_cost(measured), raw], axis=1).rename_axis(ROW)
    table = index.join(table, how="right").reset_index()
    table.insert(0, "preset", suite.preset)
    table.insert(1, "data", "synthetic" if suite.synthetic else "real")
    rank = {pattern: place for place, pattern in enumerate(suite.patterns)}
    return table.sort_values(
        ["pattern", "ci", "attention"],
        ascending=[True, False, True],
        key=lambda column: column.map(rank) if column.name == "pattern" else column,
        ignore_index=True,
    )


def _index_columns(scores: pd.DataFrame) -> pd.DataFrame:
    """Columns ci, low, high of the average, then ``TASK.ci|low|high`` in the order of the tasks; rows as ROW."""
    wide = scores.pivot(index=ROW, columns="task", values=["ci", "low", "high"])
    tasks = ["all", *(task for task in dict.fromkeys(scores["task"]) if task != "all")]
    wide = wide.reindex(columns=[(bound, task) for task in tasks for bound in ("ci", "low", "high")])
    names = [bound if task == "all" else f"{task}.{bound}" for task in tasks for bound in ("ci", "low", "high")]
    return wide.set_axis(names, axis="columns")


def _total_cost(measured: pd.DataFrame) -> pd.DataFrame:
    """Cost over all cells of a pattern; none for an attention that lacks a cell, whose total would flatter it."""
    cost = measured[measured["metric"].isin(COSTS)]
    cells = cost.groupby("pattern")["cell"].nunique()
    total = cost.groupby([*ROW, "metric"])["value"].agg(["count", "sum", "max"]).reset_index()
    total["value"] = total["sum"].where(total["metric"] != "peak_memory_bytes", total["max"])
    total.loc[total["count"] < total["pattern"].map(cells), "value"] = math.nan
    return total.pivot(index=ROW, columns="metric", values="value")[COSTS]


def missing_reasons(suite: Suite, scores: pd.DataFrame) -> dict[tuple[str, str], dict[str, str]]:
    """Why an attention has no index: ``{(pattern, attention): {task: reason}}``, task ``all`` for the average."""
    results = with_cell(suite.results[~is_curve(suite.results["metric"])])
    numbers = results["value"].map(math.isfinite)
    have, broken = _by_attention(results[numbers]), _by_attention(results[~numbers])
    wanted: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for (pattern, _, task), found in have.items():
        wanted.setdefault((pattern, task), set()).update(found)
    scored = scores.dropna(subset=["ci"])
    scored_tasks = set(zip(scored["pattern"], scored["attention"], scored["task"], strict=True))
    reasons: dict[tuple[str, str], dict[str, str]] = {}
    for pattern, attention in results[ROW].drop_duplicates().itertuples(index=False, name=None):
        own = {
            task: _reason(task, found - have.get(key, set()), broken.get(key, set()))
            for (other, task), found in sorted(wanted.items())
            if other == pattern and (key := (pattern, attention, task)) not in scored_tasks
        }
        if (pattern, attention, "all") not in scored_tasks:
            own["all"] = f"no index in {', '.join(own)}" if own else "no task is scored"
        if own:
            reasons[(pattern, attention)] = own
    return reasons


def _by_attention(results: pd.DataFrame) -> dict[tuple[str, str, str], set[tuple[str, str]]]:
    found: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
    columns = results[["pattern", "attention", "task", "cell", "metric"]].drop_duplicates()
    for pattern, attention, task, cell, metric in columns.itertuples(index=False, name=None):
        found.setdefault((pattern, attention, task), set()).add((cell, metric))
    return found


def _reason(task: str, lacking: set[tuple[str, str]], broken: set[tuple[str, str]]) -> str:
    if broken:
        return f"{task}: not a number in {_listed(broken)}"
    if lacking:
        return f"{task}: no result for {_listed(lacking)}"
    return f"{task}: the attentions with a result do not differ, or there is only one"


def _listed(numbers: set[tuple[str, str]]) -> str:
    names = sorted(f"{cell} {metric}" for cell, metric in numbers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
