"""The index tables: comparable results, each set scored, with one row per attention and pattern."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cab.errors import UserError
from cab.files.disk import sanitize_text
from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY, Status
from cab.registry.tables import PRESETS
from cab.results.formats import Fields, TableCell, index, mean, numbers
from cab.results.guards import comparable, in_index
from cab.results.index import Scores, is_average, printed_scores, score
from cab.results.load import AVERAGE, GENERATED, INDEX, OBJECT_COLUMNS, OWN, PUBLISHED, REAL, REHEARSAL
from cab.results.published import on_published_sets
from cab.results.summarize import NOT_GIVEN, seeds_of_rows, summarize, worst_verified
from cab.results.table import BASELINE, Column, Row, Table, element_id

ROW = ["pattern", "attention"]
COST_FORMATS = {
    "params": ("params, M", 1e-6, 2),
    "train_seconds": ("training time, s", 1, 1),
    "peak_memory_bytes": ("peak memory, MiB", 2**-20, 1),
}
"""Header, factor and decimals of each cost."""
NAMED = (*COMPARISON_KEY, "pattern", "attention", "preset", "metric", "unit", "revision")
KINDS_OF_DATA = (REAL, REHEARSAL, GENERATED)
"""Kinds of data in the order of the boards."""
FULL_PRESET = "paper"
"""Preset with the training of the published numbers."""


@dataclass(frozen=True)
class Board:
    """The results of one preset, or of the paper, on one kind of data.

    Indices are never averaged or ranked across boards. Generated data have metrics only, except in a rehearsal.

    Attributes:
        data: kind of data, see :func:`cab.results.load.kind_of_data`.
        results: the comparable results, with the column ``place`` (``task/dataset/variant/backbone``).
        scores: their indices; without any for generated data.
    """

    preset: str
    data: str
    results: pd.DataFrame
    scores: Scores

    @property
    def heading(self) -> str:
        """Heading on the page, with the normalization of the indices."""
        name = "Published numbers" if self.preset == PUBLISHED else f"Preset {self.preset}"
        name += {REAL: "", REHEARSAL: ", rehearsal on generated data"}.get(self.data, ", synthetic data")
        is_computed = self.preset != PUBLISHED and len(self.scores.table)
        return f"{name} (index: {self.scores.normalization})" if is_computed else name

    @property
    def key(self) -> str:
        """Identifier in HTML and in names of files."""
        return self.preset + ("" if self.data == REAL else f"-{self.data}")

    @property
    def patterns(self) -> list[str]:
        """Patterns with results, in the order of the paper."""
        return sorted(self.results["pattern"].unique(), key=pattern_rank)

    def tasks(self, pattern: str) -> list[str]:
        """Return the tasks of a pattern with indices."""
        table = self.scores.table
        return [name for name in table.loc[table["pattern"] == pattern, "task"].unique() if not is_average(name)]

    @functools.cached_property
    def measured(self) -> pd.DataFrame:
        """Every metric and cost, those of published data sets included, summarized over seeds.

        Columns pattern, attention, task, place, metric, at_length, and those of
        :func:`cab.results.summarize.summarize`. Costs of runs without a score are ignored.
        """
        composites = on_published_sets(self.results)
        known = set(self.results["place"])
        composites = composites.assign(place=places(composites))
        composites = composites[~composites["place"].isin(known)]
        runs = self.results.drop_duplicates([*ROW, "task", "place", "seed", "hash", "file"])
        runs = runs[runs["status"] == Status.FINISHED]
        costs = [runs.assign(metric=name, value=pd.to_numeric(runs[name]), at_length=math.nan) for name in COST_FORMATS]
        rows = pd.concat([self.results, *([composites] if len(composites) else []), *costs], ignore_index=True)
        return summarize(rows, [*ROW, "task", "place", "metric"], keep=["at_length"])

    def _reasons(self) -> dict[tuple[str, str], str]:
        """Return the reasons for missing indices and values of each (pattern, attention)."""
        reasons: dict[tuple[str, str], dict[str, None]] = {}
        rows = self.scores.table[self.scores.table["index"].isna()]
        rows = rows.sort_values("task", key=lambda tasks: tasks.map(is_average), kind="stable")
        for pattern, task, attention, text in rows[["pattern", "task", "attention", "missing"]].to_numpy():
            shown = text if is_average(task) else f"{task}: {text}"
            reasons.setdefault((pattern, attention), {})[shown] = None
        lacking = self.measured[(self.measured["missing"] != "") & ~self.measured["metric"].isin(COST_FORMATS)]
        for pattern, attention, place, text in lacking[[*ROW, "place", "missing"]].to_numpy():
            of_row = reasons.setdefault((pattern, attention), {})
            if not any(text in reason for reason in of_row):
                of_row[f"{place}: {text}"] = None
        return {key: "; ".join(texts) for key, texts in reasons.items()}

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """The rows of ``leaderboard.csv``, sorted by index within each pattern.

        Columns: preset, data, source, normalization (of the index), pattern, attention; verified (yes, no, unknown);
        index, low, high (average over tasks) and ``TASK.index|low|high``; missing (why an index or the value of a seed
        is missing); seeds (smallest number of any value), params, train_seconds (sums over places), peak_memory_bytes
        (maximum), revision; for every metric, ``PLACE.METRIC``, ``PLACE.METRIC.sd`` and ``PLACE.METRIC.seeds`` (mean,
        standard deviation and number of seeds with a value); ``PLACE.COST`` (mean over seeds).
        """
        seeds = seeds_of_rows(self.results)
        facts = pd.DataFrame({"seeds": seeds.values()}, index=pd.MultiIndex.from_tuples(seeds, names=ROW))
        reasons = self._reasons()
        facts.insert(0, "missing", [reasons.get(key, "") for key in facts.index])
        revisions = self.results.groupby(ROW)["revision"]
        facts["revision"] = revisions.agg(lambda names: " ".join(sorted(set(names) - {""})))
        is_cost = self.measured["metric"].isin(COST_FORMATS)
        values = _value_columns(self.measured.assign(cost=is_cost))
        table = pd.concat([facts, _total_cost(self.measured[is_cost]), values], axis=1).rename_axis(ROW)
        table = _index_columns(self.scores.table).join(table, how="right").reset_index()
        verified = worst_verified(self.results)
        table.insert(0, "preset", self.preset)
        table.insert(1, "data", self.data)
        sources = self.results.groupby(ROW)["source"].first()
        table.insert(2, "source", sources.loc[pd.MultiIndex.from_frame(table[ROW])].to_numpy())
        table.insert(3, "normalization", self.scores.normalization if len(self.scores.table) else "")
        table.insert(6, "verified", [verified[key] for key in table[ROW].itertuples(index=False, name=None)])
        return table.sort_values(
            ["pattern", "index", "attention"],
            ascending=[True, False, True],
            key=lambda column: column.map(pattern_rank) if column.name == "pattern" else column,
            ignore_index=True,
        )


def _index_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return index, low and high of the average, then ``TASK.index|low|high`` per task, with ROW as index."""
    wide = table.pivot(index=ROW, columns="task", values=["index", "low", "high"])
    tasks = dict.fromkeys([AVERAGE, *sorted(table["task"].unique(), key=lambda task: not is_average(task))])
    columns = [(bound, task) for task in tasks for bound in ("index", "low", "high")]
    names = [bound if task == AVERAGE else f"{task}.{bound}" for bound, task in columns]
    return wide.reindex(columns=columns).set_axis(names, axis="columns")


