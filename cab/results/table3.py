"""Table 3 with own results alongside the published ones: raw metrics, their difference, and the compositional index."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from cab.files.disk import listed
from cab.records.record import Status
from cab.records.results import PAPER_DIR, PUBLISHED as PUBLISHED_PRESET, verdicts
from cab.registry.names import SYNTHETIC
from cab.results.changed_settings import changed_settings
from cab.results.composites import means_over_parts
from cab.results.formats import Cell, Fields, plain
from cab.results.index import AVERAGE, score
from cab.results.normalization import PUBLISHED_TERM
from cab.results.published_cells import TableCell, table3
from cab.results.selection import (
    REAL,
    REHEARSAL,
    of_one_data,
    of_one_kind,
    refuse_versions,
    rows_in_index,
    without_copies,
)
from cab.results.table import Column, Row, Table

VALUE = [*PUBLISHED_TERM, "attention"]
"""Key of a value: pattern, task, backbone, data set, metric and attention."""
OWN, DEVIATION, PUBLISHED, DIFFERENCE = "own", "sd", "published", "difference"
"""Kinds of rows of an attention."""
INDEX = "index"
"""Metric of the rows with a compositional index; task ``all`` is the average over tasks."""
COLUMNS = [
    *VALUE, "higher_is_better", "data", "own", "sd", "seeds", "published", "difference", "verified", "missing",
    "settings",
]  # fmt: skip
PARTS = {"NS": "a", "CS": "b", "NC": "c", "CC": "d"}
"""Part of Table 3 of each pattern."""


def side_by_side(results: pd.DataFrame) -> pd.DataFrame:
    """Return every value of Table 3, and of other own attentions in its cells: the own and the published one.

    Args:
        results: table of :func:`cab.load_results`, of a single preset; it may be empty. Without results on real
            data, those on generated data replace each data set of their task, and make a rehearsal.

    Returns:
        Columns :data:`COLUMNS` in the order of the table; other own attentions follow. ``own``, ``sd`` and ``seeds``
        are mean, standard deviation (NaN for one seed) and number of the seeds that have all parts of a value.
        ``difference`` is own - published in standard deviations of the metric over the paper's attentions (Tables
        7-10), with the sign changed if lower is better: positive is better. That of an index is own - published. It is
        NaN in a rehearsal. ``verified`` is the worst verdict on the code of the own runs. ``missing`` names parts
        without a score, ``settings`` what differs from the published setting. The index follows the official constants;
        in a rehearsal, the means and deviations of its own results.

    Raises:
        UserError: different results for one cell and seed, or versions of a task.
    """
    refuse_versions(results)
    results = without_copies(of_one_data(of_one_kind(rows_in_index(results))))
    own = on_published_sets(results)
    is_rehearsal = bool((results["dataset"] == SYNTHETIC).any())
    published = _published()
    frame = _own_values(own).merge(published.drop(columns="higher_is_better"), on=VALUE, how="outer")
    directions = published.drop_duplicates("metric").set_index("metric")["higher_is_better"]
    frame["higher_is_better"] = frame["metric"].map(directions)
    scales = pd.read_csv(PAPER_DIR / "normalization.csv").rename(columns={"std_table": "scale"})
    frame = frame.merge(scales[[*PUBLISHED_TERM, "scale"]], on=PUBLISHED_TERM, how="left")
    sign = frame["higher_is_better"].map({True: 1.0, False: -1.0})
    frame["difference"] = sign * (frame["own"] - frame["published"]) / frame["scale"]
    frame = pd.concat([frame, _indices(results, own, is_rehearsal=is_rehearsal)], ignore_index=True)
    settings, found = _settings(results), _found(results)
    cells = [TableCell(*key) for key in frame[[*TableCell._fields]].itertuples(index=False, name=None)]
    checked = verdicts(results[results["preset"] != PUBLISHED_PRESET])
    pairs = frame[["pattern", "attention"]].itertuples(index=False, name=None)
    frame["verified"] = [checked.get(pair, "") for pair in pairs]
    frame["settings"] = [settings.get(cell, "") for cell in cells]
    frame["missing"] = [_missing(cell, found) if cell.task != AVERAGE and cell.dataset else "" for cell in cells]
    frame = frame.assign(data=REHEARSAL if is_rehearsal else REAL, seeds=frame["seeds"].fillna(0).astype(int))
    if is_rehearsal:
        frame["difference"] = math.nan  # of scores on other data
    return _sorted(frame)[COLUMNS]


def on_published_sets(results: pd.DataFrame) -> pd.DataFrame:
    """Return primary results as those of the published data sets: the mean over their parts, for each seed with all.

    Generated data replace each part.
    """
    table = results[results["primary"].astype(bool)].astype({"value": float})
    return means_over_parts(table, _parts())


def _parts() -> pd.DataFrame:
    """Return the parts of each published data set, and generated or published values as such, with their number."""
    rows: dict[tuple[str, str, str, str, str], None] = {}
    for cell in table3():
        for dataset, variant in cell.parts:
            rows |= dict.fromkeys(
                (cell.task, cell.dataset, *part)
                for part in ((dataset, variant, "part"), (SYNTHETIC, variant, SYNTHETIC), (cell.dataset, "", "whole"))
            )
    frame = pd.DataFrame(list(rows), columns=["task", "composite", "dataset", "config_variant", "kind"])
    frame["num_parts"] = frame.groupby(["task", "composite", "kind"])["dataset"].transform("size")
    return frame.drop_duplicates(["task", "composite", "dataset", "config_variant"])


def _own_values(own: pd.DataFrame) -> pd.DataFrame:
    """Return mean, standard deviation and number of seeds of each value."""
    values = own.groupby(VALUE, sort=False)["value"]
    return values.agg(own="mean", sd="std", seeds="count").reset_index()


def _published() -> pd.DataFrame:
    table = pd.read_csv(PAPER_DIR / "results.csv").rename(columns={"value": "published"})
    return table.astype({"higher_is_better": bool})[[*VALUE, "higher_is_better", "published"]]


def _indices(results: pd.DataFrame, own: pd.DataFrame, *, is_rehearsal: bool) -> pd.DataFrame:
    """Return the own and the published index of each pattern, task and attention, as rows of metric :data:`INDEX`."""
    key = ["pattern", "task", "attention"]
    table = pd.read_csv(PAPER_DIR / "compositional_index.csv").rename(columns={"index": "published"})
    found = pd.DataFrame(columns=[*key, "own", "sd", "seeds"])
    if len(own):
        rehearsed = results[results["task"].isin(own["task"].unique())]
        scores = score(rehearsed, normalization="results") if is_rehearsal else score(own, normalization="official")
        found = scores.table[[*key, "index", "seeds"]].rename(columns={"index": "own"})
        found["sd"] = [scores.estimates[one].variance ** 0.5 for one in found[key].itertuples(index=False, name=None)]
        whole = _whole(own)
        found.loc[[one not in whole for one in found[key].itertuples(index=False, name=None)], ["own", "sd"]] = math.nan
    frame = found.merge(table, on=key, how="outer").dropna(subset=["own", "published"], how="all")
    frame["difference"] = frame["own"].astype(float) - frame["published"]
    return frame.assign(backbone="", dataset="", metric=INDEX, higher_is_better=True)


def _whole(own: pd.DataFrame) -> set[tuple[str, str, str]]:
    """Return pattern, task (``all``: each task) and attention of results with every value that an index averages."""
    needed, found = Counter[tuple[str, str]](), Counter[tuple[str, str, str]]()
    for pattern, task, *_ in set(_published()[PUBLISHED_TERM].itertuples(index=False, name=None)):
        needed[pattern, task] += 1
    for pattern, task, *_, attention in set(own.dropna(subset=["value"])[VALUE].itertuples(index=False, name=None)):
        found[pattern, task, attention] += 1
    whole = {key for key, count in found.items() if count >= needed[key[:2]]}
    averages = {
        (pattern, AVERAGE, attention)
        for pattern, _, attention in whole
        if all((pattern, task, attention) in whole for of, task in needed if of == pattern)
    }
    return whole | averages


def _settings(results: pd.DataFrame) -> dict[TableCell, str]:
    """Return what differs from the published setting in the runs of each cell."""
    runs = (
        results[results["record"].notna()]
        .drop_duplicates("file")
        .merge(_parts(), on=["task", "dataset", "config_variant"])
    )
    texts: dict[TableCell, dict[str, None]] = {}
    for run in runs.to_dict("records"):
        cell = TableCell(run["pattern"], run["task"], run["backbone"], run["composite"], run["attention"])
        changed = changed_settings(run["record"]) if run["preset"] == "paper" else [f"preset={run['preset']}"]
        texts.setdefault(cell, {}).update(dict.fromkeys(changed))
    return {cell: " ".join(names) for cell, names in texts.items()}


def _found(results: pd.DataFrame) -> dict[tuple[Any, ...], str]:
    """Return the status of each run by pattern, task, backbone, data set, variant and attention: the worst."""
    names = ["pattern", "task", "backbone", "dataset", "config_variant", "attention"]
    runs = results.drop_duplicates([*names, "seed"])
    found: dict[tuple[Any, ...], str] = {}
    for *key, status in runs[[*names, "status"]].itertuples(index=False, name=None):
        if tuple(key) not in found or status != Status.FINISHED:
            found[tuple(key)] = str(status)
    return found


def _missing(cell: TableCell, found: Mapping[tuple[Any, ...], str]) -> str:
    """Return the parts of a cell without a score, such as ``etth2 S, ettm1 M (diverged)``."""
    texts = []
    for dataset, variant in cell.parts:
        names = (dataset, variant), (SYNTHETIC, variant), (cell.dataset, "")
        keys = [(*cell[:3], *name, cell.attention) for name in names]
        status = next((found[key] for key in keys if key in found), "")
        if status != Status.FINISHED:
            texts.append(f"{dataset} {variant}".rstrip() + (f" ({status})" if status else ""))
    return ", ".join(texts)


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort by pattern, metric and attention as in the table, other attentions after those of the table."""
    published = _published()
    ranks = {name: {value: i for i, value in enumerate(published[name].unique())} for name in ("pattern", "attention")}
    terms = published[PUBLISHED_TERM].drop_duplicates().itertuples(index=False, name=None)
    of_term = {term: rank for rank, term in enumerate(terms)}
    last = len(of_term)

    def rank(row: Fields) -> tuple[Any, ...]:
        term = tuple(row[name] for name in PUBLISHED_TERM)
        attention = ranks["attention"].get(row["attention"], len(ranks["attention"]))
        return ranks["pattern"][row["pattern"]], of_term.get(term, last), row["task"], attention, row["attention"]

    order = sorted(range(len(frame)), key=lambda i: rank(rows[i])) if (rows := frame.to_dict("records")) else []
    return frame.iloc[order].reset_index(drop=True)


