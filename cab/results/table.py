"""The table of results: rows and columns of cells, shown as text, Markdown, HTML, LaTeX or CSV."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.disk import replacing, sanitize_csv_cell, sanitize_table, sanitize_text
from cab.files.text_table import ABSENT, text_table
from cab.records.verified import UNVERIFIED_MARK, VERIFIED_STATES, mark_unverified
from cab.registry.names import is_stack
from cab.registry.registries import ATTENTIONS
from cab.results import formats
from cab.results.formats import SIGN_LEGEND, Fields, TableCell, latex, markdown

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup

BASELINE = "baseline"
"""Kind of the rows of no attention."""


@dataclass
class Column:
    """A column.

    Attributes:
        better: ``higher`` or ``lower`` if one direction is better.
        group: header above the columns in HTML; elsewhere part of the header if several columns have the same label.
        pattern: pattern that the column belongs to, if a reader can choose one.
        marks_best: whether the best of at least two values is bold.
    """

    label: str
    cells: list[TableCell]
    better: str = ""
    hint: str = ""
    group: str = ""
    pattern: str = ""
    marks_best: bool = False

    @property
    def title(self) -> str:
        """The hint, the group and the better direction."""
        return "; ".join(filter(None, (self.hint, self.group, self.better and f"{self.better} is better")))

    @functools.cached_property
    def is_text(self) -> bool:
        """Whether the column has texts."""
        return all(cell.value is None for cell in self.cells) and any(cell.text != ABSENT for cell in self.cells)


@dataclass
class Row:
    """The label of a row; a filter of the page selects rows by their ``tags``.

    Attributes:
        verified: state of the code: ``yes``, ``no`` or ``unknown``.
        kind: ``own`` for the user's, :data:`BASELINE` or empty.
    """

    label: str
    verified: str = "yes"
    kind: str = ""
    tags: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The label with the sign of an unverified attention."""
        return mark_unverified(self.label, self.verified)

    @property
    def attention(self) -> str:
        """The registered attention of the label, or an empty string."""
        name = self.label.partition("(")[0]
        return name if not is_stack(name) and name in ATTENTIONS else ""


