"""Every number of results that the commands print, by name: source, normalization, quantity and place.

The source is ``own``, ``reference``, ``published`` or ``recomputed``. An index has the normalization that its table
states; a table that states none has that of the index table of ``cab score``.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cab.cli.main import main
from tests.helpers.named_numbers import Name, NamedNumbers
from tests.helpers.printed_tables import (
    Number,
    PrintedTable,
    csv_rows,
    html_tables,
    latex_tables,
    number,
    numbers,
    of_csv,
    text_tables,
)

Row = Mapping[str, str]
REFERENCES = ("own", "reference", "published", "recomputed")
REACHED = ("reached_90", "solved")
PATTERN_TABLE = re.compile(r"-(NS|CS|NC|CC)-table$")
SCORED = re.compile(r"\d+ of \d+ solved")


class PrintedNumbers(NamedNumbers):
    """The numbers of all commands; ``default`` is the source of rows that name none."""

    def __init__(self, default: str) -> None:
        super().__init__()
        self.default = default
        self.normalization: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self._headings: dict[str, tuple[str, str, str]] = {}
        self._columns: dict[str, list[tuple[str, str]]] = {}
        self._abilities: dict[tuple[str, str], tuple[str, str]] = {}
        self._sources: dict[tuple[str, ...], set[str]] = defaultdict(set)

    @property
    def _own(self) -> str:
        """The source of values that `cab paper` prints as own."""
        return "reference" if self.default == "reference" else "own"

    def _source(self, row: Row) -> str:
        source = row.get("source") or ("published" if row.get("preset") == "published" else self.default)
        return source.partition(" (")[0]

    def _scored(self, row: Row, source: str = "") -> tuple[str, str]:
        """Source and normalization of an index."""
        source = source or self._source(row)
        if source == "published":
            return source, ""
        stated = row.get("normalization") or "".join(re.findall(r"\((\w+)\)", row.get("source") or ""))
        return source, stated or self.normalization.get(source, "")

    def _label(self, label: str, sources: Iterable[str] = ()) -> tuple[str, str]:
        """Attention and source of a row's label, such as ``† abc (published)``."""
        attention, _, note = label.lstrip("†‡ ").partition(" (")
        named = [source for source in REFERENCES if source in note.replace("yours", "own")]
        if "rehearsal" in note:
            named = ["own"]
        return attention.rstrip("†‡ "), (named or [*sources, self.default])[0]

    def index_csv(self, output: str, text: str) -> None:
        rows = csv_rows(text)
        self.normalization = {self._source(row): row["normalization"] for row in rows if row.get("normalization")}
        for row in rows:
            scored, place = self._scored(row), (row["pattern"], row["task"], row["attention"])
            self._sources["index", row["pattern"]].add(scored[0])
            for column in ("index", "low", "high"):
                self.add(output, (*scored, column, *place), of_csv(row[column]))
            self.add(output, (*scored, "seeds of index", *place), of_csv(row["seeds"]))

    def gain_csv(self, output: str, text: str) -> None:
        for row in csv_rows(text):
            place = row["pattern"], row["task"], row["backbone"]
            ability = row["ability"] or f"{row['task']} {row['backbone']}"
            self._abilities[row["pattern"], ability] = place[1:]
            self._sources["K", row["attention"]].add(row["source"])
            for column in ("K", "low", "high", "bound", "seeds", *REACHED):
                if column in row:
                    quantity = "reached 90" if column in REACHED else f"{column} of K"
                    self.add(output, (row["source"], "", quantity, *place, row["attention"]), of_csv(row[column]))

    def metrics_csv(self, output: str, text: str) -> None:
        for row in csv_rows(text):
            place = "/".join(filter(None, (row[n] for n in ("task", "dataset", "config_variant", "backbone"))))
            attention = row["attention"]
            name = row["pattern"], place, attention, row["metric"]
            for column, quantity in (("mean", "metric"), ("sd", "sd"), ("seeds", "seeds of metric")):
                self.add(output, (self._source(row), "", quantity, *name), of_csv(row[column]))
            heading = f"{place.replace('/', ' ')} {row['pattern']} ({row['preset']})"
            self._headings[heading] = (self._source(row), row["pattern"], place)

    def score_text(self, output: str, text: str) -> None:
        for table in text_tables(text):
            places = [place for heading, place in self._headings.items() if table.caption.startswith(heading)]
            if places:
                self._metrics_text(output, table, *places[0])
            elif table.header[0].startswith("K,"):
                self._gains_text(output, table)
            else:
                self._indices(output, table, self._sources["index", table.pattern])

    def _metrics_text(self, output: str, table: PrintedTable, source: str, pattern: str, place: str) -> None:
        for label, *cells in table.rows:
            row = dict(zip(table.header[1:], cells, strict=True))
            seeds = number(row.pop("seeds"))
            for metric, cell in row.items():
                self._mean(output, source, (pattern, place, label.lstrip("†‡ "), metric), cell, seeds)

    def _mean(self, output: str, source: str, name: Name, cell: str, seeds: Number | None) -> None:
        """A cell with a mean, its standard deviation, and the seeds if those of the row are others: 1.2 ± 0.1 (2)."""
        text, _, note = cell.partition(" (")
        mean, _, deviation = text.partition("±")
        self.add(output, (source, "", "metric", *name), number(mean))
        self.add(output, (source, "", "sd", *name), number(deviation))
        if number(mean) and (not note or note[:-1].isdecimal()):
            self.add(output, (source, "", "seeds of metric", *name), number(note) or seeds)

    def _gains_text(self, output: str, table: PrintedTable) -> None:
        for label, *cells in table.rows:
            attention, source = self._label(label, () if "(yours)" in label else ("reference",))
            for ability, cell in zip(table.header[1:], cells, strict=True):
                place = self._abilities.get((table.pattern, ability))
                if place and not SCORED.search(cell):
                    self.add(output, (source, "", "K of K", table.pattern, *place, attention), number(cell))

    def _indices(self, output: str, table: PrintedTable, sources: Iterable[str], tasks: Sequence[str] = ()) -> None:
        """A table with an index per task, and perhaps its interval."""
        for label, *cells in table.rows:
            if "baseline" in label:
                continue
            attention, source = self._label(label, sources if len(set(sources)) == 1 else ())
            row = dict(zip(table.header[1:], cells, strict=True))
            scored = self._scored({}, source)
            self.add(output, (source, "", "seeds of row", table.pattern, attention), number(row["seeds"]))
            for task, cell in row.items():
                if (task in tasks) if tasks else (task not in ("", "seeds", "missing")):
                    place = table.pattern, task, attention
                    index, _, interval = cell.partition("[")
                    self.add(output, (*scored, "index", *place), number(index))
                    for quantity, value in zip(("low", "high"), numbers(interval), strict=False):
                        self.add(output, (*scored, quantity, *place), value)

    def table3_csv(self, output: str, text: str) -> None:
        for row in csv_rows(text):
            is_index = row["metric"] == "index"
            place = row["task"] if is_index else f"{row['task']}/{row['dataset']}/{row['backbone']}"
            columns = self._columns.setdefault(row["pattern"], [])
            if (place, row["metric"]) not in columns:
                columns.append((place, row["metric"]))
            for column in ("own", "published", "recomputed"):
                if column in row:
                    source = self._own if column == "own" else column
                    self._table3(output, row, source, place, of_csv(row[column]))
            source = self._own
            name = self._name(row["pattern"], place, row["attention"], row["metric"])
            scored = self._scored(row, source) if is_index else (source, "")
            self.add(output, (*scored, f"seeds of {'index' if is_index else 'metric'}", *name), of_csv(row["seeds"]))
            if not is_index:
                self.add(output, (source, "", "sd", *name), of_csv(row["sd"]))

    def _table3(self, output: str, row: Row, source: str, place: str, value: Number | None) -> None:
        is_index = row["metric"] == "index"
        scored = self._scored({"normalization": row.get("normalization", "")}, source) if is_index else (source, "")
        name = self._name(row["pattern"], place, row["attention"], row["metric"])
        self.add(output, (*scored, "index" if is_index else "metric", *name), value)

    @staticmethod
    def _name(pattern: str, place: str, attention: str, metric: str) -> Name:
        return (pattern, place, attention) if metric == "index" else (pattern, place, attention, metric)

    def table3(self, output: str, tables: Iterable[PrintedTable]) -> None:
        """Table 3 as text or LaTeX; its columns are the places of the CSV, and the index."""
        for table in tables:
            places = [p for p in self._columns[table.pattern] if p[1] != "index" or p[0] == "all"]
            last = [label.rpartition(" ")[2] for label in table.header]
            columns = [i for i, name in enumerate(last) if name in {metric for _, metric in places}]
            assert [last[i] for i in columns] == [metric for _, metric in places]
            kinds = ("sd", "published", "recomputed", "difference")
            others = [next((kind for kind in kinds if row[0].startswith(kind)), "") for row in table.rows]
            first = "own" if any(others) else "published"  # without own values, the published ones alone
            attention = ""
            for (label, *cells), other in zip(table.rows, others, strict=True):
                kind = other or first
                attention = attention if other else label.lstrip("†‡ ").partition(" (")[0]
                source = self._own if kind in ("own", "sd") else kind
                for (place, metric), i in zip(places, columns, strict=True):
                    row = {"pattern": table.pattern, "attention": attention, "metric": metric}
                    if kind in ("own", "published", "recomputed"):
                        self._table3(output, row, source, place, number(cells[i - 1]))
                    elif kind == "sd" and metric != "index":
                        name = self._name(table.pattern, place, attention, metric)
                        self.add(output, (source, "", "sd", *name), number(cells[i - 1]))

    def table6_csv(self, output: str, text: str) -> None:
        for row in csv_rows(text):
            place = row["pattern"], row["task"], row["attention"]
            for column in ("own", "published", "recomputed"):
                if column in row:
                    source = self._own if column == "own" else column
                    self.add(output, (*self._scored(row, source), "index", *place), of_csv(row[column]))
            scored = self._scored(row, self._own)
            self.add(output, (*scored, "seeds of index", *place), of_csv(row.get("runs") or row.get("seeds") or ""))

    def figure_csv(self, output: str, text: str) -> None:
        """Own correlations of patterns, and of tasks of one pattern; the published ones were read off the figures."""
        for row in csv_rows(text):
            (first, a), (second, b) = ((name.split() * 2)[:2] for name in (row["a"], row["b"]))
            kind = "benchmark" if "LRA" in (row["a"], row["b"]) else "pattern" if a == first else "task"
            if kind != "task" or first == second:
                place = {"kind": kind, "pattern": first if kind == "task" else "", "a": a, "b": b}
                self._correlation(output, place, self._scored(row, self._own), of_csv(row["own"]))

    def correlation_csv(self, output: str, text: str) -> None:
        for row in csv_rows(text):
            scored = (self._source(row), "") if row["kind"] == "cell" else self._scored(row)
            self._correlation(output, row, scored, of_csv(row["pearson"]))

    def _correlation(self, output: str, row: Row, scored: Name, value: Number | None) -> None:
        self.add(output, (*scored, "correlation", row["kind"], row["pattern"], *sorted((row["a"], row["b"]))), value)

    def leaderboard_csv(self, output: str, text: str) -> None:
        rows = csv_rows(text)
        for row in rows:
            source, scored = self._source(row), self._scored(row)
            self.add(output, (source, "", "seeds of row", row["pattern"], row["attention"]), of_csv(row["seeds"]))
            for column, cell in row.items():
                place, _, quantity = column.rpartition(".") if "." in column else ("all", "", column)
                if quantity in ("index", "low", "high"):
                    name = row["pattern"], place, row["attention"]
                    self.add(output, (*scored, quantity, *name), of_csv(cell))
                elif place.count("/") > 1:
                    self._board_metric(output, source, row, column, cell)

    def _board_metric(self, output: str, source: str, row: Row, column: str, cell: str) -> None:
        folder, _, last = column.rpartition("/")
        backbone, metric, *rest = last.split(".")
        if metric not in ("params", "train_seconds", "peak_memory_bytes"):
            quantity = {"": "metric", "sd": "sd", "seeds": "seeds of metric"}["".join(rest)]
            name = row["pattern"], f"{folder}/{backbone}", row["attention"], metric
            if quantity != "sd" or cell:
                self.add(output, (source, "", quantity, *name), of_csv(cell))

    def suite_csv(self, output: str, text: str) -> None:
        for row in csv_rows(text):
            source = "own" if row["own"] == "yes" else "reference"
            for column, cell in row.items():
                pattern, ability, quantity = [*column.split("."), "", ""][:3]
                place = self._abilities.get((pattern, ability.replace("_", " ")))
                if place and quantity in ("K", "low", "high", "bound", "seeds", *REACHED):
                    quantity = "reached 90" if quantity in REACHED else f"{quantity} of K"
                    self.add(output, (source, "", quantity, pattern, *place, row["attention"]), of_csv(cell))

    def page(self, output: str, page: str, board: str) -> None:
        """The tables of the page; ``board`` is its leaderboard.csv, which has the places of metrics."""
        rows = csv_rows(board)
        for name, table in html_tables(page).items():
            kind = "published" if name.startswith("published") else "recomputed" if "recomputed" in name else ""
            sources = [kind or self.default]
            if PATTERN_TABLE.search(name):
                of_table = [row for row in rows if row["pattern"] == table.pattern and self._source(row) == sources[0]]
                tasks = ["all", *(column[:-6] for column in (rows[0] if rows else ()) if column.endswith(".index"))]
                self._indices(output, table, sources, tasks)
                self._page_metrics(output, table, sources[0], of_table)
            elif name.endswith(("-tasks", "-correlation")):
                is_printed = sources[0] == "published"
                scored = ("recomputed", "printed") if is_printed else self._scored({}, sources[0])
                for pair, pearson, *_ in table.rows:
                    a, _, b = pair.partition(" and ")
                    of = {"kind": "task", "pattern": table.pattern} if name.endswith("-tasks") else {"pattern": ""}
                    of = {"kind": "benchmark" if "LRA" in (a, b) else "pattern"} | of
                    self._correlation(output, {**of, "a": a, "b": b}, scored, number(pearson))
            elif name.startswith("cell-"):
                self._page_cell(output, table)

    def _page_metrics(self, output: str, table: PrintedTable, source: str, rows: Sequence[Row]) -> None:
        filled = {column for row in rows for column, cell in row.items() if cell and column.count("/") > 1}
        for label, *cells in table.rows:
            row = dict(zip(table.header[1:], cells, strict=True))
            for column, cell in row.items():
                prefix, _, metric = re.sub(r" \([^)]*\)$", "", column).rpartition(": ")
                ends = f"{prefix.replace(' / ', '/')}.{metric}"
                places = [name for name in filled if name.endswith(ends) and (not prefix or name == ends)]
                if len(places) == 1 and "baseline" not in label:
                    place = places[0].removesuffix(f".{metric}")
                    name = table.pattern, place, self._label(label)[0], metric
                    self._mean(output, source, name, cell, number(row["seeds"]))

    def _page_cell(self, output: str, table: PrintedTable) -> None:
        place = next((p for p in self._abilities.values() if table.caption.split()[1:3] == list(p)), None)
        for label, *cells in table.rows:
            attention, _ = self._label(label)
            sources = self._sources["K", attention]
            if not place or len(sources) != 1:
                continue
            name = (table.pattern, *place, attention)
            row = dict(zip(table.header[1:], cells, strict=True))
            scored = *sources, ""
            reached = next(cell for column, cell in row.items() if column.replace(" ", "_") in REACHED)
            self.add(output, (*scored, "reached 90", *name), number(reached))
            self.add(output, (*scored, "seeds of K", *name), number(row["seeds"]))
            if not SCORED.search(row["K"]):
                self.add(output, (*scored, "K of K", *name), number(row["K"]))
            for quantity, value in zip(("low", "high"), numbers(row["95% interval"]), strict=False):
                self.add(output, (*scored, f"{quantity} of K", *name), value)


