"""The published tables and figures, as results/paper/tables.csv defines them, their cells, and their data sets.

``on_published_sets`` is the only mapping from the data sets of results to those of the published tables: ``ett`` of
Table 3 is the mean over ``etth1`` in variants M and S and four others, and in a rehearsal generated data replace each
part. The known differences of the setup are listed in results/paper/differences.csv, where an empty key applies to all
values, and explained in ``docs/paper/discrepancies.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from cab.files.text_table import read_csv
from cab.records.files import PAPER_DIR
from cab.records.record import CELL, COMPARISON_KEY
from cab.registry.names import SYNTHETIC
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import tuned_options
from cab.results.load import GENERATED, INDEX

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED_TERM = ["pattern", "task", "backbone", "dataset", "metric"]
"""Key of a column of Table 3."""
VALUE = [*PUBLISHED_TERM, "attention"]
DIRECTIONS = ("better", "worse", "either")
"""Effects on a score that a difference in results/paper/differences.csv can have."""
READS_RESULTS, READS_COSTS, READS_NORMS = "results", "costs", "norms"
"""What a user names for the own values: results, a file of `cab efficiency`, or files of `cab paper gradients`."""
READS = {
    **dict.fromkeys(("table3", "indices", "scales", "benefit", "correlations", "records"), READS_RESULTS),
    **dict.fromkeys(("lengths", "costs"), READS_COSTS),
    "gradients": READS_NORMS,
}
"""What each source of own values reads; the others need nothing."""


@functools.cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a file in results/paper, as printed."""
    return tuple(read_csv(PAPER_DIR / name))


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperTable:
    """A published table or figure; one row of results/paper/tables.csv, where several words are separated by spaces.

    Attributes:
        file: files with the published values, relative to results/paper.
        where: values that select rows of the files, with ``_`` for a space.
        keys: columns of the files that identify a value; empty for a table with its own columns.
        values: columns with published values; ``COLUMN:NAME`` renames one. The names of several are the key
            ``quantity``.
        source: name in :data:`cab.results.comparison.OWN_SOURCES`.
        select: what the source needs; for records, the values of columns of results or dotted settings of a run, in
            which ``{KEY}`` is the value of a key. A setting with an empty value may have any.
        scale: factor of own values, by default 1.
    """

    name: str
    title: str
    file: str
    where: str
    keys: str
    values: str
    source: str
    select: str
    scale: str

    @property
    def reads(self) -> str:
        """The kind of files that a user names for the own values; empty for none."""
        return READS.get(self.source, "")


@functools.cache
def paper_tables() -> dict[str, PaperTable]:
    """Return the tables by name."""
    names = [field.name for field in fields(PaperTable)]
    return {row["name"]: PaperTable(**{name: row[name] for name in names}) for row in rows("tables.csv")}


def published_values(table: PaperTable) -> pd.DataFrame:
    """Return the keys of a table and the column ``published``, as printed; empty if the paper has no value."""
    import pandas as pd

    where = [pair.replace("_", " ").split("=") for pair in table.where.split()]
    found = [row for file in table.file.split() for row in rows(file)]
    found = [row for row in found if all(row[name] == value for name, value in where)]
    columns = dict(value.partition(":")[::2] for value in table.values.split())
    keys = table.keys.split()
    values = [
        [*(row[key] for key in keys), name or column, row[column]] for row in found for column, name in columns.items()
    ]
    frame = pd.DataFrame(values, columns=[*keys, "quantity", "published"])
    return frame if len(columns) > 1 else frame.drop(columns="quantity")


# --- cells of Table 3 -------------------------------------------------------------------------------------------------


class Table3Value(NamedTuple):
    """A cell of Table 3: the results of one attention on one published data set."""

    pattern: str
    task: str
    backbone: str
    dataset: str
    attention: str

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Table3Value:
        """Return the cell of a row with these columns, of others as well."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The data sets and variants that the published value averages, such as ``etth1`` in ``M`` and ``S``."""
        of_set = [row for row in rows("parts.csv") if (row["task"], row["dataset"]) == (self.task, self.dataset)]
        return [(row["part"], row["config_variant"]) for row in of_set] or [(self.dataset, "")]


@functools.cache
def table3() -> tuple[Table3Value, ...]:
    """Return the cells of Table 3 in its order: the list from which suite, plan and side-by-side table are made."""
    return tuple(dict.fromkeys(map(Table3Value.of, rows("results.csv"))))


@functools.cache
def terms3() -> tuple[tuple[str, ...], ...]:
    """Return the columns of Table 3, each with the fields :data:`PUBLISHED_TERM`, in its order."""
    return tuple(dict.fromkeys(tuple([row[name] for name in PUBLISHED_TERM]) for row in rows("results.csv")))


@functools.cache
def better3() -> dict[tuple[str, str], bool]:
    """Return for each task and metric of Table 3 whether higher is better."""
    return {(row["task"], row["metric"]): row["higher_is_better"] == "1" for row in rows("results.csv")}


