"""The leaderboard table: one row per attention and pattern, with index, raw metrics and cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.disk import listed, sanitize_table
from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY, Status
from cab.records.results import verdicts
from cab.reports.suites import Suite, printable_results, split_suites
from cab.scoring import Scores, benefit_of_attention, score
from cab.scoring.index import AVERAGE
from cab.scoring.normalization import MIN_ATTENTIONS, MIN_ATTENTIONS_GENERATED

if TYPE_CHECKING:
    import pandas as pd

ROW = ["pattern", "attention"]
COSTS = ["params", "train_seconds", "peak_memory_bytes"]


def place_fields(results: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return the fields of each place (``task/dataset/variant/backbone``) in the results."""
    rows = results[[*COMPARISON_KEY]].drop_duplicates().sort_values([*COMPARISON_KEY])
    return {
        "/".join(filter(None, row)): dict(zip(COMPARISON_KEY, row, strict=True)) for row in rows.itertuples(index=False)
    }


def with_place(results: pd.DataFrame) -> pd.DataFrame:
    """Return ``results`` with the column ``place``, see :func:`place_fields`."""
    names = {tuple(fields.values()): place for place, fields in place_fields(results).items()}
    return results.assign(place=[names[row] for row in zip(*(results[name] for name in COMPARISON_KEY), strict=True)])


