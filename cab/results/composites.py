"""Composites: published values that are means over several data sets or variants, such as ``ett`` of task ``lstf``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cab.records.record import CELL
from cab.records.results import COLUMNS, PAPER_DIR

if TYPE_CHECKING:
    import pandas as pd

OF_FIRST = ("task_version", "unit", "higher_is_better", "primary", "status", "revision", "verified", "num_parts")
"""Columns of a composite that are those of its first part."""


def with_composites(results: pd.DataFrame) -> pd.DataFrame:
    """Add the rows that can be compared with a published mean over several data sets or variants.

    A composite has the name of the published data set, such as ``ett``, and an empty ``config_variant``. Its value is
    the mean over the parts that ``results/paper/parts.csv`` lists, for each cell and seed that has all of them.

    Args:
        results: table of :func:`cab.load_results`.
    """
    import pandas as pd

    parts = pd.read_csv(PAPER_DIR / "parts.csv").rename(columns={"dataset": "composite", "part": "dataset"})
    parts["num_parts"] = parts.groupby(["task", "composite"])["dataset"].transform("size")
    means = means_over_parts(results, parts)
    return pd.concat([results, means], ignore_index=True) if len(means) else results


def means_over_parts(results: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of composites only, for each cell and seed that has all parts; NaN if a part is.

    Args:
        results: table of :func:`cab.load_results`.
        parts: columns task, dataset and config_variant (the part), composite and num_parts.
    """
    rows = results.merge(parts, on=["task", "dataset", "config_variant"])
    keys = [name for name in CELL if name not in ("dataset", "config_variant")] + ["composite", "metric"]
    means = rows.groupby(keys, sort=False).agg(
        value=("value", lambda values: values.mean(skipna=False)),
        count=("value", "size"),
        **{name: (name, "first") for name in OF_FIRST},
    )
    means = means.reset_index().query("count == num_parts").rename(columns={"composite": "dataset"})
    means = means.assign(config_variant="", hash="", file="").reindex(columns=list(COLUMNS)).astype({"record": object})
    means["record"] = None
    return means