@dataclass
class Table:
    """A table; ``heading`` is the header of the labels, and ``empty`` replaces a table without rows."""

    rows: list[Row]
    columns: list[Column]
    heading: str = "attention"
    caption: str = ""
    id: str = ""
    remarks: Sequence[str] = ()
    empty: str = "none"

    def __post_init__(self) -> None:
        """Mark the best values; cells of baselines and unverified rows are neither bold nor tinted."""
        is_ranked = [row.verified == "yes" and row.kind != BASELINE for row in self.rows]
        for column in self.columns:
            cells = [c if counts else replace(c, style="") for c, counts in zip(column.cells, is_ranked, strict=True)]
            values = [c.value for c, counts in zip(cells, is_ranked, strict=True) if counts and c.value is not None]
            if column.marks_best and len(values) > 1:
                best = max(values) if column.better == "higher" else min(values)
                marks = ("best" * (counts and c.value == best) for c, counts in zip(cells, is_ranked, strict=True))
                cells = [replace(cell, style=mark) for cell, mark in zip(cells, marks, strict=True)]
            column.cells = cells

    @classmethod
    def of(
        cls, frame: pd.DataFrame | Mapping[str, Sequence[Any]], *, decimals: int | None = None, **options: Any
    ) -> Table:
        """Return the table of a data frame, or of lists by name; the first column has the labels.

        Numbers of a column have ``decimals``, or those that show four digits of the largest one.
        """
        (heading, labels), *others = frame.items()
        columns = []
        for name, values in others:
            if any(isinstance(value, str) for value in values):
                columns.append(Column(str(name), formats.texts(values)))
            else:
                shown = formats.decimals_for(values) if decimals is None else decimals
                is_whole = not any(isinstance(value, float) for value in values)
                columns.append(Column(str(name), formats.numbers(values, 0 if is_whole else shown)))
        return cls([Row(sanitize_text(label)) for label in labels], columns, str(heading), **options)

    @classmethod
    def wide(
        cls,
        frame: pd.DataFrame,
        column: str,
        cell: Callable[[Fields], TableCell],
        *,
        seeds: str = "min",
        **options: Any,
    ) -> Table:
        """Return a table with one row per value of ``label``, and one column per value of ``column``.

        Rows, columns and the last column ``seeds`` are as they occur in the frame, whose column ``verified`` marks
        rows. ``cell`` returns the cell of a row of the frame, ``seeds`` is the function over a row's numbers of seeds.
        """
        found = {(row["label"], row[column]): cell(row) for row in frame.to_dict("records")}
        groups = dict(iter(frame.groupby("label", sort=False)))
        states = [min(rows["verified"], key=VERIFIED_STATES.index) for rows in groups.values()]
        rows = [Row(sanitize_text(label), state) for label, state in zip(groups, states, strict=True)]
        names = frame[column].unique()
        columns = [Column(str(name), [found.get((label, name), TableCell()) for label in groups]) for name in names]
        columns.append(Column("seeds", formats.numbers((rows["seeds"].agg(seeds) for rows in groups.values()), 0)))
        return cls(rows, columns, **options)

    @functools.cached_property
    def headers(self) -> list[str]:
        """The header of the labels and of each column, with its group if others have the same label."""
        labels = [column.label for column in self.columns]
        shared = {label for label in labels if labels.count(label) > 1}
        return [
            self.heading,
            *(f"{c.group}: {c.label}" if c.group and c.label in shared else c.label for c in self.columns),
        ]

    @functools.cached_property
    def groups(self) -> list[tuple[str, int]]:
        """Each group with the number of its columns, in their order; empty if no column has a group."""
        spans = [(name, len(list(of))) for name, of in itertools.groupby(column.group for column in self.columns)]
        return spans if any(name for name, _ in spans) else []

    @functools.cached_property
    def lines(self) -> list[tuple[Row, list[TableCell]]]:
        """Each row with its cells."""
        return [(row, [column.cells[number] for column in self.columns]) for number, row in enumerate(self.rows)]

    @property
    def signs(self) -> list[str]:
        """The meaning of the signs."""
        return legend([self])

    @property
    def reasons(self) -> list[str]:
        """The reasons for missing values, each once with what it concerns."""
        reasons: dict[str, dict[str, None]] = {}
        for hint in (cell.hint for _, cells in self.lines for cell in cells if cell.text == ABSENT and cell.hint):
            reason, _, details = hint.partition(": ")
            reasons.setdefault(reason, {}).update({details: None} if details else {})
        texts = [": ".join(filter(None, (reason, ", ".join(details)))) for reason, details in reasons.items()]
        return [f"{ABSENT}: {'; '.join(texts)}"] if texts else []

    @property
    def notes(self) -> list[str]:
        """The remarks, the meaning of the signs, and the reasons for missing values."""
        return [*self.remarks, *self.signs, *self.reasons]

    @property
    def _align(self) -> str:
        return "l" + "".join("l" if column.is_text else "r" for column in self.columns)

    def to_text(self, width: int | None = None) -> str:
        """Return the table for a terminal, without notes; ``width`` wraps the widest columns."""
        if not self.rows:
            return self.empty
        lines = [[row.text, *(cell.text for cell in cells)] for row, cells in self.lines]
        grid = text_table(self.headers, lines, align=self._align, width=width)
        return f"{sanitize_text(self.caption)}\n{grid}" if self.caption else grid

    def to_markdown(self) -> str:
        """Return the table with its caption and notes."""
        if not self.rows:
            return self.empty
        rule = ["---:" if side == "r" else "---" for side in self._align]
        lines = [list(map(markdown, self.headers)), rule, *self._escaped(markdown, "**{}**")]
        caption = f"**{markdown(self.caption)}**" if self.caption else ""
        grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join(filter(None, [caption, grid, *map(markdown, self.notes)]))

    def to_latex(self) -> str:
        """Return the table for LaTeX with the package booktabs, and its notes as comments."""
        head, *rows = (
            rf"{' & '.join(line)} \\" for line in (map(latex, self.headers), *self._escaped(latex, r"\textbf{{{}}}"))
        )
        comments = [f"% {sanitize_text(line)}" for line in filter(None, (self.caption, *self.notes))]
        lines = [rf"\begin{{tabular}}{{{self._align}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*comments, *lines, r"\end{tabular}"])

    def _escaped(self, escape: Callable[[str], str], bold: str) -> list[list[str]]:
        """Return the escaped texts of each row, the best ones bold."""
        return [
            [escape(row.text), *((bold if "best" in cell.style else "{}").format(escape(cell.text)) for cell in cells)]
            for row, cells in self.lines
        ]

    def to_html(self) -> Markup:
        """Return the table with notes as HTML that ``page.js`` sorts and filters."""
        from markupsafe import Markup

        return Markup(_template().render(t=self))

    def to_csv(self) -> str:
        """Return labels, full values and texts as CSV."""
        file = io.StringIO()
        values: Iterable[list[Any]] = (
            [row.label, *(("" if c.text == ABSENT else c.text) if c.value is None else c.value for c in cells)]
            for row, cells in self.lines
        )
        csv.writer(file, lineterminator="\n").writerows(
            map(sanitize_csv_cell, line) for line in (self.headers, *values)
        )
        return file.getvalue()


def legend(tables: Iterable[Table]) -> list[str]:
    """Return one note with the meaning of the signs in tables; empty without signs."""
    lines = [line for each in tables for line in each.lines]
    signs = {sign for _, cells in lines for cell in cells for sign in cell.signs}
    signs |= {UNVERIFIED_MARK for row, _ in lines if row.verified == "no"}
    note = "; ".join(text for sign, text in SIGN_LEGEND.items() if sign in signs)
    return [note] if note else []


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(resources.files("cab.results").joinpath("table.html").read_text(encoding="utf-8"))


def element_id(*names: str) -> str:
    """Return a valid HTML identifier; names that differ only in special characters get different identifiers."""
    name = "-".join(names)
    valid = re.sub(r"[^A-Za-z0-9_-]", "", name)
    return valid if valid == name else f"{valid}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def write_csv(table: pd.DataFrame, path: Path) -> Path:
    """Write a data frame as CSV without control characters, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        sanitize_table(table).to_csv(temporary, index=False)
    return path