def measurements(results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of every metric and cost.

    Columns pattern, attention, task, place, metric, at_length, value, deviation, seeds. The standard deviation is NaN
    for a single seed; the mean is NaN if any seed has no value. Costs of runs without a score are ignored.
    """
    import pandas as pd

    results = with_place(results)
    keys = ["pattern", "attention", "task", "place"]
    runs = results.drop_duplicates([*keys, "seed", "hash", "file"])
    costs = runs[[*keys, "seed", "status", *COSTS]].melt([*keys, "seed", "status"], var_name="metric")
    costs["value"] = pd.to_numeric(costs["value"]).where(costs["status"] == Status.FINISHED)
    long = pd.concat([results[[*keys, "seed", "metric", "at_length", "value"]], costs], ignore_index=True)
    table = long.groupby([*keys, "metric"], sort=False).agg(
        at_length=("at_length", "first"),
        value=("value", "mean"),
        deviation=("value", "std"),
        known=("value", "count"),
        rows=("value", "size"),
        seeds=("seed", "nunique"),
    )
    table.loc[table["known"] < table["rows"], ["value", "deviation"]] = math.nan
    return table.drop(columns=["known", "rows"]).reset_index()


@dataclasses.dataclass(frozen=True)
class Board:
    """A scored suite, from which table, page and figures are made.

    Attributes:
        suite: the results.
        scores: see :func:`cab.scoring.score_table`.
        measured: see :func:`measurements`.
        reasons: see :func:`missing_reasons`.
        table: see :func:`leaderboard_table`.
    """

    suite: Suite
    scores: pd.DataFrame
    measured: pd.DataFrame
    reasons: dict[tuple[str, str], dict[str, str]]
    table: pd.DataFrame

    def tasks(self, pattern: str) -> list[str]:
        """Return the tasks of a pattern."""
        names = self.scores.loc[self.scores["pattern"] == pattern, "task"].unique()
        return [name for name in names if name != AVERAGE]

    def benefit(self) -> pd.DataFrame:
        """Return the benefit of attention in NS, for tasks with results without attention (Figure 3b)."""
        benefit = benefit_of_attention(self.scores)
        return benefit[(benefit["pattern"] == "NS") & benefit["without"].notna()]

    def rows(self, pattern: str) -> list[dict[str, Any]]:
        """Return the rows of ``table`` of one pattern, best attention first."""
        return self.table[self.table["pattern"] == pattern].to_dict("records")  # type: ignore[return-value]


def score_suite(suite: Suite, *, normalization: str) -> Board:
    """Score the results of a suite."""
    scores = score(suite.results, normalization=normalization)
    suite = dataclasses.replace(suite, results=scores.results)
    measured = measurements(suite.results)
    reasons = missing_reasons(scores)
    return Board(suite, scores.table, measured, reasons, leaderboard_table(suite, scores.table, measured, reasons))


def score_boards(results: pd.DataFrame, *, normalization: str) -> list[Board]:
    """Score the suites in ``results``; raises ValueError for results that cannot be scored."""
    return [score_suite(suite, normalization=normalization) for suite in split_suites(printable_results(results))]


def write_csv(boards: Iterable[Board], out: Path) -> Path:
    """Write ``leaderboard.csv`` with the tables of all suites into ``out``."""
    import pandas as pd

    out.mkdir(parents=True, exist_ok=True)
    path = out / "leaderboard.csv"
    sanitize_table(pd.concat([board.table for board in boards], ignore_index=True)).to_csv(path, index=False)
    return path


def leaderboard_table(
    suite: Suite, scores: pd.DataFrame, measured: pd.DataFrame, reasons: dict[tuple[str, str], dict[str, str]]
) -> pd.DataFrame:
    """Return the rows of ``leaderboard.csv`` of one suite, sorted by index within each pattern.

    Columns: preset, data, pattern, attention; verified (yes, no, unknown); index, low, high (average over tasks) and
    ``TASK.index|low|high``; missing (reason for a missing index); seeds, params, train_seconds (sums over places),
    peak_memory_bytes (maximum), revision; ``PLACE.METRIC`` (means over seeds) for every metric and cost.
    """
    import pandas as pd

    facts = measured.groupby(ROW).agg(seeds=("seeds", "min"))
    facts.insert(0, "missing", ["; ".join(dict.fromkeys(reasons.get(key, {}).values())) for key in facts.index])
    facts["revision"] = suite.results.groupby(ROW)["revision"].agg(lambda names: " ".join(sorted(set(names) - {""})))
    raw = measured.assign(column=measured["place"] + "." + measured["metric"], cost=measured["metric"].isin(COSTS))
    order = raw.sort_values(["place", "cost"], kind="stable")["column"].unique()
    raw = raw.pivot(index=ROW, columns="column", values="value")[order]
    table = pd.concat([facts, _total_cost(measured), raw], axis=1).rename_axis(ROW)
    table = _index_columns(scores).join(table, how="right").reset_index()
    table.insert(0, "preset", suite.preset)
    table.insert(1, "data", suite.data)
    verified = verdicts(suite.results)
    table.insert(4, "verified", [verified[key] for key in table[ROW].itertuples(index=False, name=None)])
    return table.sort_values(
        ["pattern", "index", "attention"],
        ascending=[True, False, True],
        key=lambda column: column.map(pattern_rank) if column.name == "pattern" else column,
        ignore_index=True,
    )


def _index_columns(scores: pd.DataFrame) -> pd.DataFrame:
    """Return index, low and high of the average, then ``TASK.index|low|high`` per task, with ROW as index."""
    wide = scores.pivot(index=ROW, columns="task", values=["index", "low", "high"])
    tasks = dict.fromkeys([AVERAGE, *scores["task"]])
    wide = wide.reindex(columns=[(bound, task) for task in tasks for bound in ("index", "low", "high")])
    names = [bound if task == AVERAGE else f"{task}.{bound}" for task in tasks for bound in ("index", "low", "high")]
    return wide.set_axis(names, axis="columns")


def _total_cost(measured: pd.DataFrame) -> pd.DataFrame:
    """Return the cost over all places of a pattern; NaN if the attention lacks any of them."""
    cost = measured[measured["metric"].isin(COSTS)]
    places = cost.groupby("pattern")["place"].nunique()
    total = cost.groupby([*ROW, "metric"])["value"].agg(["count", "sum", "max"]).reset_index()
    total["value"] = total["sum"].where(total["metric"] != "peak_memory_bytes", total["max"])
    total.loc[total["count"] < total["pattern"].map(places), "value"] = math.nan
    return total.pivot(index=ROW, columns="metric", values="value")[COSTS]


def missing_reasons(scores: Scores) -> dict[tuple[str, str], dict[str, str]]:
    """Return reasons for missing indices, ``{(pattern, attention): {task: reason}}``; task ``all`` is the average."""
    reasons: dict[tuple[str, str], dict[str, str]] = {}
    for (pattern, task, attention), gap in sorted(scores.gaps.items()):
        required = f"{MIN_ATTENTIONS} attentions (on generated data {MIN_ATTENTIONS_GENERATED})"
        reason = f"fewer than {required} with different results"
        for words, numbers in (("NaN or inf in", gap.broken), ("no result for", gap.lacking)):
            if numbers:
                names = sorted(f"{'/'.join(filter(None, [task, *place]))} {metric}" for *place, metric in numbers)
                reason = f"{words} {listed(names)}"
                break
        reasons.setdefault((pattern, attention), {})[task] = f"{task}: {reason}"
    table = scores.table[(scores.table["task"] == AVERAGE) & scores.table["index"].isna()]
    for key in table[ROW].itertuples(index=False, name=None):
        found = reasons.setdefault(key, {})
        found[AVERAGE] = f"no index in {', '.join(found)}" if found else "no task has an index"
    return reasons
