"""Normalization of metrics: mean and standard deviation from the paper or the given results (Appendices C and E)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cab.errors import UserError, unknown_name
from cab.records.files import PAPER_DIR
from cab.records.record import COMPARISON_KEY
from cab.results.cells import NO_ATTENTION
from cab.results.load import REAL
from cab.results.published import PUBLISHED_TERM
from cab.results.summarize import summarize

if TYPE_CHECKING:
    import pandas as pd

OFFICIAL, PAPER, OF_RESULTS = "official", "paper", "results"
NORMALIZATIONS = {
    OFFICIAL: "the constants of the official scoring script",
    PAPER: "the constants printed in the paper",
    OF_RESULTS: "mean and sample standard deviation over the given results",
}
"""Sources of the mean and standard deviation of a metric."""
SOFTMAX_VARIANTS = ("vanilla", "eager", "flash")
"""Three implementations of softmax attention."""
MIN_ATTENTIONS = 2
TERM = ["pattern", *COMPARISON_KEY, "metric"]
"""Key of a mean and standard deviation; the published tables have no ``config_variant``."""


def normalization_of(frame: pd.DataFrame, named: str | None = None) -> str:
    """Return the normalization of the results of one source: the one that is named, or else the default.

    The default is ``official`` in every command. The paper has no constants for generated data: a rehearsal has those
    of its own results. UserError for an unknown name.
    """
    if named is not None and named not in NORMALIZATIONS:
        raise unknown_name("normalization", named, NORMALIZATIONS)
    return named or OFFICIAL if (frame["data"] == REAL).any() else OF_RESULTS


def population(attentions: Iterable[str]) -> list[str]:
    """Return the attentions over which mean and standard deviation are computed, as in Appendix E.

    ``none`` is an ablation and excluded. Of ``vanilla``, ``eager`` and ``flash``, only the first one present is
    included, because they compute the same function (the paper excludes FlashAttention).
    """
    names = sorted(set(attentions) - {NO_ATTENTION})
    exact = next((name for name in SOFTMAX_VARIANTS if name in names), None)
    return [name for name in names if name not in SOFTMAX_VARIANTS or name == exact]


def constants(normalization: str) -> pd.DataFrame:
    """Return the paper's constants, one row per metric: pattern, task, backbone, dataset, metric, mean, std.

    ``paper``: the digits of Tables 7-10. ``official``: the constants of the official scoring script, which have more
    digits; the mean of NS ROUGE-L, which contradicts the script's own data, is corrected (``corrections.csv``).
    """
    import pandas as pd

    table = pd.read_csv(PAPER_DIR / "normalization.csv")
    if normalization == PAPER:
        table = table.assign(mean=table["mean_table"], std=table["std_table"])
    else:
        for row in corrections().to_dict("records"):
            where = (table[PUBLISHED_TERM] == [row[name] for name in PUBLISHED_TERM]).all(axis=1)
            table.loc[where, row["column"]] = row["corrected"]
    return table[[*PUBLISHED_TERM, "mean", "std"]]


def corrections(file: str = "normalization.csv") -> pd.DataFrame:
    """Return the slips of the official script's constants, or of Table 3 (``results.csv``), corrected, with reasons."""
    import pandas as pd

    table = pd.read_csv(PAPER_DIR / "corrections.csv", keep_default_na=False)
    return table[table["table"] == file]


def corrected(printed: pd.DataFrame) -> pd.DataFrame:
    """Return the printed metrics of Table 3 without its slips, as indices are recomputed from them."""
    for row in corrections("results.csv").to_dict("records"):
        key = [*PUBLISHED_TERM, "attention"]
        is_slip = (printed[key] == [row[name] for name in key]).all(axis=1)
        printed = printed.assign(value=printed["value"].mask(is_slip, row["corrected"]))
    return printed


def scales(values: pd.DataFrame) -> pd.DataFrame:
    """Return mean and sample standard deviation of each metric over the :func:`population` of each pattern.

    They are computed from means over seeds, of attentions all of whose seeds have a value. The standard deviation is
    NaN for fewer than :data:`MIN_ATTENTIONS` attentions, and if all values are equal.

    Args:
        values: one row per metric, attention and seed, with the columns :data:`TERM`, attention and value.
    """
    others = values[values["attention"] != NO_ATTENTION]
    if others.empty:
        raise UserError(
            f"only '{NO_ATTENTION}' has results, which does not count for the normalization; run another attention"
        )
    members = others.groupby("pattern")["attention"].unique().map(population)
    is_member = [name in members[pattern] for pattern, name in others[["pattern", "attention"]].to_numpy()]
    means = summarize(others[is_member], [*TERM, "attention"])
    whole = means[means["missing"] == ""]
    table = whole.groupby(TERM, sort=False)["mean"].agg(["mean", "std", "count"])
    is_flat = (table["std"] <= 1e-12 * table["mean"].abs()) | (table["count"] < MIN_ATTENTIONS)
    return table.assign(std=table["std"].mask(is_flat, math.nan)).drop(columns="count").reset_index()
