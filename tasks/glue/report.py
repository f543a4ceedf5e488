"""GLUE in the form of Qin et al. 2022 (seven columns and their mean), with two ways of selecting among settings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cab.results.formats import numbers, texts
from cab.results.sections import Block, TaskSection
from cab.results.summarize import summarize
from cab.results.table import Column, Row, Table

if TYPE_CHECKING:
    import pandas as pd

AVERAGED = {
    "mnli_m": ("mnli", "accuracy"),
    "mnli_mm": ("mnli", "accuracy_mm"),
    "qnli": ("qnli", "accuracy"),
    "qqp": ("qqp", "accuracy"),
    "sst2": ("sst2", "accuracy"),
    "mrpc": ("mrpc", "f1"),
    "cola": ("cola", "matthews"),
}
"""The published columns, MNLI twice, as data set and metric."""
NOT_AVERAGED = {"rte": ("rte", "accuracy"), "stsb": ("stsb", "pearson"), "synthetic": ("synthetic", "accuracy")}
GLUE_COLUMNS = {**AVERAGED, **NOT_AVERAGED}
CHOICES = ("dev", "held_out")
"""Selection of a run among several settings (learning rate, steps): the best on the scored development examples, as
published, or on examples held out from training."""
_PLACE = ["preset", "start", "attention"]


def glue_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per attention, initialization and way of selection; scores in percent, means over seeds.

    Columns preset, start (initialization), attention, chosen_by, those of :data:`GLUE_COLUMNS`, average (of the seven;
    NaN if one is missing), seeds (smallest number of any column) and settings (largest number to select from).
    """
    import pandas as pd

    runs = runs.assign(start=runs["config_variant"].map(lambda variant: variant.partition(",")[0]))
    rows = [
        {**dict(zip(_PLACE, place, strict=True)), "chosen_by": choice, **scores}
        for place, place_runs in runs.groupby(_PLACE, sort=True)
        for choice in CHOICES
        if (scores := _chosen_scores(place_runs, choice))
    ]
    return pd.DataFrame(rows, columns=[*_PLACE, "chosen_by", *GLUE_COLUMNS, "average", "seeds", "settings"])


def _chosen_scores(runs: pd.DataFrame, choice: str) -> dict[str, Any]:
    """Return the columns of one row; empty if no run can be selected."""
    scores: dict[str, float] = {}
    seeds, settings = [], []
    for column, (dataset, metric) in GLUE_COLUMNS.items():
        judge = f"{metric.removesuffix('_mm')}_held_out" if choice == "held_out" else metric
        of_dataset = runs[runs["dataset"] == dataset].set_index("hash")
        values = of_dataset[(of_dataset["metric"] == metric) & of_dataset["value"].notna()]
        values = values.assign(judged=of_dataset.loc[of_dataset["metric"] == judge, "value"]).dropna(subset="judged")
        if not values.empty:
            by_seed = values.groupby("seed")
            best = summarize(values.loc[by_seed["judged"].idxmax()], ["dataset"])
            scores[column] = 100.0 * best["mean"].item()
            seeds.append(best["seeds"].item())
            settings.append(int(by_seed.size().max()))
    if not scores:
        return {}
    average = sum(scores.get(column, math.nan) for column in AVERAGED) / len(AVERAGED)
    return {**scores, "average": average, "seeds": min(seeds), "settings": max(settings)}


def glue_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per preset with both ways of selection for each attention."""
    text = "The average covers MNLI (matched and mismatched), QNLI, QQP, SST-2, MRPC and CoLA, as in Qin et al. 2022."
    table = table.assign(chosen=table["chosen_by"].map({"dev": "development set", "held_out": "held-out examples"}))
    for number, (preset, rows) in enumerate(table.groupby("preset", sort=False)):
        columns = [Column("initialization", texts(rows["start"]))]
        columns.append(Column("selected on", texts(rows["chosen"])))
        for name in (*(column for column in GLUE_COLUMNS if rows[column].notna().any()), "average"):
            reason = "a column has no result" if name == "average" else "no result"
            columns.append(Column(name, numbers(rows[name], 2, reason), "higher"))
        caption = f"GLUE, preset {preset}: score in %, mean over seeds"
        shown = Table([*map(Row, rows["attention"])], columns, caption=caption, id=f"glue-{number}")
        yield Block(f"Preset {preset}", text, (), [shown])


SECTION = TaskSection(
    name="glue",
    title="GLUE",
    summary="Fine-tuning on sentences and sentence pairs. Not included in the compositional index.",
    table=glue_table,
    blocks=glue_blocks,
)
