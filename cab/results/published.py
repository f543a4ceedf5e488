"""The published tables with their printed digits, as inputs of the audit."""

from __future__ import annotations

from typing import Any, NamedTuple

from cab.files.text_table import read_csv
from cab.records.results import PAPER_DIR
from cab.results.normalization import constants, population
from cab.results.rounding import Interval, deviation_of

SCRIPT_DIGITS = 0.5e-5
"""Half a unit in the last digit of the official script's constants."""


class Term(NamedTuple):
    """A metric of Table 3, corresponding to a column."""

    pattern: str
    task: str
    backbone: str
    dataset: str
    metric: str

    @classmethod
    def of(cls, row: dict[Any, Any]) -> Term:
        """Return the metric of a row of a published table."""
        return cls(*(str(row[name]) for name in cls._fields))


Scale = tuple[Interval, Interval]
"""Mean and standard deviation of a metric, each as the range of possible values."""


def rows(name: str) -> list[dict[str, str]]:
    """Read the rows of a published table, as printed."""
    return read_csv(PAPER_DIR / name)


def raw_metrics() -> dict[Term, dict[str, str]]:
    """Return the printed values of each metric of Table 3, by attention."""
    table: dict[Term, dict[str, str]] = {}
    for row in rows("results.csv"):
        if row["value"]:
            table.setdefault(Term.of(row), {})[row["attention"]] = row["value"]
    return table


def directions() -> dict[Term, bool]:
    """Return whether higher is better, for each metric."""
    return {Term.of(row): row["higher_is_better"] == "1" for row in rows("results.csv")}


def printed_scales() -> dict[Term, dict[str, str]]:
    """Return the printed ``mean`` and ``std`` of each metric (Tables 7-10)."""
    return {Term.of(row): {"mean": row["mean_table"], "std": row["std_table"]} for row in rows("normalization.csv")}


def members(term: Term, raw: dict[Term, dict[str, str]]) -> dict[str, str]:
    """Return the printed values over which mean and standard deviation are computed (Appendix E), by attention."""
    of_pattern = {name for other, values in raw.items() if other.pattern == term.pattern for name in values}
    return {name: raw[term][name] for name in population(of_pattern) if name in raw[term]}


def scales(normalization: str) -> dict[Term, Scale]:
    """Return mean and standard deviation of each metric, as wide as their printed digits allow."""
    if normalization == "results":
        raw = raw_metrics()
        texts = {term: members(term, raw).values() for term in raw}
        ranges = {term: [Interval.printed(text) for text in of_term] for term, of_term in texts.items()}
        return {term: (Interval.mean(values), deviation_of(values)) for term, values in ranges.items()}
    if normalization == "paper":
        printed = printed_scales().items()
        return {term: (Interval.printed(of["mean"]), Interval.printed(of["std"])) for term, of in printed}
    script = constants(normalization).to_dict("records")
    around = {Term.of(row): [Interval.around(row[name], SCRIPT_DIGITS) for name in ("mean", "std")] for row in script}
    return {term: (mean, std) for term, (mean, std) in around.items()}