def printed_numbers(sources: Sequence[str | Path], out: Path, default: str) -> PrintedNumbers:
    """Run every command that prints numbers of results; ``default`` is the source of rows that name none."""
    book = PrintedNumbers(default)
    folders = list(map(str, sources))

    def text(*arguments: str) -> str:
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            if main([*arguments, *folders] if arguments[0] != "paper" else [*arguments[:2], *folders, *arguments[2:]]):
                book.refused[" ".join(arguments)] = errors.getvalue()
        return printed.getvalue()

    for part, read in (("index", book.index_csv), ("K", book.gain_csv), ("metrics", book.metrics_csv)):
        read(f"score {part}", text("score", "--score", part, "--csv"))
    book.score_text("score text", text("score"))
    book.correlation_csv("correlation", text("correlation", "--csv"))
    book.table3_csv("table3", text("paper", "table3", "--format", "csv"))
    book.table3("table3 text", text_tables(text("paper", "table3")))
    book.table3("table3 LaTeX", latex_tables(text("paper", "table3", "--format", "latex")))
    book.table6_csv("table6", text("paper", "table6", "--format", "csv"))
    for figure in ("figure3a", "figure4"):
        book.figure_csv(figure, text("paper", figure, "--format", "csv"))
    text("leaderboard", "--out", str(out))
    files = {path.name: path.read_text() for path in out.iterdir()} if out.is_dir() else {}
    book.leaderboard_csv("leaderboard.csv", files.get("leaderboard.csv", ""))
    book.suite_csv("suite.csv", files.get("suite.csv", ""))
    book.page("page", files.get("index.html", ""), files.get("leaderboard.csv", ""))
    return book
