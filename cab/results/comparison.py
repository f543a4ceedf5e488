"""The published tables and figures with own values: one function joins them, and one makes the table for a reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cab.errors import UserError
from cab.files.disk import listed
from cab.files.numbers import is_finite
from cab.files.text_table import ABSENT, counted, csv_rows, header_of, parse_number
from cab.records.verified import UNVERIFIED_MARK, mark_unverified
from cab.registry.names import is_generated
from cab.results import formats, paper_values
from cab.results.formats import Fields, TableCell, plain
from cab.results.guards import REHEARSAL_NOTE
from cab.results.load import FRAME_COLUMNS, GENERATED, OWN, REHEARSAL
from cab.results.paper_values import TaxonomyRow, tasks_of, taxonomy
from cab.results.published import (
    READS_COSTS,
    READS_NORMS,
    READS_RESULTS,
    PaperTable,
    PublishedCell,
    published_cells,
    published_values,
)
from cab.results.summarize import metrics_table
from cab.results.table import Column, Row, Table
from cab.results.table3 import side_by_side, tables

OWN_COLUMNS = (
    *("own", "sd", "runs", "published", "difference", "normalization", "agrees"),
    *("verified", "missing", "settings", "data"),
)
"""Columns of every table after its keys; a table has those that apply."""
NO_RESULTS = pd.DataFrame(columns=list(FRAME_COLUMNS))
OWN_SOURCES: Mapping[str, Callable[..., pd.DataFrame]] = {
    "table3": side_by_side,
    "indices": paper_values.indices,
    "scales": paper_values.scales,
    "benefit": paper_values.benefit,
    "correlations": paper_values.correlations,
    "records": paper_values.records,
    "costs": paper_values.costs,
    "lengths": paper_values.lengths,
    "gradients": paper_values.gradients,
    "settings": paper_values.settings,
    "parameters": paper_values.parameters,
    "taxonomy": lambda: pd.DataFrame(taxonomy(), columns=TaxonomyRow._fields),
    "differences": lambda: pd.DataFrame(published_cells(), columns=PublishedCell._fields),
}
"""Functions that add own values to the published ones of a table; those of tables without keys make the whole table."""


def compared(table: PaperTable, results: pd.DataFrame = NO_RESULTS, files: Sequence[Path] = ()) -> pd.DataFrame:
    """Return the published values of a table and the own ones.

    Args:
        table: one of :func:`cab.results.published.paper_tables`.
        results: table of :func:`cab.load_results`, whose own results have a single preset, for a table that reads
            results.
        files: for a table that reads costs or norms.

    Returns:
        One row per value, with the keys of the table and those of :data:`OWN_COLUMNS` that apply. ``own`` and ``sd``
        are mean and standard deviation over ``runs``, NaN without any. ``difference`` is own - published,
        ``normalization`` is that of own indices, and ``agrees`` compares values that do not vary. ``missing`` names the
        runs without a score, or why there is no index; ``settings`` are those of own runs that are not the published
        ones. The complexity claims and the cells of Table 3 have columns of their own.
    """
    given: Mapping[str, tuple[Any, ...]] = {READS_RESULTS: (results,), READS_COSTS: (files,), READS_NORMS: (files,)}
    if not table.keys:
        return OWN_SOURCES[table.source](*given.get(table.reads, ()))
    published = published_values(table)
    arguments = (table, published, *given[table.reads]) if table.reads else (published,)
    frame = OWN_SOURCES[table.source](*arguments)
    if table.reads and "difference" not in frame:
        frame["own"] = pd.to_numeric(frame["own"])
        frame["difference"] = frame["own"] - pd.to_numeric(frame["published"])
        if "data" in frame:
            frame["difference"] = frame["difference"].where(frame["data"] != REHEARSAL)
    keys = [name for name in frame.columns if name not in OWN_COLUMNS]
    return frame[[*keys, *(name for name in OWN_COLUMNS if name in frame)]]


def apart(table: PaperTable, results: pd.DataFrame, stored: pd.DataFrame) -> tuple[list[Table], list[str]]:
    """Return the own means that no table joins with published values: those on generated data outside a rehearsal.

    Args:
        results: table of :func:`cab.load_results`.
        stored: means of :func:`stored_means`.

    Returns:
        For Long Range Arena, which has one network per task, a table per preset, whose caption names the data and the
        seeds; for other tables none. A note per preset says that the means are not comparable.
    """
    tasks = tasks_of(table)
    is_apart = (results["source"] == OWN) & (results["data"] == GENERATED) & results["task"].isin(tasks)
    both = [*([metrics_table(results[is_apart])] if is_apart.any() else []), *([stored] if len(stored) else [])]
    if not both:
        return [], []
    made, notes = [], []
    means = pd.concat(both)
    for preset, rows in means[means["seeds"] > 0].groupby("preset", sort=False):
        few, most = int(rows["seeds"].min()), int(rows["seeds"].max())
        seeds = counted(most, "seed") if few == most else f"{few} to {counted(most, 'seed')}"
        caption = f"Own means of preset {preset} on generated data, {seeds}: not comparable with the published values"
        if tasks != {"lra"}:
            notes.append(f"{caption}; `cab score --score metrics` prints them")
            continue
        columns = [
            *(Column(name, formats.texts(rows[name])) for name in ("task", "dataset", "metric")),
            Column("own", list(map(formats.mean, rows["mean"], rows["sd"]))),
            Column("seeds", formats.numbers(rows["seeds"], 0)),
        ]
        made.append(Table([*map(Row, rows["attention"])], columns, caption=caption))
    return made, notes


def stored_means(table: PaperTable, folders: Sequence[Path]) -> pd.DataFrame:
    """Return the means on generated data in files ``lra.csv`` of `cab leaderboard`, for a table of Long Range Arena."""
    names = {"accuracy": "mean", "deviation": "sd", "seeds": "seeds"}
    columns = ["preset", "dataset", "kind", "name", *names]
    found: list[dict[str, Any]] = []
    for folder in folders if table.reads == READS_RESULTS and tasks_of(table) == {"lra"} else ():
        file = folder / "lra.csv"
        if not file.is_file() or not set(columns) <= set(header_of(file)):  # as that of the paper
            continue
        for line, row in csv_rows(file):
            numbers = {name: parse_number(row[column]) for column, name in names.items()}
            if wrong := [column for column, name in names.items() if row[column] and numbers[name] is None]:
                raise UserError(f"{file}, line {line}: '{row[wrong[0]]}' in column '{wrong[0]}' is not a number")
            if row["kind"] == "attention" and is_generated(row["dataset"]):
                found.append({**row, **numbers, "folder": str(folder.resolve())})
    means = pd.DataFrame(found, columns=["folder", *columns[:4], *names.values()]).rename(columns={"name": "attention"})
    means = means.astype(dict.fromkeys(names.values(), float))
    return means.assign(task="lra", metric="accuracy", pattern="NS")


def shown(table: PaperTable, frame: pd.DataFrame, *, is_joined: bool = True) -> Table:
    """Return the table of :func:`compared` for a reader, without empty columns.

    If own values were given (``is_joined``), notes name what is missing.
    """
    first, *keys = [name for name in frame.columns if name not in OWN_COLUMNS]
    rows = frame.to_dict("records")
    columns = [Column(name, formats.texts(frame[name])) for name in keys]
    for name in ("own", "runs", "published", "difference", "agrees"):
        if name in frame:
            columns.append(Column(name, [_cell(row, name) for row in rows]))
    columns = [column for column in columns if any(cell.text != ABSENT for cell in column.cells)]
    stamps = [f"{REHEARSAL} on generated data"] if (_of_own(frame, "data") == REHEARSAL).any() else []
    stamps += [f"normalization {name}" for name in _of_own(frame, "normalization").unique()]
    caption = "; own values: ".join(filter(None, (table.title, ", ".join(stamps))))
    labels = [Row(str(row[first])) for row in rows]
    return Table(labels, columns, first, caption=caption, remarks=list(_notes(frame, rows)) if is_joined else [])


def _of_own(frame: pd.DataFrame, name: str) -> pd.Series:
    """Return the values of a column in the rows with an own value; empty without the column."""
    return frame.loc[frame["own"].notna(), name] if name in frame else pd.Series(dtype=object)


def _cell(row: Fields, name: str) -> TableCell:
    """Return an own value with the digits of the published one, and at least three."""
    value = row[name]
    if isinstance(value, str):
        return TableCell(value or ABSENT, parse_number(value))
    if not is_finite(value):
        return formats.number(value)
    if name == "runs":
        return formats.number(value or None, 0)
    printed = str(row["published"]).partition(".")[2]
    decimals = max(len(printed) + ("agrees" in row), formats.decimals_for([row["own"]]) - 1)
    if name == "difference":
        return TableCell(f"{round(value, decimals) + 0.0:+,.{decimals}f}", value)
    spread = row.get("sd", math.nan) if name == "own" else math.nan
    text = plain(value, decimals) + ("" if math.isnan(spread) else f" ± {plain(spread, decimals)}")
    is_unverified = row.get("verified") == "no"
    return TableCell(mark_unverified(text, row.get("verified", "")), value, signs=UNVERIFIED_MARK * is_unverified)


def _notes(frame: pd.DataFrame, rows: list[dict[Any, Any]]) -> Iterator[str]:
    """Yield notes on generated data, missing own values, and settings that are not the published ones."""
    if "data" in frame and (frame["data"] == REHEARSAL).any():
        yield REHEARSAL_NOTE
    has_own = [not (value != value or value == "") for value in frame["own"]]
    missing = sum(bool(row["published"]) and not own for row, own in zip(rows, has_own, strict=True))
    if missing:
        yield f"{counted(missing, 'published value')} without an own one"
    incomplete: dict[str, list[str]] = {}
    for row in (row for row in rows if row.get("missing")):
        incomplete.setdefault(row["missing"], []).append(" ".join(row[name] for name in row if name not in OWN_COLUMNS))
    for text, names in incomplete.items():
        yield f"{text}: {listed(names, shown=6)}"
    for text in dict.fromkeys(row.get("settings", "") for row in rows):
        if text:
            yield f"settings of own runs that differ from preset paper: {text}"


def formatted(
    table: PaperTable, frame: pd.DataFrame, aside: Sequence[Table], form: str, *, is_joined: bool
) -> tuple[str, list[str]]:
    """Return a table and those of :func:`apart` as ``text``, ``markdown`` or ``latex``, and notes that text lacks."""
    if table.source == "table3":
        made = list(tables(frame, narrow=form == "text"))
    elif table.keys:
        made = [shown(table, frame, is_joined=is_joined)]
    else:
        made = [Table.of(frame, caption=table.title)]
    made += aside
    if form == "text":
        return "\n\n".join(each.to_text() for each in made), [note for each in made for note in each.notes]
    return "\n\n".join(each.to_latex() if form == "latex" else each.to_markdown() for each in made), []
