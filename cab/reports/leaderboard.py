"""The leaderboard: comparable results, each set scored, with one row per attention and pattern."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_text
from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY, Status
from cab.records.results import PUBLISHED, verdicts
from cab.registry.tables import PRESETS
from cab.results.composites import with_composites
from cab.results.index import AVERAGE, Scores, score
from cab.results.selection import data_ranks, is_synthetic, other_data, rows_in_index

if TYPE_CHECKING:
    import pandas as pd

ROW = ["pattern", "attention"]
COSTS = ["params", "train_seconds", "peak_memory_bytes"]
NAMES = (*COMPARISON_KEY, "pattern", "attention", "preset", "metric", "unit", "revision")


@dataclass(frozen=True)
class Board:
    """The scored results of one preset on one version of the data, from which tables, page and figures are made.

    Scores are never averaged or ranked across boards, because presets, real and synthetic data, and different data
    under one name are not comparable.

    Attributes:
        data_rank: 0 for the data of most runs, larger for other data under the same name.
        difference: from the data of most runs; empty for rank 0.
        results: the scored results, with the column ``place`` (``task/dataset/variant/backbone``).
    """

    preset: str
    synthetic: bool
    data_rank: int
    difference: str
    scores: Scores
    results: pd.DataFrame

    @property
    def heading(self) -> str:
        """Heading on the page."""
        name = "Published numbers" if self.preset == PUBLISHED else f"Preset {self.preset}"
        other = f", other data under the same name ({self.difference})" if self.difference else ""
        return name + (", synthetic data" if self.synthetic else "") + other

    @property
    def data(self) -> str:
        """``real`` or ``synthetic``, with the rank of other data under the same name."""
        return ("synthetic" if self.synthetic else "real") + (f", other {self.data_rank}" if self.data_rank else "")

    @property
    def key(self) -> str:
        """Identifier in HTML and in names of files."""
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

    def tasks(self, pattern: str) -> list[str]:
        """Return the tasks of a pattern."""
        names = self.scores.table.loc[self.scores.table["pattern"] == pattern, "task"].unique()
        return [name for name in names if name != AVERAGE]

    @functools.cached_property
    def measured(self) -> pd.DataFrame:
        """Mean and standard deviation over seeds of every metric and cost, and of the metrics of composites.

        Columns pattern, attention, task, place, metric, at_length, value, deviation, seeds. The standard deviation is
        NaN for a single seed; the mean is NaN if any seed has no value. Costs of runs without a score are ignored.
        """
        import pandas as pd

        keys = [*ROW, "task", "place"]
        runs = self.results.drop_duplicates([*keys, "seed", "hash", "file"])
        costs = runs[[*keys, "seed", "status", *COSTS]].melt([*keys, "seed", "status"], var_name="metric")
        costs["value"] = pd.to_numeric(costs["value"]).where(costs["status"] == Status.FINISHED)
        composites = with_composites(self.results)[len(self.results) :]
        metrics = pd.concat([self.results, composites.assign(place=places(composites))])
        metrics = metrics[[*keys, "seed", "metric", "at_length", "value"]]
        table = (
            pd.concat([metrics, costs], ignore_index=True)
            .groupby([*keys, "metric"], sort=False)
            .agg(
                at_length=("at_length", "first"),
                value=("value", "mean"),
                deviation=("value", "std"),
                is_whole=("value", lambda values: values.notna().all()),
                seeds=("seed", "nunique"),
            )
        )
        table[["value", "deviation"]] = table[["value", "deviation"]].where(table["is_whole"])
        return table.drop(columns="is_whole").reset_index()

    @functools.cached_property
    def reasons(self) -> dict[tuple[str, str], dict[str, str]]:
        """Reasons for missing indices, ``{(pattern, attention): {task: reason}}``; task ``all`` is the average."""
        reasons: dict[tuple[str, str], dict[str, str]] = {}
        for (pattern, task, attention), reason in sorted(self.scores.gaps.items()):
            reasons.setdefault((pattern, attention), {})[task] = f"{task}: {reason}"
        table = self.scores.table
        table = table[(table["task"] == AVERAGE) & table["index"].isna()]
        for key in table[ROW].itertuples(index=False, name=None):
            of_tasks = reasons.setdefault(key, {})
            of_tasks[AVERAGE] = f"no index in {', '.join(of_tasks)}" if of_tasks else "no task has an index"
        return reasons

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """The rows of ``leaderboard.csv``, sorted by index within each pattern.

        Columns: preset, data, pattern, attention; verified (yes, no, unknown); index, low, high (average over tasks)
        and ``TASK.index|low|high``; missing (reason for a missing index); seeds, params, train_seconds (sums over
        places), peak_memory_bytes (maximum), revision; for every metric, ``PLACE.METRIC``, ``PLACE.METRIC.sd`` and
        ``PLACE.METRIC.seeds`` (mean, standard deviation and number of seeds); ``PLACE.COST`` (mean over seeds).
        """
        import pandas as pd

        facts = self.measured.groupby(ROW).agg(seeds=("seeds", "min"))
        missing = ["; ".join(dict.fromkeys(self.reasons.get(key, {}).values())) for key in facts.index]
        facts.insert(0, "missing", missing)
        revisions = self.results.groupby(ROW)["revision"]
        facts["revision"] = revisions.agg(lambda names: " ".join(sorted(set(names) - {""})))
        is_cost = self.measured["metric"].isin(COSTS)
        values = _value_columns(self.measured.assign(cost=is_cost))
        table = pd.concat([facts, _total_cost(self.measured[is_cost]), values], axis=1).rename_axis(ROW)
        table = _index_columns(self.scores.table).join(table, how="right").reset_index()
        verified = verdicts(self.results)
        table.insert(0, "preset", self.preset)
        table.insert(1, "data", self.data)
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
    columns = [(bound, task) for task in tasks for bound in ("index", "low", "high")]
    names = [bound if task == AVERAGE else f"{task}.{bound}" for bound, task in columns]
    return wide.reindex(columns=columns).set_axis(names, axis="columns")


def _value_columns(measured: pd.DataFrame) -> pd.DataFrame:
    """Return ``PLACE.METRIC``, and for metrics ``.sd`` and ``.seeds``, with ROW as index; costs after the metrics."""
    import pandas as pd

    measured = measured.assign(column=measured["place"] + "." + measured["metric"])
    order = measured.sort_values(["place", "cost"], kind="stable").drop_duplicates("column")
    tables = {"": "value", ".sd": "deviation", ".seeds": "seeds"}
    wide = {end: measured.pivot(index=ROW, columns="column", values=name) for end, name in tables.items()}
    names = [
        (name, end)
        for name, is_cost in zip(order["column"], order["cost"], strict=True)
        for end in tables
        if not (end and is_cost)
    ]
    columns = {name + end: wide[end][name] for name, end in names}
    whole = {name: column.astype("Int64") for name, column in columns.items() if name.endswith(".seeds")}
    return pd.DataFrame({**columns, **whole})


def places(results: pd.DataFrame) -> list[str]:
    """Return ``task/dataset/variant/backbone`` of each row, without an empty variant."""
    cells = results[[*COMPARISON_KEY]].itertuples(index=False, name=None)
    return ["/".join(filter(None, cell)) for cell in cells]


def _total_cost(costs: pd.DataFrame) -> pd.DataFrame:
    """Return the cost over all places of a pattern; NaN if the attention lacks any of them."""
    places = costs.groupby("pattern")["place"].nunique()
    total = costs.groupby([*ROW, "metric"])["value"].agg(["count", "sum", "max"]).reset_index()
    total["value"] = total["sum"].where(total["metric"] != "peak_memory_bytes", total["max"])
    total.loc[total["count"] < total["pattern"].map(places), "value"] = math.nan
    return total.pivot(index=ROW, columns="metric", values="value")[COSTS]


def printable_results(results: pd.DataFrame) -> pd.DataFrame:
    """Return ``results`` with all names sanitized for page, table and figure (see :func:`sanitize_text`)."""
    clean = {name: results[name].map({text: sanitize_text(text) for text in results[name].unique()}) for name in NAMES}
    return results.assign(**clean)


def printable_records(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``records.csv``: ``file`` is relative to the folder that contains all results."""
    paths = {file: Path(file).absolute() for file in results["file"].unique()}
    folder = os.path.commonpath([path.parent for path in paths.values()])
    names = {file: path.relative_to(folder).as_posix() for file, path in paths.items()}
    return results.drop(columns="record").assign(file=results["file"].map(names))


