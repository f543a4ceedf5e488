"""The table of results: columns of cells, shown as text, Markdown, HTML, LaTeX or CSV.

A cell has the same text in every form, and each kind of number is formatted by one function. Five signs mark scores.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.disk import replacing, sanitize_csv_cell, sanitize_table, sanitize_text
from cab.files.text_table import ABSENT, text_table
from cab.records.results import VERDICTS
from cab.records.verified import LEGEND as UNVERIFIED_LEGEND, UNVERIFIED_MARK, mark_unverified
from cab.registry.registries import ATTENTIONS
from cab.results.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK, Verdict

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup

WORSE, UNDECIDED, LEARNING = "▼", "?", "≥"
LEGEND = {
    WORSE: f"{WORSE} worse than softmax attention: the bound is below 98",
    UNDECIDED: f"{UNDECIDED} undecided",
    ONE_SEED_MARK: ONE_SEED_LEGEND,
    LEARNING: f"{LEARNING} still learning when the budget ended",
    UNVERIFIED_MARK: UNVERIFIED_LEGEND,
}
"""The five signs, with their only explanation."""
VERDICT_SIGNS = {Verdict.WORSE: WORSE, Verdict.UNDECIDED: UNDECIDED, Verdict.ONE_SEED: ONE_SEED_MARK}
TINTS = {
    **{Verdict.WORSE: "worse", Verdict.ONE_SEED: "single"},
    **dict.fromkeys((Verdict.SOLVED, Verdict.EQUIVALENT, Verdict.BETTER), "match"),
}
"""Style of each verdict on the page."""
Fields = Mapping[Any, Any]
"""A row of a data frame."""
NEVER = 1e18
"""Sort key of infinity."""
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {char: f"\\{char}" for char in "&%$#_{}"}
LATEX |= {WORSE: r"$\bigtriangledown$", UNVERIFIED_MARK: r"\dag{}", "≥": r"$\geq$", "≤": r"$\leq$", "±": r"$\pm$"}
LATEX |= {"∞": r"$\infty$", "²": "$^2$", "<": r"\textless{}", ">": r"\textgreater{}"}


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        value: sort key; None for a text or a missing value, which is sorted last.
        reason: why the value is missing.
        signs: those of :data:`LEGEND` in the text.
        style: tint of the page, and ``best`` for bold text; words separated by spaces.
    """

    text: str = ABSENT
    value: float | None = None
    reason: str = ""
    signs: str = ""
    style: str = ""

    @property
    def plain(self) -> str | float:
        """The value in full, or else the text; empty if it is missing."""
        return self.value if self.value is not None else "" if self.text == ABSENT else self.text


@dataclass
class Column:
    """A column: its header and cells.

    Attributes:
        better: ``higher`` or ``lower`` if one direction is better.
        group: header over consecutive columns of the same group.
        pattern: pattern that the column belongs to, if a reader can choose one.
        is_minor: whether the page shows the column only on request.
        marks_best: whether the best of at least two values is bold.
    """

    label: str
    cells: list[Cell]
    better: str = ""
    hint: str = ""
    group: str = ""
    pattern: str = ""
    is_minor: bool = False
    marks_best: bool = False

    @property
    def title(self) -> str:
        """The hint and the better direction."""
        return "; ".join(filter(None, (self.hint, self.better and f"{self.better} is better")))

    @property
    def is_text(self) -> bool:
        """Whether no cell has a value."""
        return all(cell.value is None for cell in self.cells) and any(cell.text != ABSENT for cell in self.cells)


@dataclass
class Row:
    """The label of a row; its group is a heading, and a filter of the page selects rows by their ``tags``.

    Attributes:
        verified: verdict on the code: ``yes``, ``no`` or ``unknown``.
        is_ranked: whether the row is of an attention, whose cells can be bold or tinted if it is verified.
    """

    label: str
    href: str = ""
    group: str = ""
    tags: Sequence[str] = ()
    verified: str = "yes"
    is_ranked: bool = True

    @property
    def text(self) -> str:
        """The label with the sign of an unverified attention."""
        return mark_unverified(self.label, self.verified)