def _value_columns(measured: pd.DataFrame) -> pd.DataFrame:
    """Return ``PLACE.METRIC``, and for metrics ``.sd`` and ``.seeds``, with ROW as index; costs after the metrics."""
    measured = measured.assign(column=measured["place"] + "." + measured["metric"])
    order = measured.sort_values(["place", "cost"], kind="stable").drop_duplicates("column")
    tables = {"": "mean", ".sd": "sd", ".seeds": "seeds"}
    wide = {end: measured.pivot(index=ROW, columns="column", values=name) for end, name in tables.items()}
    columns = {
        name + end: wide[end][name].astype("Int64" if end == ".seeds" else float)
        for name, is_cost in zip(order["column"], order["cost"], strict=True)
        for end in tables
        if not (end and is_cost)
    }
    return pd.DataFrame(columns)


def places(results: pd.DataFrame) -> list[str]:
    """Return ``task/dataset/variant/backbone`` of each row, without an empty variant."""
    cells = results[[*COMPARISON_KEY]].itertuples(index=False, name=None)
    return ["/".join(filter(None, cell)) for cell in cells]


def _total_cost(costs: pd.DataFrame) -> pd.DataFrame:
    """Return the cost over all places of a pattern; NaN if the attention lacks any of them."""
    places = costs.groupby("pattern")["place"].nunique()
    total = costs.groupby([*ROW, "metric"])["mean"].agg(["count", "sum", "max"]).reset_index()
    total["value"] = total["sum"].where(total["metric"] != "peak_memory_bytes", total["max"])
    total.loc[total["count"] < total["pattern"].map(places), "value"] = math.nan
    return total.pivot(index=ROW, columns="metric", values="value")[[*COST_FORMATS]]


