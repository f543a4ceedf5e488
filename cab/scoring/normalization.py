"""What a metric is measured against: mean and deviation, from the paper or from the given results (appendices C, E)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cab.errors import UserError, unknown_name
from cab.records.record import PLACE
from cab.records.results import PAPER_DIR
from cab.scoring.selection import is_synthetic

if TYPE_CHECKING:
    import pandas as pd

NORMALIZATIONS = {
    "results": "mean and sample deviation over the given results",
    "paper": "the constants printed in the paper",
    "official": "the constants of the official scoring script",
}
"""What a metric can be measured against."""
EXACT = ("vanilla", "eager", "flash")
"""One function, softmax attention, computed in three ways."""

ABLATION = "none"
"""No attention at all: scored like the others, but not part of what they are measured against."""

TERM = ["pattern", *PLACE, "metric"]
"""What has a mean and a deviation; ``config_variant`` is no column of the published tables."""
PUBLISHED_TERM = [name for name in TERM if name != "config_variant"]


def population(attentions: Iterable[str]) -> list[str]:
    """The attentions whose mean and deviation are the scale, as in appendix E.

    ``none`` is an ablation and stays out; of ``vanilla``, ``eager`` and ``flash`` the first one that is there counts,
    since softmax attention would else be counted several times (the paper leaves FlashAttention out).
    """
    names = sorted(set(attentions) - {ABLATION})
    exact = next((name for name in EXACT if name in names), None)
    return [name for name in names if name not in EXACT or name == exact]


def terms(results: pd.DataFrame, normalization: str) -> pd.DataFrame:
    """The numbers that an index is made of, one row each: columns :data:`TERM`, mean, std, weight.

    The index of an attention in a task is the sum of weight * (value - mean) / std, the sign turned where lower is
    better. ``pattern`` and ``task`` hold every term that the index needs, whether or not the results have it.

    Args:
        results: checked results of primary metrics, one preset.
        normalization: ``results``, ``paper`` (Tables 7-10 as printed) or ``official`` (see :func:`constants`).
    """
    if normalization not in NORMALIZATIONS:
        raise unknown_name("normalization", normalization, NORMALIZATIONS)
    return own_terms(results) if normalization == "results" else _fixed_terms(results, constants(normalization))


def own_terms(results: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample deviation over the :func:`population` of each pattern, over the means of its seeds.

    A pattern and task needs every (data set, variant, backbone, metric) that any attention but ``none`` has there.
    The deviation is NaN where fewer than two attentions have a number, or all have the same.
    """
    wanted = results[results["attention"] != ABLATION]
    if wanted.empty:
        raise UserError(f"only '{ABLATION}' has results, which is no attention to measure against: run another one")
    table = wanted[TERM].drop_duplicates().reset_index(drop=True)
    table["weight"] = 1 / table.groupby(["pattern", "task"])["metric"].transform("size")
    members = wanted.groupby("pattern")["attention"].unique().map(population)
    counted = {(pattern, name) for pattern, names in members.items() for name in names}
    inside = [pair in counted for pair in zip(wanted["pattern"], wanted["attention"], strict=True)]
    seeds = wanted[inside].groupby([*TERM, "attention"])["value"].agg(["mean", "count", "size"])
    means = seeds.loc[seeds["count"] == seeds["size"], "mean"]
    scale = means.groupby(level=TERM).agg(["mean", "std"]).reset_index()
    scale.loc[scale["std"] <= 1e-12 * scale["mean"].abs(), "std"] = math.nan
    return table.merge(scale, on=TERM, how="left")


def constants(normalization: str) -> pd.DataFrame:
    """The paper's constants, a row a metric: pattern, task, backbone, dataset, metric, mean, std (names as published).

    ``paper``: the digits of Tables 7-10. ``official``: those of the official scoring script, which has more digits;
    where its own data contradict it (the mean of NS ROUGE-L), the corrected value of ``corrections.csv``.
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
    """Constants of the official script that its own data contradict, with the right ones, and why."""
    import pandas as pd

    table = pd.read_csv(PAPER_DIR / "corrections.csv")
    return table[table["table"] == "normalization.csv"]


def _fixed_terms(results: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The constants as terms; where the results hold the parts that a number averages (``parts.csv``), a row a part."""
    import pandas as pd

    if is_synthetic(results).any():
        raise UserError(
            "results on synthetic data cannot be scored with the paper's constants, which were measured on real data: "
            "use --normalization results, or --dataset to leave them out"
        )
    parts = pd.read_csv(PAPER_DIR / "parts.csv")
    table = table.assign(weight=1 / table.groupby(["pattern", "task"])["metric"].transform("size"))
    seen = {_lower(term): term for term in results[TERM].drop_duplicates().itertuples(index=False, name=None)}
    spelling = {_lower((name,)): name for name in results["task"].unique()}
    rows: list[tuple[Any, ...]] = []
    for row in table.to_dict("records"):
        own = parts[(parts["task"] == row["task"]) & (parts["dataset"] == row["dataset"])]
        pieces = [(row["dataset"], "")]
        if not own.empty and _lower(_term(row, *pieces[0])) not in seen:
            pieces = list(own[["part", "config_variant"]].itertuples(index=False, name=None))
        row["task"] = spelling.get(_lower((row["task"],)), row["task"])
        for piece in pieces:
            term = _term(row, *piece)
            rows.append((*seen.get(_lower(term), term), row["mean"], row["std"], row["weight"] / len(pieces)))
    found = pd.DataFrame(rows, columns=[*TERM, "mean", "std", "weight"])
    if seen.keys().isdisjoint(_lower(row[: len(TERM)]) for row in rows):
        known = "; ".join(f"{pattern}: {' '.join(own.unique())}" for pattern, own in table.groupby("pattern")["task"])
        example = "/".join(filter(None, min(seen.values())))
        raise UserError(
            f"the paper has no constants for any of these results, as {example}. It has some for {known} "
            "(names and data sets as in results/paper/normalization.csv); use --normalization results"
        )
    return found[found["pattern"].isin(results["pattern"])].reset_index(drop=True)


def _term(row: Mapping[Hashable, Any], dataset: str, config_variant: str) -> tuple[str, ...]:
    return (row["pattern"], row["task"], dataset, config_variant, row["backbone"], row["metric"])


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)