def score_boards(results: pd.DataFrame, *, normalization: str) -> list[Board]:
    """Score the results of the tasks in the index: real data before synthetic, the largest preset first."""
    boards = []
    results = printable_results(rows_in_index(results))
    for (preset, synthetic), of_preset in results.groupby(["preset", is_synthetic(results)], sort=False):
        ranks = data_ranks(of_preset)
        for key, rows in of_preset.groupby(ranks):
            rank = int(str(key))
            difference = sanitize_text(other_data(of_preset, ranks, rank)) if rank else ""
            scores = score(rows, normalization=normalization)
            placed = scores.results.assign(place=places(scores.results))
            boards.append(Board(str(preset), bool(synthetic), rank, difference, scores, placed))
    order = {preset: number for number, preset in enumerate(PRESETS)}
    return sorted(boards, key=lambda b: (b.synthetic, order.get(b.preset, len(order)), b.preset, b.data_rank))


def extrapolation_curves(measured: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the metrics that a task reports at several lengths (Figure 3c), by place and metric.

    Metric ``ppl_512`` at length 512 is a point of curve ``ppl``. The curves have the columns attention, length, value.
    """
    points = measured.dropna(subset=["at_length", "value"])
    points = points.assign(length=points["at_length"].astype(int))
    names = zip(points["metric"], points["length"], strict=True)
    points["metric"] = [name.removesuffix(f"_{length}") for name, length in names]
    curves = points.groupby(["place", "metric"])
    return {(str(place), str(name)): curve[["attention", "length", "value"]] for (place, name), curve in curves}


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
