"""Long Range Arena: accuracy of each attention and of trivial baselines per data set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_text
from cab.reports.sections import Block
from cab.reports.tables import Column, Entry, Row, Table, element_id, plain
from cab.reports.task_sections import TaskSection

if TYPE_CHECKING:
    import pandas as pd

METRIC = "accuracy"
TRIVIAL, TRAINED = "trivial", "attention"
_PLACE = ["preset", "dataset", "config_variant"]
_COLUMNS = [*_PLACE, "kind", "name", METRIC, "deviation", "seeds"]


def arena_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per attention or trivial baseline, sorted by accuracy within preset, data set and variant.

    Columns preset, dataset, config_variant, kind (attention, trivial), name; accuracy in [0, 1] as recorded, its
    standard deviation over seeds (NaN for a single seed and for baselines), seeds.
    """
    import pandas as pd

    runs = runs[runs["metric"] == METRIC]
    scored = (
        runs.rename(columns={"attention": "name"})
        .groupby([*_PLACE, "name"], dropna=False)["value"]
        .agg(["mean", "std", "count"])
        .reset_index()
    )
    scored = scored.rename(columns={"mean": METRIC, "std": "deviation", "count": "seeds"}).assign(kind=TRAINED)
    trivial = [
        {**dict(zip(_PLACE, place, strict=True)), "kind": TRIVIAL, "name": sanitize_text(name), METRIC: scores[METRIC]}
        for place, own in runs.groupby(_PLACE, dropna=False)
        for name, scores in next((record.baselines for record in own["record"] if record is not None), {}).items()
    ]
    rows = [*scored.to_dict("records"), *trivial]
    table = pd.DataFrame(rows, columns=_COLUMNS).astype({METRIC: float, "deviation": float, "seeds": "Int64"})
    return table.sort_values([*_PLACE, METRIC], ascending=[True, True, True, False])


def arena_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per preset and data set with attentions and trivial baselines."""
    for number, ((preset, dataset, config_variant), own) in enumerate(table.groupby(_PLACE, sort=False)):
        heading = f"{dataset}, preset {preset}" + (f", {config_variant}" if config_variant else "")
        columns = [Column("attention"), Column("kind"), Column("accuracy, %", "↑", "higher is better"), Column("seeds")]
        shown = Table(element_id("lra", str(number)), f"{heading}: accuracy, mean over seeds", columns, [])
        for row in own.to_dict("records"):
            spread = f"± {plain(row['deviation'], 1)}" if math.isfinite(row["deviation"]) else ""
            is_trivial = row["kind"] == TRIVIAL
            seeds = shown.missing("not trained") if is_trivial else Entry(str(row["seeds"]), row["seeds"])
            score = Entry(plain(row[METRIC], 1), row[METRIC], spread)
            shown.rows.append(
                Row(row["name"].replace("_", " ") if is_trivial else row["name"], [Entry(row["kind"]), score, seeds])
            )
        yield Block(heading, "An attention that ranks below a trivial baseline did not learn the task.", [], [shown])


SECTION = TaskSection(
    name="lra",
    title="Long Range Arena",
    summary="Classification of long sequences, compared with trivial baselines. Not included in the compositional "
    "index.",
    table=arena_table,
    blocks=arena_blocks,
)
