"""GLUE as Qin et al. 2022 print it, seven columns and their mean, and beside it what an honest choice of rate gives.

GLUE is no part of the index, so no suite has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.sanitize import csv_table, printable
from cab.records.record import Status
from cab.reports.sections import Block
from cab.reports.tables import Column, Entry, Row, Table, plain

if TYPE_CHECKING:
    import pandas as pd

TASK = "glue"
AVERAGED = {
    "mnli_m": ("mnli", "accuracy"),
    "mnli_mm": ("mnli", "accuracy_mm"),
    "qnli": ("qnli", "accuracy"),
    "qqp": ("qqp", "accuracy"),
    "sst2": ("sst2", "accuracy"),
    "mrpc": ("mrpc", "f1"),
    "cola": ("cola", "matthews"),
}
"""The published columns, MNLI twice: data set and metric."""
BESIDE = {"rte": ("rte", "accuracy"), "stsb": ("stsb", "pearson"), "synthetic": ("synthetic", "accuracy")}
COLUMNS = {**AVERAGED, **BESIDE}
CHOICES = ("dev", "held_out")
"""Of several runs that differ in their settings (the rate, the steps) the one that counts is the best on the scored
examples themselves, as published, or on those that were held out of training."""
_PLACE = ["preset", "start", "attention"]


def glue_table(results: pd.DataFrame) -> pd.DataFrame:
    """A row an attention, start of its weights and way to choose among runs; scores are percents, means over seeds.

    Columns preset, start, attention, chosen_by, those of :data:`COLUMNS`, average (of the seven; NaN where one is
    missing), seeds (the fewest of a column) and settings (the most that were chosen from).
    """
    import pandas as pd

    runs = results[(results["task"] == TASK) & (results["status"] == Status.FINISHED)]
    start = runs["config_variant"].map(lambda config_variant: printable(config_variant.partition(",")[0]))
    runs = runs.assign(start=start, attention=runs["attention"].map(printable))
    rows = [
        {**dict(zip(_PLACE, place, strict=True)), "chosen_by": choice, **scores}
        for place, own in runs.groupby(_PLACE, sort=True)
        for choice in CHOICES
        if (scores := _chosen_scores(own, choice))
    ]
    return pd.DataFrame(rows, columns=[*_PLACE, "chosen_by", *COLUMNS, "average", "seeds", "settings"])


def _chosen_scores(runs: pd.DataFrame, choice: str) -> dict[str, Any]:
    """The columns of one row; empty where nothing was chosen that way."""
    found: dict[str, float] = {}
    seeds, settings = [], []
    for column, (dataset, metric) in COLUMNS.items():
        values = runs[(runs["dataset"] == dataset) & (runs["metric"] == metric)].set_index("hash")
        values = values[values["value"].notna()]
        known = values["value"]
        if choice == "held_out":
            judge = runs[(runs["dataset"] == dataset) & (runs["metric"] == f"{metric.removesuffix('_mm')}_held_out")]
            known = judge.set_index("hash")["value"].dropna()
        values = values.assign(known=known).dropna(subset="known")
        if values.empty:
            continue
        by_seed = values.groupby("seed")
        best = values.loc[by_seed["known"].idxmax()]
        found[column] = 100.0 * best["value"].mean()
        seeds.append(len(best))
        settings.append(int(by_seed.size().max()))
    if not found:
        return {}
    missing = [column for column in AVERAGED if column not in found]
    average = math.nan if missing else sum(found[column] for column in AVERAGED) / len(AVERAGED)
    return {**found, "average": average, "seeds": min(seeds), "settings": max(settings)}


def write_glue(table: pd.DataFrame, out: Path) -> Path:
    """Write ``glue.csv`` into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "glue.csv"
    csv_table(table).to_csv(path, index=False)
    return path


def glue_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """A block a preset: its attentions, each as published and as chosen on examples that are not scored."""
    for number, (preset, own) in enumerate(table.groupby("preset", sort=False)):
        shown = [column for column in COLUMNS if own[column].notna().any()]
        columns = [Column("attention"), Column("weights"), Column("chosen on")]
        columns += [Column(name, "↑", "higher is better") for name in (*shown, "average")]
        table_of = Table(f"glue-{number}", f"GLUE, preset {preset}: percents, means over seeds", columns, [])
        for row in own.to_dict("records"):
            cells = [Entry(row["start"]), Entry({"dev": "dev, scored", "held_out": "held out"}[row["chosen_by"]])]
            for name in (*shown, "average"):
                reason = "not every column has a result" if name == "average" else "no result"
                value = row[name]
                cells.append(Entry(plain(value, 2), value) if math.isfinite(value) else table_of.missing(reason))
            table_of.rows.append(Row(row["attention"], cells))
        text = "The average is of MNLI twice, QNLI, QQP, SST-2, MRPC and CoLA, as printed by Qin et al. 2022."
        yield Block(f"Preset {preset}", text, [], [table_of])
