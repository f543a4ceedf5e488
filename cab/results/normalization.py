"""Normalization of metrics: mean and standard deviation from the paper or the given results (Appendices C and E)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cab.errors import UserError, unknown_name
from cab.records.record import COMPARISON_KEY
from cab.records.results import PAPER_DIR, PUBLISHED
from cab.results.selection import GENERATED, kinds_of_data

if TYPE_CHECKING:
    import pandas as pd

NORMALIZATIONS = {
    "results": "mean and sample standard deviation over the given results",
    "paper": "the constants printed in the paper",
    "official": "the constants of the official scoring script",
}
"""Sources of the mean and standard deviation of a metric."""
SOFTMAX_VARIANTS = ("vanilla", "eager", "flash")
"""Three implementations of softmax attention."""

MIN_ATTENTIONS = 2

NO_ATTENTION = "none"
"""The network without attention: scored, but excluded from mean and standard deviation."""

TERM = ["pattern", *COMPARISON_KEY, "metric"]
"""Key of a mean and standard deviation; the published tables have no ``config_variant``."""
PUBLISHED_TERM = [name for name in TERM if name != "config_variant"]


def default_normalization(results: pd.DataFrame) -> str:
    """Return ``official`` for own and published results together, which need the same constants, or ``results``."""
    return "official" if {True, False} <= set(results["preset"] == PUBLISHED) else "results"


def population(attentions: Iterable[str]) -> list[str]:
    """Return the attentions over which mean and standard deviation are computed, as in Appendix E.

    ``none`` is an ablation and excluded. Of ``vanilla``, ``eager`` and ``flash``, only the first one present is
    included, because they compute the same function (the paper excludes FlashAttention).
    """
    names = sorted(set(attentions) - {NO_ATTENTION})
    exact = next((name for name in SOFTMAX_VARIANTS if name in names), None)
    return [name for name in names if name not in SOFTMAX_VARIANTS or name == exact]


def terms(results: pd.DataFrame, normalization: str) -> pd.DataFrame:
    """Return the terms of every index, one row each, with columns :data:`TERM`, mean, std, weight.

    The index of an attention in a task is the sum of weight * (value - mean) / std, with the sign changed if lower is
    better. The rows include terms that the results lack; ``normalization`` is one of :data:`NORMALIZATIONS`.
    """
    if normalization not in NORMALIZATIONS:
        raise unknown_name("normalization", normalization, NORMALIZATIONS)
    if normalization == "results":
        return _terms_of_results(results)
    return _fixed_terms(results, constants(normalization))


def _terms_of_results(results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and sample standard deviation over the :func:`population` of each pattern, from means over seeds.

    A pattern and task requires every (data set, variant, backbone, metric) that any attention except ``none`` has
    there. The standard deviation is NaN if fewer than two attentions have a value, if all values are equal, and for
    generated data, whose score is K, except in a rehearsal.
    """
    results = results[results["attention"] != NO_ATTENTION]
    if results.empty:
        raise UserError(
            f"only '{NO_ATTENTION}' has results, which does not count for the normalization; run another attention"
        )
    table = results[TERM].drop_duplicates().reset_index(drop=True)
    table["weight"] = 1 / table.groupby(["pattern", "task"])["metric"].transform("size")
    members = results.groupby("pattern")["attention"].unique().map(population)
    is_member = [name in members[pattern] for pattern, name in results[["pattern", "attention"]].to_numpy()]
    seeds = results[is_member].groupby([*TERM, "attention"])["value"].agg(["mean", "count", "size"])
    means = seeds.loc[seeds["count"] == seeds["size"], "mean"]
    scale = means.groupby(level=TERM).agg(["mean", "std", "count"]).reset_index()
    scale.loc[scale["std"] <= 1e-12 * scale["mean"].abs(), "std"] = math.nan
    without = set(results.loc[kinds_of_data(results) == GENERATED, "dataset"])
    scale.loc[(scale["count"] < MIN_ATTENTIONS) | scale["dataset"].isin(without), "std"] = math.nan
    return table.merge(scale.drop(columns="count"), on=TERM, how="left")


def constants(normalization: str) -> pd.DataFrame:
    """Return the paper's constants, one row per metric: pattern, task, backbone, dataset, metric, mean, std.

    ``paper``: the digits of Tables 7-10. ``official``: the constants of the official scoring script, which have more
    digits; the mean of NS ROUGE-L, which contradicts the script's own data, is corrected (``corrections.csv``).
    """
    import pandas as pd

    table = pd.read_csv(PAPER_DIR / "normalization.csv")
    if normalization == "paper":
        table = table.assign(mean=table["mean_table"], std=table["std_table"])
    else:
        for row in corrections().to_dict("records"):
            where = (table[PUBLISHED_TERM] == [row[name] for name in PUBLISHED_TERM]).all(axis=1)
            table.loc[where, row["column"]] = row["corrected"]
    return table[[*PUBLISHED_TERM, "mean", "std"]]


def corrections() -> pd.DataFrame:
    """Return the constants of the official script that contradict its data, with corrected values and reasons."""
    import pandas as pd

    table = pd.read_csv(PAPER_DIR / "corrections.csv")
    return table[table["table"] == "normalization.csv"]


def _fixed_terms(results: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the constants as terms, one row per part where the results contain parts of an average."""
    import pandas as pd

    parts = pd.read_csv(PAPER_DIR / "parts.csv")
    table = table.assign(weight=1 / table.groupby(["pattern", "task"])["metric"].transform("size"))
    measured = set(results[TERM].itertuples(index=False, name=None))
    rows: list[tuple[Any, ...]] = []
    for row in table.to_dict("records"):
        averaged = parts[(parts["task"] == row["task"]) & (parts["dataset"] == row["dataset"])]
        names = [_term(row, row["dataset"], "")]
        if not averaged.empty and names[0] not in measured:
            names = [_term(row, *part) for part in averaged[["part", "config_variant"]].to_numpy()]
        for term in names:
            rows.append((*term, row["mean"], row["std"], row["weight"] / len(names)))
    if measured.isdisjoint(row[: len(TERM)] for row in rows):
        tasks = "; ".join(f"{pattern}: {' '.join(of.unique())}" for pattern, of in table.groupby("pattern")["task"])
        example = "/".join(filter(None, min(measured)))
        raise UserError(
            f"the paper has no constants for these results (for example {example}). It has constants for {tasks} "
            "(names as in results/paper/normalization.csv); use --normalization results"
        )
    fixed = pd.DataFrame(rows, columns=[*TERM, "mean", "std", "weight"])
    return fixed[fixed["pattern"].isin(results["pattern"])].reset_index(drop=True)


def _term(row: Mapping[Hashable, Any], dataset: str, config_variant: str) -> tuple[str, ...]:
    return (row["pattern"], row["task"], dataset, config_variant, row["backbone"], row["metric"])