def tables(frame: pd.DataFrame, *, narrow: bool = False) -> Iterator[Table]:
    """Yield the parts of the table, 3a to 3d, made from :func:`side_by_side`.

    An attention has up to three rows: own values as mean ± standard deviation over seeds, published values, and their
    difference. If the table is to be ``narrow``, the standard deviation has a row of its own. Without own values there
    are only published ones.
    """
    own = (OWN, DEVIATION) if narrow else (OWN,)
    others = (PUBLISHED, DIFFERENCE) if frame["difference"].notna().any() else (PUBLISHED,)
    kinds = (*own, *others) if frame["own"].notna().any() else (PUBLISHED,)
    shown = frame[(frame["metric"] != INDEX) | (frame["task"] == AVERAGE)]
    for pattern, rows in shown.groupby("pattern", sort=False):
        values = {tuple(row[name] for name in VALUE[1:]): row for row in rows.to_dict("records")}
        lines = [
            (str(attention), kind)
            for attention, of in rows.groupby("attention", sort=False)
            for kind in kinds
            if kind == OWN or of[kind].notna().any()
        ]
        columns = []
        for term in dict.fromkeys(key[:-1] for key in values):
            cells = [_cell(values.get((*term, attention), {}), kind, narrow=narrow) for attention, kind in lines]
            columns.append(Column(term[-1], cells, group=_group(*term[:-1])))
        if OWN in kinds:
            columns.append(Column("seeds", [_seeds(rows, *line) for line in lines]))
        checked = dict(zip(rows["attention"], rows["verified"], strict=True))
        labels = [
            Row(attention, checked[attention] or "yes") if kind == kinds[0] else Row(f"  {kind}")
            for attention, kind in lines
        ]
        is_rehearsal = ((rows["data"] == REHEARSAL) & rows["own"].notna()).any()
        stamp = f"; own values: {REHEARSAL} on generated data" if is_rehearsal else ""
        caption = f"Table 3{PARTS[str(pattern)]} ({pattern}){stamp}"
        yield Table(labels, columns, caption=caption, remarks=list(_notes(rows)))