@dataclass
class Table:
    """A table; ``heading`` is the header of the labels, ``remarks`` follow the table, and ``empty`` replaces it."""

    rows: list[Row]
    columns: list[Column]
    heading: str = "attention"
    caption: str = ""
    id: str = ""
    remarks: Sequence[str] = ()
    empty: str = "none"

    def __post_init__(self) -> None:
        """Mark the best values, and remove bold and tints from rows that are not ranked."""
        for column in self.columns:
            ranked = [row.is_ranked and row.verified == "yes" for row in self.rows]
            values = [c.value for c, counts in zip(column.cells, ranked, strict=True) if counts and c.value is not None]
            if column.marks_best and len(values) > 1:
                best = max(values) if column.better == "higher" else min(values)
                column.cells = [replace(c, style="best" * (c.value == best)) for c in column.cells]
            column.cells = [
                cell if counts else replace(cell, style="") for cell, counts in zip(column.cells, ranked, strict=True)
            ]

    @classmethod
    def of(cls, frame: pd.DataFrame | Mapping[str, Sequence[Any]], **options: Any) -> Table:
        """Return the table of a data frame, or of lists by name; the first column has the labels.

        Texts stay as they are. Numbers of a column have the decimals that show four digits of the largest one.
        """
        (heading, labels), *others = frame.items()
        columns = [Column(str(name), _cells(list(values))) for name, values in others]
        return cls([Row(sanitize_text(label)) for label in labels], columns, str(heading), **options)

    @classmethod
    def wide(
        cls, frame: pd.DataFrame, column: str, cell: Callable[[Fields], Cell], *, seeds: str = "min", **options: Any
    ) -> Table:
        """Return a table with one row per value of ``label``, and one column per value of ``column``.

        Rows, columns and the last column ``seeds`` are as they occur in the frame, whose column ``verified`` marks
        rows. ``cell`` returns the cell of a row of the frame, ``seeds`` is the function over a row's numbers of seeds.
        """
        found = {(row["label"], row[column]): cell(row) for row in frame.to_dict("records")}
        names = frame[column].unique()
        groups = dict(iter(frame.groupby("label", sort=False)))
        rows = [
            Row(sanitize_text(label), verified=min(rows["verified"], key=VERDICTS.index))
            for label, rows in groups.items()
        ]
        columns = [Column(str(name), [found.get((label, name), Cell()) for label in groups]) for name in names]
        columns.append(Column("seeds", numbers((rows["seeds"].agg(seeds) for rows in groups.values()), 0)))
        return cls(rows, columns, **options)

    @property
    def headers(self) -> list[str]:
        """The header of each column, with its group if others have the same label."""
        labels = [column.label for column in self.columns]
        names = [f"{each.group}: {each.label}" if each.group else each.label for each in self.columns]
        return [name if labels.count(label) > 1 else label for name, label in zip(names, labels, strict=True)]

    @property
    def lines(self) -> list[list[str]]:
        """The texts of each row."""
        cells = (column.cells for column in self.columns)
        return [[row.text, *(cell.text for cell in of_row)] for row, *of_row in zip(self.rows, *cells, strict=True)]

    @property
    def notes(self) -> list[str]:
        """The remarks, the meaning of the signs, and the reasons for missing values."""
        reasons = dict.fromkeys(cell.reason for column in self.columns for cell in column.cells if cell.reason)
        return [*self.remarks, *legend([self]), *([f"{ABSENT}: {'; '.join(reasons)}"] if reasons else [])]

    @property
    def bodies(self) -> dict[str, list[int]]:
        """The numbers of the rows of each group, in the order of their first rows."""
        bodies: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            bodies.setdefault(row.group, []).append(number)
        return bodies

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headers over columns with their widths; empty if no column has one."""
        groups: list[tuple[str, int]] = []
        for column in self.columns if any(column.group for column in self.columns) else ():
            width = groups.pop()[1] if groups and groups[-1][0] == column.group else 0
            groups.append((column.group, width + 1))
        return groups

    def to_text(self, width: int | None = None) -> str:
        """Return the table for a terminal, without notes; ``width`` wraps the widest columns."""
        if not self.rows:
            return self.empty
        align = "l" + "".join("l" if column.is_text else "r" for column in self.columns)
        grid = text_table([self.heading, *self.headers], self.lines, align=align, width=width)
        return f"{sanitize_text(self.caption)}\n{grid}" if self.caption else grid

    def to_markdown(self) -> str:
        """Return the table with its caption and notes; a group of rows starts with a row that has its name."""
        if not self.rows:
            return self.empty
        lines = [[*map(markdown, (self.heading, *self.headers))]]
        lines.append(["---", *("---" if column.is_text else "---:" for column in self.columns)])
        for group, numbers in self.bodies.items():
            lines += [[f"_{markdown(group)}_", *[""] * len(self.columns)]] if group else []
            lines += [self._formatted(number, markdown, "**{}**") for number in numbers]
        grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        caption = f"**{markdown(self.caption)}**" if self.caption else ""
        return "\n\n".join(filter(None, [caption, grid, *map(markdown, self.notes)]))

    def to_latex(self) -> str:
        """Return the table for LaTeX with the package booktabs, its notes as comments."""
        lines = [r"\toprule", rf"{' & '.join(map(latex, (self.heading, *self.headers)))} \\"]
        for group, numbers in self.bodies.items():
            lines.append(r"\midrule")
            lines += [rf"\multicolumn{{{len(self.columns) + 1}}}{{l}}{{\emph{{{latex(group)}}}}} \\"] if group else []
            rows = [self._formatted(number, latex, r"\textbf{{{}}}") for number in numbers]
            lines += [rf"{' & '.join(row)} \\" for row in rows]
        align = "l" + "".join("l" if column.is_text else "r" for column in self.columns)
        comments = [f"% {line}" for line in filter(None, (sanitize_text(self.caption), *self.notes))]
        return "\n".join([*comments, rf"\begin{{tabular}}{{{align}}}", *lines, r"\bottomrule", r"\end{tabular}"])

    def _formatted(self, number: int, escape: Any, bold: str) -> list[str]:
        """Return the escaped texts of a row, the best ones bold."""
        texts = [
            bold.format(escape(cell.text)) if "best" in cell.style else escape(cell.text)
            for cell in (column.cells[number] for column in self.columns)
        ]
        return [escape(self.rows[number].text), *texts]

    def to_html(self) -> Markup:
        """Return the table as HTML that ``page.js`` sorts and filters."""
        from markupsafe import Markup

        return Markup(_template().render(t=self))

    def to_csv(self) -> str:
        """Return labels, full values and texts as CSV."""
        file = io.StringIO()
        values = ([cell.plain for cell in column.cells] for column in self.columns)
        rows = [[row.label, *cells] for row, *cells in zip(self.rows, *values, strict=True)]
        lines = [[self.heading, *self.headers], *rows]
        csv.writer(file, lineterminator="\n").writerows(map(sanitize_csv_cell, line) for line in lines)
        return file.getvalue()


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(resources.files("cab.results").joinpath("table.html").read_text(encoding="utf-8"))


# --- cells ------------------------------------------------------------------------------------------------------------


def plain(value: float, decimals: int = 3) -> str:
    """Format a number with thousands separators, without a negative zero."""
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def number(value: float | None, decimals: int = 3, reason: str = "") -> Cell:
    """Return the cell of a number; one that is None or NaN is missing for a reason."""
    if value == math.inf:
        return Cell("∞", NEVER)
    if value is None or not math.isfinite(value):
        return Cell(reason=reason)
    return Cell(plain(value, decimals), float(value))


def numbers(values: Iterable[float | None], decimals: int = 3, reason: str = "") -> list[Cell]:
    """Return the cells of numbers."""
    return [number(value, decimals, reason) for value in values]


def texts(values: Iterable[object]) -> list[Cell]:
    """Return the cells of texts."""
    return [Cell(sanitize_text(value) or ABSENT) for value in values]


def mean(value: float | None, deviation: float | None, reason: str = "", *, note: str = "") -> Cell:
    """Return the cell of a metric: mean ± standard deviation over seeds, which is NaN for a single seed."""
    if value is None or not math.isfinite(value):
        return Cell(reason=reason)
    spread = f" ± {deviation:.2g}" if deviation is not None and math.isfinite(deviation) else ""
    return Cell(f"{value:.5g}{spread}{note}", float(value))


def index(value: float, low: float, high: float, reason: str = "", *, is_single: bool = False) -> Cell:
    """Return the cell of an index with its interval, or with the sign of a single seed."""
    cell = number(value, reason=reason)
    if cell.value is None:
        return cell
    if is_single:
        return replace(cell, text=cell.text + ONE_SEED_MARK, signs=ONE_SEED_MARK)
    return replace(cell, text=f"{cell.text} {interval(low, high)}".rstrip())


def interval(low: float, high: float, decimals: int = 3) -> str:
    """Format an interval; empty if it is undefined."""
    return f"[{plain(low, decimals)}, {plain(high, decimals)}]" if math.isfinite(low + high) else ""


def gain(row: Fields | None) -> Cell:
    """Return the cell of K in a row of :func:`cab.results.gain.gains_frame`, with bound and signs.

    A result at the ceiling shows how many seeds solved the cell, and a bound above 100 is not shown.
    """
    if row is None or not row["seeds"] or row["K"] != row["K"]:
        return Cell(reason=row["note"] if row else "")
    style = TINTS.get(row["verdict"], "") + " best" * bool(row.get("best"))
    if row["verdict"] == Verdict.SOLVED:
        return Cell(f"{row['solved']:.0f} of {row['seeds']:.0f} solved", row["K"], style=style)
    sign, lower = VERDICT_SIGNS.get(row["verdict"], ""), LEARNING if "unfinished" in row["note"] else ""
    bound = f" (≤ {row['bound']:.0f})" if row["bound"] <= 100 else ""
    space = " " * (sign not in ("", ONE_SEED_MARK))
    text = f"{lower}{' ' * bool(lower)}{plain(row['K'], 0)}{bound}{space}{sign}"
    return Cell(text, row["K"], signs=lower + sign, style=style.strip())


def _cells(values: list[Any]) -> list[Cell]:
    if any(isinstance(value, str) or value is None for value in values):
        return texts("" if value is None else value for value in values)
    is_whole = all(float(value).is_integer() and not isinstance(value, float) for value in values)
    return numbers(values, 0 if is_whole else decimals_for(values))


def decimals_for(values: Iterable[float]) -> int:
    """Return the number of decimals that shows four digits of the largest value."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0)
    return min(max(3 - math.floor(math.log10(largest)), 0), 6) if largest else 3