@functools.cache
def tasks3() -> frozenset[tuple[str, str]]:
    """Return each pattern and task of Table 3."""
    return frozenset((pattern, task) for pattern, task, *_ in terms3())


class PublishedCell(NamedTuple):
    """A cell of Table 3: its options that differ from the constructor's defaults, and known differences of the setup.

    ``direction`` is the expected effect of the differences on the score.
    """

    pattern: str
    task: str
    backbone: str
    dataset: str
    attention: str
    printed: str
    options: str
    differs: str
    direction: str


def published_cells() -> Iterator[PublishedCell]:
    """Yield the cells in the order of Table 3, under preset `paper`."""
    printed = {Table3Value.of(row) for row in rows("results.csv") if row["value"]}
    for published in table3():
        pattern, task, backbone, dataset, attention = published
        cell = {"task": task, "pattern": pattern, "backbone": backbone, "attention": attention}
        differs = [
            row for row in rows("differences.csv") if all(row[key] in ("", value) for key, value in cell.items())
        ]
        directions = [name for name in DIRECTIONS[:2] if name in {row["direction"] for row in differs}]
        yield PublishedCell(
            *(pattern, task, backbone, dataset, attention, "yes" if published in printed else "no"),
            options=_options(task, backbone, pattern, attention),
            differs="; ".join(row["what"] for row in differs),
            direction=" or ".join(directions) or "either",
        )


def _options(task: str, backbone: str, pattern: str, attention: str) -> str:
    entry = ATTENTIONS.get(attention)
    if pattern not in entry.patterns:
        return "not supported"
    tuned = tuned_options(task, backbone, pattern, attention)
    return " ".join(f"{name}={value}" for name, value in tuned.items() if value != entry.options[name])


# --- data sets of Table 3 ---------------------------------------------------------------------------------------------

PART = ["task", "dataset", "config_variant"]


@functools.cache
def parts_of_sets() -> pd.DataFrame:
    """Return the parts of each published data set.

    Returns:
        Columns task, dataset and config_variant of a part, published_set, and num_parts, the number of parts that make
        the set. Generated data of a rehearsal and published values of a whole set are parts as well.
    """
    import pandas as pd

    found: dict[tuple[str, ...], None] = {}
    for cell in table3():
        for dataset, variant in cell.parts:
            found |= dict.fromkeys(
                (cell.task, *part, cell.dataset)
                for part in ((dataset, variant, "part"), (SYNTHETIC, variant, SYNTHETIC), (cell.dataset, "", "whole"))
            )
    frame = pd.DataFrame(list(found), columns=[*PART, "kind", "published_set"])
    frame["num_parts"] = frame.groupby(["task", "published_set", "kind"])["dataset"].transform("size")
    return frame.drop_duplicates([*PART, "published_set"]).drop(columns="kind")


def on_published_sets(frame: pd.DataFrame, *, partial: bool = False) -> pd.DataFrame:
    """Return results as those of the published data sets: the mean over their parts, for each seed with all of them.

    The columns are those of the frame; ``config_variant`` is empty. A value is NaN, and its status that of the part,
    if a part has no score. If ``partial``, a set consists of the parts that any attention has in the place. Results on
    generated data are left out, except in a rehearsal.
    """
    key = [name for name in CELL if name not in PART[1:]] + ["source", "published_set", "metric"]
    rows = frame[frame["data"] != GENERATED].merge(parts_of_sets(), on=PART)
    if rows.empty:
        return frame[:0]
    if partial:
        parts = rows["dataset"] + "/" + rows["config_variant"]
        rows["num_parts"] = parts.groupby([rows[name] for name in (*PUBLISHED_TERM[:3], "published_set")]).transform(
            "nunique"
        )
    rows = rows.assign(_failed=rows["value"].isna()).sort_values("_failed", ascending=False, kind="stable")
    groups = rows.groupby(key, sort=False, dropna=False)
    others = [name for name in frame.columns if name not in (*key, "value", *PART[1:])]
    means = groups[others].first().assign(value=groups["value"].mean(), _size=groups.size())
    means["value"] = means["value"].where(~groups["_failed"].any())
    is_whole = means["_size"] == groups["num_parts"].first()
    means = means[is_whole].reset_index().rename(columns={"published_set": "dataset"})
    return means.assign(config_variant="")[list(frame.columns)]


def with_composites(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the rows that can be compared with a published mean over several data sets or variants, such as ``ett``.

    A row has the name of the published data set, an empty ``config_variant``, and the mean over the parts that
    ``results/paper/parts.csv`` lists, for each cell and seed that has all of them. In a rehearsal, generated data
    replace the parts.

    Args:
        frame: table of :func:`cab.load_results`.
    """
    import pandas as pd

    composites = on_published_sets(frame[frame["metric"] != INDEX])
    keys = [pd.MultiIndex.from_frame(each[[*COMPARISON_KEY]]) for each in (composites, frame)]
    composites = composites[~keys[0].isin(keys[1])].assign(hash="", file="")
    return pd.concat([frame, composites], ignore_index=True) if len(composites) else frame
