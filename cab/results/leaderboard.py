"""The index tables: comparable results, each set scored, with one row per attention and pattern."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cab.files.disk import sanitize_text
from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY, Status
from cab.records.results import PUBLISHED, verdicts
from cab.registry.tables import PRESETS
from cab.results.composites import with_composites
from cab.results.formats import Cell, Fields, index, mean, numbers
from cab.results.index import AVERAGE, Scores, score
from cab.results.metrics import score_kinds
from cab.results.selection import GENERATED, REAL, REHEARSAL, kinds_of_data, rows_in_index
from cab.results.table import BASELINE, Column, Row, Table, element_id

ROW = ["pattern", "attention"]
COSTS = {
    "params": ("parameters, M", 1e-6, 2),
    "train_seconds": ("training time, s", 1, 1),
    "peak_memory_bytes": ("peak memory, MiB", 2**-20, 1),
}
"""Header, factor and decimals of each cost."""
NAMES = (*COMPARISON_KEY, "pattern", "attention", "preset", "metric", "unit", "revision")
UNDEFINED = "NaN or inf in at least one run"
KINDS = (REAL, REHEARSAL, GENERATED)
"""Kinds of data in the order of the boards."""
FULL = "paper"
"""Preset with the training of the published numbers."""


@dataclass(frozen=True)
class Board:
    """The scored results of one preset on real or on generated data.

    Indices are never averaged or ranked across boards. Generated data have metrics only, except in a rehearsal.

    Attributes:
        data: kind of data, see :func:`cab.results.selection.kinds_of_data`.
        results: the scored results, with the column ``place`` (``task/dataset/variant/backbone``).
    """

    preset: str
    data: str
    scores: Scores
    results: pd.DataFrame

    @property
    def heading(self) -> str:
        """Heading on the page."""
        name = "Published numbers" if self.preset == PUBLISHED else f"Preset {self.preset}"
        return name + {REAL: "", REHEARSAL: ", rehearsal on generated data"}.get(self.data, ", synthetic data")

    @property
    def key(self) -> str:
        """Identifier in HTML and in names of files."""
        return self.preset + ("" if self.data == REAL else f"-{self.data}")

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

    def _reasons(self) -> dict[tuple[str, str], str]:
        """Return the reasons for missing indices of each (pattern, attention)."""
        reasons: dict[tuple[str, str], dict[str, str]] = {}
        for (pattern, task, attention), reason in sorted(self.scores.gaps.items()):
            reasons.setdefault((pattern, attention), {})[task] = f"{task}: {reason}"
        averages = self.scores.table[(self.scores.table["task"] == AVERAGE) & self.scores.table["index"].isna()]
        for key in averages[ROW].itertuples(index=False, name=None):
            of_tasks = reasons.setdefault(key, {})
            of_tasks[AVERAGE] = f"no index in {', '.join(of_tasks)}" if of_tasks else "no task has an index"
        return {key: "; ".join(dict.fromkeys(texts.values())) for key, texts in reasons.items()}

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """The rows of ``leaderboard.csv``, sorted by index within each pattern.

        Columns: preset, data, pattern, attention; verified (yes, no, unknown); index, low, high (average over tasks)
        and ``TASK.index|low|high``; missing (reason for a missing index); seeds, params, train_seconds (sums over
        places), peak_memory_bytes (maximum), revision; for every metric, ``PLACE.METRIC``, ``PLACE.METRIC.sd`` and
        ``PLACE.METRIC.seeds`` (mean, standard deviation and number of seeds); ``PLACE.COST`` (mean over seeds).
        """
        facts = self.measured.groupby(ROW).agg(seeds=("seeds", "min"))
        reasons = self._reasons()
        facts.insert(0, "missing", [reasons.get(key, "") for key in facts.index])
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
    return total.pivot(index=ROW, columns="metric", values="value")[[*COSTS]]


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
    for (preset, data), rows in results.groupby(["preset", kinds_of_data(results)], sort=False):
        scores = score(rows, normalization=normalization if data == REAL else "results")
        placed = scores.results.assign(place=places(scores.results))
        boards.append(Board(str(preset), str(data), scores, placed))
    order = {preset: number for number, preset in enumerate(PRESETS)}
    return sorted(
        boards, key=lambda board: (KINDS.index(board.data), order.get(board.preset, len(order)), board.preset)
    )


def compared(boards: Sequence[Board], *, normalization: str) -> list[tuple[list[Board], pd.DataFrame | None]]:
    """Return the boards that share tables, and of generated data the results outside the cells of the suite.

    With the paper's constants, own results of preset ``paper`` are comparable with the published ones.
    """
    groups: dict[str, list[Board]] = {}
    for board in (board for board in boards if board.data != GENERATED):
        is_published = board.preset == PUBLISHED and normalization != "results"
        groups.setdefault(FULL if is_published else board.key, []).append(board)
    generated = [(b, b.results[score_kinds(b.results) == ""]) for b in boards if b.data == GENERATED]
    others = [([board], results) for board, results in generated if len(results)]
    return [*((group, None) for group in groups.values()), *others]


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


def pattern_table(boards: Sequence[Board], pattern: str, results: pd.DataFrame | None = None) -> Table:
    """Return index, raw metrics and costs of one pattern, best index first; the trivial baselines have metrics only.

    Args:
        boards: boards that share the table; the names of published rows say so if there are others.
        results: results whose metrics are shown, without an index (default: all, with the index).
    """
    tasks = list(dict.fromkeys(task for board in boards for task in board.tasks(pattern))) if results is None else []
    tasks = [AVERAGE, *tasks] if len(tasks) > 1 else tasks
    results = pd.concat([board.results for board in boards]) if results is None else results
    results = results[results["pattern"] == pattern]
    frame = pd.concat([board.table for board in boards], ignore_index=True)
    frame = frame[(frame["pattern"] == pattern) & frame["attention"].isin(results["attention"])]
    order = [f"{task}.index".removeprefix(f"{AVERAGE}.") for task in tasks]
    frame = frame.sort_values(order, ascending=False, kind="stable") if tasks else frame
    rows, trivial = frame.to_dict("records"), trivial_baselines(results)
    baselines = list(dict.fromkeys(name for *_, name in trivial))
    blank = [Cell()] * len(baselines)
    columns = [
        Column(task, [*(_index(row, start) for row in rows), *blank], "higher", "compositional index", marks_best=True)
        for task, start in zip(tasks, (name.removesuffix("index") for name in order), strict=True)
    ]
    metrics = results[results["at_length"].isna()].drop_duplicates(["place", "metric"])
    for metric in metrics.sort_values([*COMPARISON_KEY], kind="stable").itertuples():
        name = f"{metric.place}.{metric.metric}"
        values = zip(frame[name], frame[f"{name}.sd"], frame[f"{name}.seeds"].notna(), strict=True)
        cells = [mean(value, deviation, UNDEFINED * is_measured) for value, deviation, is_measured in values]
        cells += [mean(trivial.get((str(metric.place), str(metric.metric), each))) for each in baselines]
        label = str(metric.metric) + (f" ({metric.unit!s})" if metric.unit else "")
        better, place = "higher" if metric.higher_is_better else "lower", str(metric.place).replace("/", " / ")
        columns.append(Column(label, cells, better, group=place, marks_best=True))
    for name, (label, factor, decimals) in COSTS.items():
        columns.append(Column(label, [*numbers(frame[name] * factor, decimals), *blank], "lower", "of all cells"))
    columns.append(Column("seeds", [*numbers(frame["seeds"], 0), *blank], hint="smallest number of any cell"))
    labels = [_row(row, is_mixed=frame["preset"].nunique() > 1) for row in rows]
    labels += [Row(f"{name} (trivial baseline)", kind=BASELINE) for name in baselines]
    return Table(
        labels,
        columns,
        id=element_id(boards[0].key, pattern, "table"),
        caption=f"{' and '.join(board.heading for board in boards)}, pattern {pattern}: means over seeds",
    )


def _row(row: Fields, *, is_mixed: bool) -> Row:
    """Return the label of a row; published results have no code that could be verified."""
    is_published = row["preset"] == PUBLISHED
    label = row["attention"] + f" ({PUBLISHED})" * (is_mixed and is_published)
    return Row(label, "yes" if is_published else row["verified"])


def _index(row: Fields, start: str) -> Cell:
    """Return the cell of an index; published results do not record their seeds."""
    value, low, high = (row[start + name] for name in ("index", "low", "high"))
    is_single = row["seeds"] == 1 and row["preset"] != PUBLISHED
    return index(value, low, high, row["missing"] or "not scored", is_single=is_single)