def legend(tables: Iterable[Table]) -> list[str]:
    """Return one note with the meaning of the signs in tables; empty without signs."""
    tables = list(tables)
    signs = {sign for each in tables for column in each.columns for cell in column.cells for sign in cell.signs}
    signs |= {UNVERIFIED_MARK for each in tables for row in each.rows if row.verified == "no"}
    return ["; ".join(text for sign, text in LEGEND.items() if sign in signs)] if signs else []


# --- text -------------------------------------------------------------------------------------------------------------


def markdown(text: str) -> str:
    """Escape the special characters of Markdown outside of code."""
    pieces = re.split(r"(`[^`|]+`)", text)
    pieces[::2] = [re.sub(r"([\\`*_{}\[\]<>#|~&!$])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def latex(text: str) -> str:
    """Escape the special characters of LaTeX, and replace signs by commands."""
    return "".join(LATEX.get(char, char) for char in sanitize_text(text))


def element_id(*names: str) -> str:
    """Return a valid HTML identifier; names that differ only in special characters get different identifiers."""
    name = "-".join(names)
    valid = re.sub(r"[^A-Za-z0-9_-]", "", name)
    return valid if valid == name else f"{valid}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def card_link(name: str) -> str:
    """Return the link to the summary of a registered attention on the leaderboard page, or an empty string."""
    return f"#card-{name}" if name in ATTENTIONS.names() else ""


def write_csv(table: pd.DataFrame, path: Path) -> Path:
    """Write a data frame as CSV without control characters, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        sanitize_table(table).to_csv(temporary, index=False)
    return path