def index_boards(frame: pd.DataFrame, normalization: str | None = None) -> list[Board]:
    """Return the boards of the tasks in the index: real data before synthetic, the largest preset first."""
    boards = []
    rows = printable(in_index(frame))
    printed = rows[rows["kind"] == INDEX]
    if names := set(COST_FORMATS).intersection(rows["metric"]):
        raise UserError(f"metric '{min(names)}' has the name of a cost; rename it")
    for (preset, data), of in rows[rows["kind"] != INDEX].groupby(["preset", "data"], sort=False):
        results = comparable(of)
        if preset == PUBLISHED or data == GENERATED:
            scores = printed_scores(printed[printed["preset"] == preset], results)
        else:
            scores = score(results, normalization=normalization)
        boards.append(Board(str(preset), str(data), results.assign(place=places(results)), scores))
    order = {preset: number for number, preset in enumerate(PRESETS)}
    return sorted(
        boards, key=lambda board: (KINDS_OF_DATA.index(board.data), order.get(board.preset, len(order)), board.preset)
    )


def printable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with all names sanitized for page, table and figure (see :func:`sanitize_text`)."""
    clean = {name: frame[name].map({text: sanitize_text(text) for text in frame[name].unique()}) for name in NAMED}
    return frame.assign(**clean)


def records_csv(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``records.csv``: ``file`` is relative to the folder that contains all results."""
    paths = {file: Path(file).absolute() for file in frame["file"].unique()}
    folder = os.path.commonpath([path.parent for path in paths.values()])
    names = {file: path.relative_to(folder).as_posix() for file, path in paths.items()}
    return frame.drop(columns=list(OBJECT_COLUMNS)).assign(file=frame["file"].map(names))


def compared(boards: Sequence[Board]) -> list[tuple[list[Board], pd.DataFrame | None]]:
    """Return the boards that share tables, and of generated data the results outside the cells of the suite.

    Own results of preset ``paper`` are comparable with the published ones. Boards with own results come first.
    """
    groups: dict[str, list[Board]] = {}
    for board in (board for board in boards if board.data != GENERATED):
        groups.setdefault(FULL_PRESET if board.preset == PUBLISHED else board.key, []).append(board)
    generated = [(b, b.results[b.results["score"] == ""]) for b in boards if b.data == GENERATED]
    others = [([board], results) for board, results in generated if len(results)]
    sets: list[tuple[list[Board], pd.DataFrame | None]] = [*((group, None) for group in groups.values()), *others]
    return sorted(sets, key=lambda pair: all(board.preset == PUBLISHED for board in pair[0]))


