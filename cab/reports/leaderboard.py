"""The leaderboard as a table: one row an attention and pattern, with index, raw metrics and cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.sanitize import csv_table, listed
from cab.patterns import pattern_rank
from cab.records.record import PLACE, Status
from cab.records.verification_status import verdicts
from cab.reports.suites import Suite, printable_results, split_suites
from cab.scoring import Scores, benefit_of_attention, score
from cab.scoring.index import AVERAGE

if TYPE_CHECKING:
    import pandas as pd

ROW = ["pattern", "attention"]
COSTS = ["params", "train_seconds", "peak_memory_bytes"]


def place_fields(results: pd.DataFrame) -> dict[str, dict[str, str]]:
    """What raw metrics were measured on: ``task/dataset/variant/backbone`` and the four apart."""
    rows = results[[*PLACE]].drop_duplicates().sort_values([*PLACE])
    return {"/".join(filter(None, row)): dict(zip(PLACE, row, strict=True)) for row in rows.itertuples(index=False)}


def with_place(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` with the column ``place``, see :func:`place_fields`."""
    names = {tuple(fields.values()): place for place, fields in place_fields(results).items()}
    return results.assign(place=[names[row] for row in zip(*(results[name] for name in PLACE), strict=True)])


def measurements(results: pd.DataFrame) -> pd.DataFrame:
    """Mean and deviation over seeds of every metric and cost.

    Columns pattern, attention, task, place, metric, at_length, value, deviation, seeds. One seed has no deviation
    (NaN), and a seed without a number leaves the mean without one: there is no mean over missing values. What a run
    without a score took is no cost of a training.
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
    """A scored suite: what the table, the page and the figures are made from.

    ``scores`` is what :func:`cab.scoring.score_table` gives, and the others what the functions below give.
    """

    suite: Suite
    scores: pd.DataFrame
    measured: pd.DataFrame
    reasons: dict[tuple[str, str], dict[str, str]]
    table: pd.DataFrame

    def tasks(self, pattern: str) -> list[str]:
        names = self.scores.loc[self.scores["pattern"] == pattern, "task"].unique()
        return [name for name in names if name != AVERAGE]

    def benefit(self) -> pd.DataFrame:
        """The rows of :func:`cab.scoring.benefit_of_attention` that Figure 3b shows: noncausal self attention, in the
        tasks whose network was run without it too."""
        benefit = benefit_of_attention(self.scores)
        return benefit[(benefit["pattern"] == "NS") & benefit["without"].notna()]

    def rows(self, pattern: str) -> list[dict[str, Any]]:
        """The rows of ``table`` of one pattern, best first."""
        return self.table[self.table["pattern"] == pattern].to_dict("records")  # type: ignore[return-value]


def score_suite(suite: Suite, *, normalization: str) -> Board:
    """Score the results of a suite, on their own."""
    scores = score(suite.results, normalization=normalization)
    suite = dataclasses.replace(suite, results=scores.results)
    measured = measurements(suite.results)
    reasons = missing_reasons(scores)
    return Board(suite, scores.table, measured, reasons, leaderboard_table(suite, scores.table, measured, reasons))


def score_boards(results: pd.DataFrame, *, normalization: str) -> list[Board]:
    """The scored suites of all ``results``; ValueError for results that cannot be scored."""
    return [score_suite(suite, normalization=normalization) for suite in split_suites(printable_results(results))]


def write_csv(boards: Iterable[Board], out: Path) -> Path:
    """Write ``leaderboard.csv`` into ``out``: the tables of all suites below each other."""
    import pandas as pd

    out.mkdir(parents=True, exist_ok=True)
    path = out / "leaderboard.csv"
    csv_table(pd.concat([board.table for board in boards], ignore_index=True)).to_csv(path, index=False)
    return path


def leaderboard_table(
    suite: Suite, scores: pd.DataFrame, measured: pd.DataFrame, reasons: dict[tuple[str, str], dict[str, str]]
) -> pd.DataFrame:
    """The rows of ``leaderboard.csv`` of one suite, best index first within a pattern.

    Columns: preset, data, pattern, attention; verified (yes, no, unknown); ci, low, high (average over tasks) and
    ``TASK.ci|low|high``; why an index is missing; seeds, params, train_seconds (sums over the places),
    peak_memory_bytes (the largest), revision; then ``PLACE.METRIC``, means over seeds, for every metric and cost.
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
    """Columns ci, low, high of the average, then ``TASK.ci|low|high`` in the order of the tasks; rows as ROW."""
    wide = scores.pivot(index=ROW, columns="task", values=["index", "low", "high"])
    tasks = dict.fromkeys([AVERAGE, *scores["task"]])
    wide = wide.reindex(columns=[(bound, task) for task in tasks for bound in ("index", "low", "high")])
    names = [bound if task == AVERAGE else f"{task}.{bound}" for task in tasks for bound in ("index", "low", "high")]
    return wide.set_axis(names, axis="columns")


def _total_cost(measured: pd.DataFrame) -> pd.DataFrame:
    """Cost over all places of a pattern; none for an attention that lacks one, whose total would flatter it."""
    cost = measured[measured["metric"].isin(COSTS)]
    places = cost.groupby("pattern")["place"].nunique()
    total = cost.groupby([*ROW, "metric"])["value"].agg(["count", "sum", "max"]).reset_index()
    total["value"] = total["sum"].where(total["metric"] != "peak_memory_bytes", total["max"])
    total.loc[total["count"] < total["pattern"].map(places), "value"] = math.nan
    return total.pivot(index=ROW, columns="metric", values="value")[COSTS]


def missing_reasons(scores: Scores) -> dict[tuple[str, str], dict[str, str]]:
    """Why an attention has no index: ``{(pattern, attention): {task: reason}}``, task ``all`` for the average."""
    reasons: dict[tuple[str, str], dict[str, str]] = {}
    for (pattern, task, attention), gap in sorted(scores.gaps.items()):
        reason = "the attentions with a result do not differ, or there is only one"
        for words, numbers in (("not a number in", gap.broken), ("no result for", gap.lacking)):
            if numbers:
                names = sorted(f"{'/'.join(filter(None, [task, *place]))} {metric}" for *place, metric in numbers)
                reason = f"{words} {listed(names)}"
                break
        reasons.setdefault((pattern, attention), {})[task] = f"{task}: {reason}"
    table = scores.table[(scores.table["task"] == AVERAGE) & scores.table["index"].isna()]
    for key in table[ROW].itertuples(index=False, name=None):
        found = reasons.setdefault(key, {})
        found[AVERAGE] = f"no index in {', '.join(found)}" if found else "no task is scored"
    return reasons
