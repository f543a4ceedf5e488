"""The leaderboard: comparable suites of results, each scored, with one row per attention and pattern."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cab.files.disk import listed, sanitize_table, sanitize_text
from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY, Status
from cab.records.results import PUBLISHED, verdicts
from cab.scoring import Scores, benefit_of_attention, score
from cab.scoring.index import AVERAGE
from cab.scoring.normalization import MIN_ATTENTIONS, MIN_ATTENTIONS_GENERATED
from cab.scoring.selection import data_ranks, is_synthetic, other_data, rows_in_index
from cab.suite.check import without_invalid_cells

if TYPE_CHECKING:
    import pandas as pd

ROW = ["pattern", "attention"]
COSTS = ["params", "train_seconds", "peak_memory_bytes"]
_TEXT = (*COMPARISON_KEY, "pattern", "attention", "preset", "metric", "unit", "revision")


@dataclass(frozen=True)
class Suite:
    """The results of one preset on one version of the data.

    Scores are never averaged or ranked across suites, because presets, real and synthetic data, and different data
    under one name are not comparable.

    Attributes:
        preset: name of the preset.
        synthetic: whether the data are generated.
        results: the results.
        data_rank: 0 for the data of most runs, larger for other data under the same name.
        apart: difference from the data of most runs.
        uncounted: cells excluded from the index, with reasons.
    """

    preset: str
    synthetic: bool
    results: pd.DataFrame
    data_rank: int = 0
    apart: str = ""
    uncounted: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """Heading on the page."""
        name = "Published numbers" if self.preset == PUBLISHED else f"Preset {self.preset}"
        apart = f", other data under the same name ({self.apart})" if self.apart else ""
        return name + (", synthetic data" if self.synthetic else "") + apart

    @property
    def data(self) -> str:
        """``real`` or ``synthetic``, with the rank of other data under the same name."""
        return ("synthetic" if self.synthetic else "real") + (f", other {self.data_rank}" if self.data_rank else "")

    @property
    def key(self) -> str:
        """Identifier of the suite."""
        other = f"-other{self.data_rank}" if self.data_rank else ""
        return self.preset + ("-synthetic" if self.synthetic else "") + other

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets."""
        return sorted(self.results["dataset"].unique())

    @property
    def patterns(self) -> list[str]:
        """Patterns with results, in the order of the paper."""
        return sorted(self.results["pattern"].unique(), key=pattern_rank)


def split_suites(results: pd.DataFrame) -> list[Suite]:
    """Return the suites in ``results``: real data before synthetic, the largest preset first, other data last.

    Tasks outside the index are excluded.
    """
    suites = []
    results = rows_in_index(results)
    for (preset, synthetic), part in results.groupby(["preset", is_synthetic(results)], sort=False):
        ranks = data_ranks(part)
        for number, rows in part.groupby(ranks):
            rank = int(str(number))
            apart = sanitize_text(other_data(part, ranks, rank)) if rank else ""
            rows, uncounted = without_invalid_cells(rows)
            suites.append(Suite(str(preset), bool(synthetic), rows, rank, apart, uncounted))
    order = {preset: place for place, preset in enumerate(("paper", "mini", "smoke"))}
    return sorted(suites, key=lambda s: (s.synthetic, order.get(s.preset, len(order)), s.preset, s.data_rank))


def printable_results(results: pd.DataFrame) -> pd.DataFrame:
    """Return ``results`` with all names sanitized for page, table and figure (see :func:`sanitize_text`)."""
    fit = {name: results[name].map({text: sanitize_text(text) for text in results[name].unique()}) for name in _TEXT}
    return results.assign(**fit)


def measurements(results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of every metric and cost.

    Columns pattern, attention, task, place, metric, at_length, value, deviation, seeds. The standard deviation is NaN
    for a single seed; the mean is NaN if any seed has no value. Costs of runs without a score are ignored.
    """
    import pandas as pd

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


def extrapolation_curves(measured: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the metrics that a task reports at several lengths (Figure 3c), by place and metric.

    The curves have the columns attention, length, value.

    Args:
        measured: rows of :func:`measurements`; metric ``ppl_512`` at length 512 is a point of curve ``ppl``.
    """
    points = measured.dropna(subset=["at_length", "value"])
    names = zip(points["metric"], points["at_length"], strict=True)
    points = points.assign(
        metric=[name.removesuffix(f"_{length:.0f}") for name, length in names],
        length=points["at_length"].astype(int),
    )
    return {
        (str(place), str(metric)): part[["attention", "length", "value"]]
        for (place, metric), part in points.groupby(["place", "metric"])
    }


@dataclass(frozen=True)
class Board:
    """A scored suite, from which table, page and figures are made.

    Attributes:
        suite: the results, with the column ``place`` (``task/dataset/variant/backbone``).
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


def score_suite(suite: Suite, *, normalization: str) -> Board:
    """Score the results of a suite."""
    scores = score(suite.results, normalization=normalization)
    cells = scores.results[[*COMPARISON_KEY]].itertuples(index=False, name=None)
    results = scores.results.assign(place=["/".join(filter(None, cell)) for cell in cells])
    suite = dataclasses.replace(suite, results=results)
    measured = measurements(results)
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


def trivial_baselines(results: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Return the trivial baselines of printable results: ``{(place, metric, baseline): value}``.

    Baselines depend on the data only, so one finished run per place is used.
    """
    runs = results[(results["status"] == Status.FINISHED) & (results["hash"] != "")].drop_duplicates("place")
    return {
        (str(place), sanitize_text(metric), sanitize_text(name)): float(value)
        for place, record in runs.sort_values("place")[["place", "record"]].itertuples(index=False)
        for name, metrics in record.baselines.items()
        for metric, value in metrics.items()
        if value is not None
    }


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
