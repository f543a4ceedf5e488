"""Table 3 with own results alongside the published ones: raw metrics, their difference, and the compositional index."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from cab.files.disk import listed
from cab.records.files import PAPER_DIR
from cab.records.record import Status
from cab.registry.names import SYNTHETIC
from cab.results.changed_settings import with_changed
from cab.results.formats import Fields, TableCell, plain
from cab.results.guards import comparable
from cab.results.index import score
from cab.results.load import AVERAGE, INDEX, OWN, PUBLISHED, REAL, REHEARSAL, load
from cab.results.published import (
    PART,
    PUBLISHED_TERM,
    VALUE,
    Table3Value,
    on_published_sets,
    parts_of_sets,
    rows as printed,
    tasks3,
    terms3,
)
from cab.results.summarize import summarize, worst_verified
from cab.results.table import Column, Row, Table

OWN_VALUE, OWN_DEVIATION, PUBLISHED_VALUE, DIFFERENCE = "own", "sd", "published", "difference"
"""Kinds of rows of an attention."""
TABLE3_COLUMNS = [
    "pattern", "task", "dataset", "backbone", "metric", "attention", "higher_is_better", "data", "own", "sd", "seeds",
    "published", "normalization", "difference", "verified", "missing", "settings",
]  # fmt: skip
PART_OF_PATTERN = {"NS": "a", "CS": "b", "NC": "c", "CC": "d"}
"""Part of Table 3 of each pattern."""


def side_by_side(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every value of Table 3, and of other own attentions in its cells: the own and the published one.

    Args:
        frame: table of :func:`cab.load_results`, whose own results have a single preset; it may be empty. Without
            results on real data, those on generated data replace each data set of their task, and make a rehearsal.

    Returns:
        Columns :data:`TABLE3_COLUMNS` in the order of the table; other own attentions follow. ``own`` and ``sd`` are
        mean and standard deviation (NaN for one seed) over the ``seeds`` that have all parts; an index, whose cells
        have seeds of their own, has an interval (:func:`cab.results.index.index_table`) and no ``sd``. ``published`` is
        what the paper prints. ``difference`` is own - published in standard deviations of the metric over the paper's
        attentions (Tables 7-10), with the sign changed if lower is better: positive is better. That of an index is own
        - published. It is NaN in a rehearsal. ``normalization`` is that of an own index. ``verified`` is the worst
        state of the code of the own runs. ``missing`` names parts and seeds without a score, or why there is no index;
        ``settings`` is what differs from the published setting.

    Raises:
        UserError: different results for one cell and seed, several presets, or versions of a task.
    """
    results = frame[(frame["source"] == OWN) & (frame["score"] == INDEX)]
    results = comparable(results) if len(results) else results
    is_rehearsal = bool((results["data"] != REAL).any())
    own = summarize(on_published_sets(results[results["primary"].astype(bool)]), VALUE)
    own = own.rename(columns={"mean": "own"})[[*VALUE, "own", "sd", "seeds", "missing"]]
    paper = load(PAPER_DIR).frame
    paper = paper[paper["source"] == PUBLISHED].rename(columns={"value": "published"})
    metrics = own.merge(paper.loc[paper["kind"] != INDEX, [*VALUE, "published"]], on=VALUE, how="outer")
    better = paper.drop_duplicates("metric").set_index("metric")["higher_is_better"]
    metrics["difference"] = _in_deviations(metrics, better)
    table = pd.concat([metrics, _indices(results, paper[paper["kind"] == INDEX])], ignore_index=True)
    table["higher_is_better"] = table["metric"].map(better)
    cells = [Table3Value(*key) for key in table[[*Table3Value._fields]].itertuples(index=False, name=None)]
    settings, found, checked = _settings(results), _statuses(results), worst_verified(results)
    texts = zip(cells, table["missing"].fillna(""), strict=True)
    table["missing"] = ["; ".join(filter(None, (cell.dataset and _missing(cell, found), text))) for cell, text in texts]
    table["settings"] = [settings.get(cell, "") for cell in cells]
    table["verified"] = [checked.get((cell.pattern, cell.attention), "") for cell in cells]
    table = table.assign(data=REHEARSAL if is_rehearsal else REAL, seeds=table["seeds"].fillna(0).astype(int))
    if is_rehearsal:
        table["difference"] = math.nan  # of scores on other data
    return _sorted(table)[TABLE3_COLUMNS]


def _in_deviations(metrics: pd.DataFrame, better: pd.Series) -> pd.Series:
    """Return own - published in standard deviations over the paper's attentions; positive is better."""
    scales = pd.DataFrame(printed("normalization.csv")).astype({"std_table": float})
    scale = metrics.merge(scales[[*PUBLISHED_TERM, "std_table"]], on=PUBLISHED_TERM, how="left")["std_table"]
    sign = metrics["metric"].map(better).map({True: 1.0, False: -1.0})
    return sign * (metrics["own"] - metrics["published"]) / scale


