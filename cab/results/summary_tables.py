"""Tables 6 to 10 and 12 with own numbers alongside the published ones, made from the values of Table 3."""

from __future__ import annotations

import math

import pandas as pd

from cab.records.results import PAPER_DIR
from cab.results.index import AVERAGE
from cab.results.normalization import NO_ATTENTION, PUBLISHED_TERM, SOFTMAX_VARIANTS, population
from cab.results.table3 import INDEX

PATTERNS = {"7": "NS", "8": "CS", "9": "NC", "10": "CC"}


def summary(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Return a table of the paper with the columns ``own`` and ``published``, one row per number.

    Args:
        frame: values of Table 3, see :func:`cab.results.table3.side_by_side`.
        table: number of the table: 6 to 10, or 12.

    Returns:
        Tables 7 to 10: means and sample standard deviations over the attentions with own values, which
        :func:`cab.results.normalization.population` selects. Table 12: ``attention`` is the best efficient attention of
        the own results, chosen after the fact. ``data`` is that of the frame.
    """
    if table == "6":
        rows = frame[(frame["metric"] == INDEX) & (frame["task"] != AVERAGE)]
        return rows[["data", "pattern", "task", "attention", "own", "sd", "seeds", "published", "difference"]]
    return _benefit(frame) if table == "12" else _scales(frame[frame["pattern"] == PATTERNS[table]])


def _scales(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation of each metric of one pattern."""
    published = pd.read_csv(PAPER_DIR / "normalization.csv")
    published = published[published["pattern"].isin(frame["pattern"])]
    own = frame[frame["own"].notna() & (frame["metric"] != INDEX)]
    own = own[own["attention"].isin(population(own["attention"]))]
    scales = own.groupby(PUBLISHED_TERM)["own"].agg(["mean", "std"]).reset_index()
    wide = published.merge(scales, on=PUBLISHED_TERM, how="left", suffixes=("_script", ""))
    parts = [
        wide[PUBLISHED_TERM].assign(quantity=name, own=wide[name], published=wide[f"{name}_table"])
        for name in ("mean", "std")
    ]
    table = pd.concat(parts).sort_index(kind="stable", ignore_index=True)
    return table.assign(data=frame["data"].iloc[0])[["data", *PUBLISHED_TERM, "quantity", "own", "published"]]


def _benefit(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the index of the best efficient attention, of softmax attention and of no attention, in NS."""
    indices = frame[(frame["metric"] == INDEX) & (frame["pattern"] == "NS")].dropna(subset=["own"])
    rows = []
    for line in pd.read_csv(PAPER_DIR / "benefit_of_attention.csv").to_dict("records"):
        of_task = indices[indices["task"] == line["task"]].set_index("attention")["own"]
        efficient = of_task[~of_task.index.isin([*SOFTMAX_VARIANTS, NO_ATTENTION])]
        best = str(efficient.idxmax()) if len(efficient) else ""
        softmax = next((name for name in SOFTMAX_VARIANTS if name in of_task), SOFTMAX_VARIANTS[0])
        for column, name in (("efficient", best), ("vanilla", softmax), ("without", NO_ATTENTION)):
            rows.append((line["task"], column, name, of_task.get(name, math.nan), line[column]))
    table = pd.DataFrame(rows, columns=["task", "quantity", "attention", "own", "published"])
    return table.assign(data=frame["data"].iloc[0])[["data", *table.columns]]
