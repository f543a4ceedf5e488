"""Long Range Arena: accuracy of each attention and of trivial baselines per data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_text
from cab.results.formats import mean, numbers, texts
from cab.results.sections import Block, TaskSection
from cab.results.summarize import summarize
from cab.results.table import Column, Row, Table

if TYPE_CHECKING:
    import pandas as pd

ARENA_SCORE = "accuracy"
TRIVIAL, TRAINED = "trivial", "attention"
_PLACE = ["preset", "dataset", "config_variant"]
_COLUMNS = [*_PLACE, "kind", "name", ARENA_SCORE, "deviation", "seeds"]


def arena_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per attention or trivial baseline, sorted by accuracy within preset, data set and variant.

    Columns preset, dataset, config_variant, kind (attention, trivial), name; accuracy in [0, 1] as recorded, its
    standard deviation over seeds (NaN for a single seed and for baselines), seeds.
    """
    import pandas as pd

    runs = runs[runs["metric"] == ARENA_SCORE].sort_values([*_PLACE, "attention"], kind="stable")
    scored = summarize(runs, [*_PLACE, "attention"]).assign(kind=TRAINED)
    scored = scored.rename(columns={"attention": "name", "mean": ARENA_SCORE, "sd": "deviation"})
    trivial = [
        {
            **dict(zip(_PLACE, place, strict=True)),
            "kind": TRIVIAL,
            "name": sanitize_text(name),
            ARENA_SCORE: scores[ARENA_SCORE],
        }
        for place, rows in runs[runs["hash"] != ""].groupby(_PLACE, dropna=False)
        for name, scores in rows["baselines"].iloc[0].items()
    ]
    rows = [*scored.to_dict("records"), *trivial]
    table = pd.DataFrame(rows, columns=_COLUMNS).astype({ARENA_SCORE: float, "deviation": float, "seeds": "Int64"})
    return table.sort_values([*_PLACE, ARENA_SCORE], ascending=[True, True, True, False])


def arena_blocks(table: pd.DataFrame) -> Iterator[Block]:
    """Yield one block per preset and data set with attentions and trivial baselines."""
    text = "An attention that ranks below a trivial baseline did not learn the task."
    table = table.assign(seeds=table["seeds"].astype(float))
    table["attention"] = table["name"].where(table["kind"] == TRAINED, table["name"].str.replace("_", " "))
    for number, ((preset, dataset, config_variant), rows) in enumerate(table.groupby(_PLACE, sort=False)):
        heading = f"{dataset}, preset {preset}" + (f", {config_variant}" if config_variant else "")
        caption = f"{heading}: accuracy, mean over seeds"
        columns = [
            Column("kind", texts(rows["kind"])),
            Column("accuracy, %", list(map(mean, rows[ARENA_SCORE], rows["deviation"])), "higher"),
            Column("seeds", numbers(rows["seeds"], 0, "not trained")),
        ]
        shown = Table([*map(Row, rows["attention"])], columns, caption=caption, id=f"lra-{number}")
        yield Block(heading, text, (), [shown])


SECTION = TaskSection(
    name="lra",
    title="Long Range Arena",
    summary="Classification of long sequences, compared with trivial baselines. Not included in the compositional "
    "index.",
    table=arena_table,
    blocks=arena_blocks,
)