def _group(task: str, dataset: str, backbone: str) -> str:
    """Return what distinguishes columns of one metric: the data set of LSTF, and the network of TTS."""
    return {"lstf": dataset, "tts": backbone}.get(task, task)


def _cell(row: Fields, kind: str, *, narrow: bool) -> Cell:
    """Return a value with the decimals of the table."""
    value = row.get(kind, math.nan)
    if math.isnan(value):
        return Cell()
    decimals = 3 if row["metric"] == INDEX or abs(value) < 10 else 2
    if kind == DIFFERENCE:
        return Cell(f"{round(value, 2) + 0.0:+.2f}", value)
    if kind in (PUBLISHED, DEVIATION):
        return Cell(plain(value, decimals), value)
    spread = "" if narrow or math.isnan(row["sd"]) else f" ± {plain(row['sd'], decimals)}"
    return Cell(f"{plain(value, decimals)}{spread}", value)


def _seeds(rows: pd.DataFrame, attention: str, kind: str) -> Cell:
    """Return the number of seeds of an attention, as a range if its values have different ones."""
    counts = rows.loc[(rows["attention"] == attention) & rows["own"].notna(), "seeds"]
    if kind != OWN or counts.empty:
        return Cell("")
    least, most = counts.min(), counts.max()
    return Cell(f"{least}" if least == most else f"{least}-{most}")


def _notes(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the meaning of a difference, settings that are not the published ones, and what begun rows lack."""
    cells = rows[rows["metric"] != INDEX].drop_duplicates([*TableCell._fields]).to_dict("records")
    begun = {row["attention"] for row in cells if row["missing"] != _missing(_table_cell(row), {})}
    if begun and rows["own"].isna().all():
        yield "no value of this part is complete"
    if rows["difference"].notna().any():
        yield (
            "difference: own - published in standard deviations over the paper's attentions (Tables 7-10), positive is "
            "better; of an index, own - published"
        )
    notes: dict[str, list[str]] = {}
    for row in (row for row in cells if row["attention"] in begun):
        place = f"{row['task']} {row['backbone']}"
        if row["settings"] and row["data"] == REAL:
            notes.setdefault(f"{place}, other settings than published: {row['settings']}", []).append(row["attention"])
        if row["missing"]:
            notes.setdefault(f"{place}, without a result: {row['missing']}", []).append(row["attention"])
    for text, names in notes.items():
        yield f"{text}: {listed(dict.fromkeys(names), shown=6)}"


def _table_cell(row: Fields) -> TableCell:
    return TableCell(*(row[name] for name in TableCell._fields))