def extrapolation_curves(measured: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the metrics that a task reports at several lengths (Figure 3c), by place and metric.

    Metric ``ppl_512`` at length 512 is a point of curve ``ppl``. The curves have the columns attention, length, value.
    """
    points = measured.dropna(subset=["at_length", "mean"])
    points = points.assign(value=points["mean"], length=points["at_length"].astype(int))
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
        for place, baselines in runs.sort_values("place")[["place", "baselines"]].itertuples(index=False)
        for name, metrics in baselines.items()
        for metric, value in metrics.items()
        if value is not None
    }


def pattern_table(boards: Sequence[Board], pattern: str, results: pd.DataFrame | None = None) -> Table:
    """Return index, raw metrics and costs of one pattern, best index first; the trivial baselines have metrics only.

    Published numbers have no costs.

    Args:
        boards: boards that share the table; the names of published rows say so if there are others.
        results: results whose metrics are shown, without an index (default: all, with the index).
    """
    scored = [board for board in boards if results is None]
    tasks = list(dict.fromkeys(task for board in scored for task in board.tasks(pattern)))
    averages = [task for board in scored for task in board.scores.table["task"].unique() if is_average(task)]
    tasks = [*dict.fromkeys(averages), *tasks] if len(tasks) > 1 else tasks
    results = pd.concat([board.results for board in boards]) if results is None else results
    results = results[results["pattern"] == pattern]
    frame = pd.concat([board.table for board in boards], ignore_index=True)
    frame = frame[(frame["pattern"] == pattern) & frame["attention"].isin(results["attention"])]
    order = [f"{task}.index".removeprefix(f"{AVERAGE}.") for task in tasks]
    frame = frame.sort_values(order, ascending=False, kind="stable") if tasks else frame
    rows, trivial = frame.to_dict("records"), trivial_baselines(results)
    lacking = {key: text for board in boards for key, text in _lacking(board, pattern).items()}
    baselines = list(dict.fromkeys(name for *_, name in trivial))
    blank = [TableCell()] * len(baselines)
    columns = [
        Column(
            task,
            [*(_index(row, start) for row in rows), *blank],
            "higher",
            group="compositional index",
            marks_best=True,
        )
        for task, start in zip(tasks, (name.removesuffix("index") for name in order), strict=True)
    ]
    metrics = results[results["at_length"].isna()].drop_duplicates(["place", "metric"])
    for metric in metrics.sort_values([*COMPARISON_KEY], kind="stable").itertuples():
        name = f"{metric.place}.{metric.metric}"
        reasons = [lacking.get((row["preset"], row["attention"], name), "") for row in rows]
        values = zip(frame[name], frame[f"{name}.sd"], reasons, strict=True)
        cells = [mean(value, deviation, reason) for value, deviation, reason in values]
        cells += [mean(trivial.get((str(metric.place), str(metric.metric), each))) for each in baselines]
        label = str(metric.metric) + (f" ({metric.unit!s})" if metric.unit else "")
        better, place = "higher" if metric.higher_is_better else "lower", str(metric.place).replace("/", " / ")
        columns.append(Column(label, cells, better, group=place, marks_best=True))
    has_costs = any(row["preset"] != PUBLISHED for row in rows)
    for name, (label, factor, decimals) in COST_FORMATS.items() if has_costs else ():
        cells = [*numbers(frame[name] * factor, decimals), *blank]
        columns.append(Column(label, cells, "lower", group="of all cells"))
    columns.append(Column("seeds", [*numbers(frame["seeds"], 0), *blank], hint="smallest number of any cell"))
    labels = [_row(row, is_mixed=len(boards) > 1) for row in rows]
    labels += [Row(f"{name} (trivial baseline)", kind=BASELINE) for name in baselines]
    return Table(
        labels,
        columns,
        id=element_id(boards[0].key, pattern, "table"),
        caption=f"{' and '.join(board.heading for board in boards)}, pattern {pattern}: means over seeds",
        remarks=[
            f"{name}, {column.replace('/', ' / ')}: {text}"
            for (_, name, column), text in lacking.items()
            if text != NOT_GIVEN
        ],
    )


def _lacking(board: Board, pattern: str) -> dict[tuple[str, str, str], str]:
    """Return which seeds have no value, by preset, attention and column, of the user's results in a pattern."""
    rows = board.measured[(board.measured["pattern"] == pattern) & (board.measured["missing"] != "")]
    rows = rows[~rows["metric"].isin(COST_FORMATS)]
    names = rows["place"] + "." + rows["metric"]
    found = zip(rows["attention"], names, rows["missing"], strict=True)
    return {(board.preset, attention, name): text for attention, name, text in found}


def _row(row: Fields, *, is_mixed: bool) -> Row:
    """Return the label of a row; published results have no code that could be verified."""
    is_published = row["preset"] == PUBLISHED
    label = row["attention"] + f" ({PUBLISHED})" * (is_mixed and is_published)
    kind = OWN if is_mixed and row["source"] == OWN else ""
    return Row(label, "yes" if is_published else row["verified"], kind)


def _index(row: Fields, start: str) -> TableCell:
    """Return the cell of an index; published results do not record their seeds."""
    value, low, high = (row[start + name] for name in ("index", "low", "high"))
    is_single = math.isnan(low) and row["preset"] != PUBLISHED
    return index(value, low, high, row["missing"] or "not scored", is_single=is_single)
