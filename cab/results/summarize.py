"""Mean and standard deviation over seeds: no other module computes them, so they are equal wherever they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cab.files.disk import listed
from cab.files.numbers import is_finite
from cab.records.names import PLACE
from cab.records.record import Status
from cab.records.verified import UNVERIFIED_LEGEND, VERIFIED_STATES
from cab.results.guards import of_one_data, refuse_versions, without_copies
from cab.results.load import PUBLISHED, metrics_of
from cab.results.statistics import Estimate

if TYPE_CHECKING:
    import pandas as pd

STATE_RANKS = {state: rank for rank, state in enumerate(VERIFIED_STATES)}
NOT_GIVEN = "not given in the paper"
"""Why a printed value is missing."""
SUMMARIZED_COLUMNS = [
    *("source", *PLACE, "attention", "metric", "unit", "higher_is_better", "primary", "mean", "sd", "seeds"),
    *("missing", "verified"),
]


def summarize(rows: pd.DataFrame, by: Sequence[str], *, value: str = "value", keep: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per group of ``by``, in the order of the rows.

    Args:
        value: column of the values, one per seed; NaN for a seed without a score.
        keep: columns of which a group has its first value.

    Returns:
        Columns ``by``, mean and sd over the seeds with a value (sd is NaN for one), seeds (their number; NaN for
        published values, which do not say it), missing (``1 of 3 without a score (diverged)``, or empty), verified (the
        worst state), and ``keep``.
    """
    rows = rows.assign(
        _rank=rows["verified"].map(STATE_RANKS),
        _value=rows[value].astype(float).where(is_finite),
        _printed=rows["source"] == PUBLISHED,
    )
    groups = rows.groupby(list(by), sort=False, dropna=False)
    found = groups.agg(
        mean=("_value", "mean"),
        sd=("_value", "std"),
        seeds=("_value", "count"),
        size=("_value", "size"),
        verified=("_rank", "min"),
        is_printed=("_printed", "all"),
        **{name: (name, "first") for name in keep},
    )
    lacking: Any = rows.loc[rows["_value"].isna() & ~rows["_printed"], "status"].groupby(groups.ngroup())
    texts = {number: without_score(len(of), found["size"].iloc[number], of) for number, of in lacking}
    found["missing"] = [texts.get(number, "") for number in range(len(found))]
    found.loc[found["is_printed"] & found["mean"].isna(), "missing"] = NOT_GIVEN
    found["seeds"] = found["seeds"].where(~found["is_printed"])
    found["verified"] = found["verified"].map(dict(enumerate(VERIFIED_STATES)))
    return found.drop(columns=["is_printed", "size"]).reset_index()


def without_score(count: int, total: int, statuses: Iterable[str]) -> str:
    """Return how many of the seeds have no score, and why."""
    reasons = sorted({*statuses} - {str(Status.FINISHED)}) or ["NaN, inf or overflow"]
    return f"{count} of {total} without a score ({', '.join(reasons)})"


def estimate(row: Any) -> Estimate:
    """Return the mean of a row of :func:`summarize` with its variance."""
    if not row.seeds >= 2:
        return Estimate(row.mean, math.nan, 0)
    return Estimate(row.mean, row.sd**2 / row.seeds, row.seeds - 1)


def metrics_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return every metric of a frame as mean and standard deviation over seeds.

    Returns:
        Columns :data:`SUMMARIZED_COLUMNS`, see :func:`summarize`.

    Raises:
        UserError: different results for one cell and seed, or versions of the task.
    """
    rows = metrics_of(frame)
    refuse_versions(rows)
    rows = without_copies(of_one_data(rows))
    keep = ["unit", "higher_is_better", "primary"]
    return summarize(rows, ["source", *PLACE, "attention", "metric"], keep=keep)[SUMMARIZED_COLUMNS]


def seeds_of_rows(frame: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return the smallest number of seeds of any metric of each (pattern, attention); NaN for published results."""
    row = ["pattern", "attention"]
    counts: Any = summarize(metrics_of(frame), [*row, *PLACE[:-1], "metric"]).groupby(row)["seeds"].min().items()
    return dict(counts)


def worst_verified(frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the worst state of the code of the runs of each (pattern, attention): ``no``, ``unknown`` or ``yes``."""
    worst = frame["verified"].map(STATE_RANKS).groupby([frame["pattern"], frame["attention"]], sort=False).min()
    pairs: Any = worst.items()
    return {key: VERIFIED_STATES[rank] for key, rank in pairs}


def verification_notes(frame: pd.DataFrame) -> list[str]:
    """Return notes on unverified names in a table of results; published results are excluded."""
    worst = worst_verified(frame[frame["source"] != PUBLISHED])
    unknown = sorted({attention for (_, attention), state in worst.items() if state == "unknown"})
    lines = [UNVERIFIED_LEGEND] if "no" in worst.values() else []
    return lines + ([f"the results do not record whether these are verified: {listed(unknown)}"] if unknown else [])