def _indices(results: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return the own and the published index of each pattern, task and attention, as rows of metric :data:`INDEX`."""
    key = ["pattern", "task", "attention"]
    own = pd.DataFrame(columns=[*key, "own", "sd", "seeds", "normalization", "missing"])
    if len(results):
        own = score(results).table.rename(columns={"index": "own"}).assign(sd=math.nan)
        own = own.drop(columns=["low", "high", "verified", "source"])
        of_table = [(pattern, task) in tasks3() or task == AVERAGE for pattern, task in own[key[:2]].to_numpy()]
        own = own[of_table]
    table = own.merge(paper[[*key, "published"]], on=key, how="outer")
    table = table[table[["own", "published"]].notna().any(axis=1) | (table["missing"].fillna("") != "")]
    difference = table["own"].astype(float) - table["published"].astype(float)
    return table.assign(backbone="", dataset="", metric=INDEX, difference=difference)


def _settings(results: pd.DataFrame) -> dict[Table3Value, str]:
    """Return what differs from the published setting in the runs of each cell."""
    runs = with_changed(results.drop_duplicates("file"))
    pairs: Any = zip(runs["preset"], runs["changed"], strict=True)
    settings: list[Any] = [of if preset == "paper" else (f"preset={preset}",) for preset, of in pairs]
    runs = runs.assign(changed=settings)
    runs = runs.merge(parts_of_sets(), on=PART)
    texts: dict[Table3Value, dict[str, None]] = {}
    names = ["pattern", "task", "backbone", "published_set", "attention", "changed"]
    rows: Any = runs[names].itertuples(index=False, name=None)
    for *key, changed in rows:
        texts.setdefault(Table3Value(*key), {}).update(dict.fromkeys(changed))
    return {cell: " ".join(of_cell) for cell, of_cell in texts.items()}


def _statuses(results: pd.DataFrame) -> dict[tuple[Any, ...], str]:
    """Return the worst status of the runs of each pattern, task, backbone, data set, variant and attention."""
    names = ["pattern", "task", "backbone", "dataset", "config_variant", "attention"]
    worst = results.sort_values("status", key=lambda texts: texts != Status.FINISHED, kind="stable")
    return {tuple(key): str(status) for *key, status in worst[[*names, "status"]].itertuples(index=False, name=None)}


def _missing(cell: Table3Value, found: Mapping[tuple[Any, ...], str]) -> str:
    """Return the parts of a cell without a result, such as ``etth2 S, ettm1 M``."""
    texts = []
    for dataset, variant in cell.parts:
        names = (dataset, variant), (SYNTHETIC, variant), (cell.dataset, "")
        keys = [(*cell[:3], *name, cell.attention) for name in names]
        status = next((found[key] for key in keys if key in found), "")
        if status != Status.FINISHED:
            texts.append(f"{dataset} {variant}".rstrip() + (f" ({status})" if status else ""))
    return ", ".join(texts)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Sort by pattern, metric and attention as in the table, other attentions after those of the table."""
    attentions = list(dict.fromkeys(row["attention"] for row in printed("results.csv")))
    of_term = {term: rank for rank, term in enumerate(terms3())}
    patterns, last = list(dict.fromkeys(term[0] for term in terms3())), len(of_term)
    ranks = table.assign(
        _pattern=table["pattern"].map(patterns.index),
        _term=[of_term.get(term, last) for term in table[PUBLISHED_TERM].itertuples(index=False, name=None)],
        _rank=[attentions.index(name) if name in attentions else len(attentions) for name in table["attention"]],
    )
    by = ["_pattern", "_term", "task", "_rank", "attention"]
    return ranks.sort_values(by, kind="stable", ignore_index=True)


def tables(frame: pd.DataFrame, *, narrow: bool = False) -> Iterator[Table]:
    """Yield the parts of the table, 3a to 3d, made from :func:`side_by_side`.

    An attention has up to three rows: own values as mean ± standard deviation over seeds, published values, and their
    difference. If the table is to be ``narrow``, the standard deviation has a row of its own. Without own values, all
    parts are yielded, with published values only; otherwise those with own values.
    """
    if frame["own"].notna().any():
        has_own = frame.groupby("pattern")["own"].transform("count") > 0
        frame = frame[has_own | frame["pattern"].isin(_begun(frame)["pattern"])]
    own = (OWN_VALUE, OWN_DEVIATION) if narrow else (OWN_VALUE,)
    others = (PUBLISHED_VALUE, DIFFERENCE) if frame["difference"].notna().any() else (PUBLISHED_VALUE,)
    kinds = (*own, *others) if frame["own"].notna().any() else (PUBLISHED_VALUE,)
    shown = frame[(frame["metric"] != INDEX) | (frame["task"] == AVERAGE)]
    for pattern, rows in shown.groupby("pattern", sort=False):
        values = {tuple(row[name] for name in VALUE[1:]): row for row in rows.to_dict("records")}
        lines = [
            (str(attention), kind)
            for attention, of in rows.groupby("attention", sort=False)
            for kind in kinds
            if kind == OWN_VALUE or of[kind].notna().any()
        ]
        columns = []
        for term in dict.fromkeys(key[:-1] for key in values):
            cells = [_cell(values.get((*term, attention), {}), kind, narrow=narrow) for attention, kind in lines]
            columns.append(Column(_header(*term), cells))
        if OWN_VALUE in kinds:
            columns.append(Column("seeds", [_seeds(rows, *line) for line in lines]))
        checked = dict(zip(rows["attention"], rows["verified"], strict=True))
        labels = [
            Row(attention, checked[attention] or "yes") if kind == kinds[0] else Row(f"  {kind}")
            for attention, kind in lines
        ]
        is_rehearsal = ((rows["data"] == REHEARSAL) & rows["own"].notna()).any()
        stamp = f"; own values: {REHEARSAL} on generated data" if is_rehearsal else ""
        caption = f"Table 3{PART_OF_PATTERN[str(pattern)]} ({pattern}){stamp}"
        yield Table(labels, columns, caption=caption, remarks=list(_notes(rows)))


def _header(task: str, backbone: str, dataset: str, metric: str) -> str:
    """Return the metric with its task, for LSTF also with the data set, and for TTS with the network."""
    place = {"lstf": f"lstf {dataset}", "tts": backbone}.get(task, task)
    return metric if metric == INDEX else f"{place}: {metric}"


def _cell(row: Fields, kind: str, *, narrow: bool) -> TableCell:
    """Return a value with the decimals of the table."""
    value = row.get(kind, math.nan)
    if math.isnan(value):
        return TableCell("") if kind == OWN_DEVIATION and row.get("metric") == INDEX else TableCell()
    decimals = 3 if row["metric"] == INDEX or abs(value) < 10 else 2
    if kind == DIFFERENCE:
        return TableCell(f"{round(value, 2) + 0.0:+.2f}", value)
    if kind in (PUBLISHED_VALUE, OWN_DEVIATION):
        return TableCell(plain(value, decimals), value)
    spread = "" if narrow or math.isnan(row["sd"]) else f" ± {plain(row['sd'], decimals)}"
    return TableCell(f"{plain(value, decimals)}{spread}", value)


def _seeds(rows: pd.DataFrame, attention: str, kind: str) -> TableCell:
    """Return the number of seeds of an attention, as a range if its values have different ones."""
    counts = rows.loc[(rows["attention"] == attention) & rows["own"].notna(), "seeds"]
    if kind != OWN_VALUE or counts.empty:
        return TableCell("")
    least, most = counts.min(), counts.max()
    return TableCell(f"{least}" if least == most else f"{least}-{most}")


def _notes(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the meaning of a difference, settings that are not the published ones, and what begun rows lack."""
    begun = _begun(rows)
    if len(begun) and rows["own"].isna().all():
        yield "no value of this part is complete"
    of_own = rows[rows["own"].notna() & (rows["metric"] != INDEX)]
    if (of_own["data"] == REHEARSAL).any():
        for task, sets in of_own.groupby("task", sort=False)["dataset"].unique().items():
            if len(sets) > 1:
                yield f"{task}: one value on generated data stands for {', '.join(sets)}"
    if rows["difference"].notna().any():
        yield (
            "difference: own - published in standard deviations over the paper's attentions (Tables 7-10), positive is "
            "better; of an index, own - published"
        )
    notes: dict[str, list[str]] = {}
    for row in begun.to_dict("records"):
        place = f"{row['task']} {row['backbone']}"
        if row["settings"] and row["data"] == REAL:
            notes.setdefault(f"{place}, other settings than published: {row['settings']}", []).append(row["attention"])
        if row["missing"]:
            notes.setdefault(f"{place}, without a result: {row['missing']}", []).append(row["attention"])
    for text, names in notes.items():
        yield f"{text}: {listed(dict.fromkeys(names), shown=6)}"


def _begun(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell of the attentions of each pattern of which some run has ended."""
    cells = rows[rows["metric"] != INDEX].drop_duplicates([*Table3Value._fields])
    fields: Any = cells.to_dict("records")
    begun = [row["missing"] != _missing(Table3Value.of(row), {}) for row in fields]
    return cells[cells.assign(_begun=begun).groupby(["pattern", "attention"])["_begun"].transform("any")]
