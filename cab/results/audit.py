"""Audit of the paper: recomputes its tables from its raw metrics and compares every printed number.

Interval arithmetic on the printed digits gives the range of values that a recomputed number can have.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cab.records.files import PAPER_DIR
from cab.results.cells import NO_ATTENTION
from cab.results.efficiency_length import published_length
from cab.results.index import index_table
from cab.results.load import AVERAGE, load_results
from cab.results.normalization import OF_RESULTS, OFFICIAL, PAPER, SOFTMAX_VARIANTS, constants, corrections, population
from cab.results.published import rows

if TYPE_CHECKING:
    import pandas as pd

AGREES = "agrees"
EXPLAINED = "explained by rounding"
CONTRADICTS = "contradicts"
NOT_RECOMPUTED = "cannot be recomputed"
AGREEMENTS = (AGREES, EXPLAINED, CONTRADICTS, NOT_RECOMPUTED)
SLACK = 0.0015
"""Absolute tolerance for indices and R2; constants must agree in all digits, lengths exactly."""
SCRIPT_DIGITS = 0.5e-5
"""Half a unit in the last digit of the official script's constants."""
TABLE_OF_PATTERN = {"NS": "7", "CS": "8", "NC": "9", "CC": "10"}
PUBLISHED_COST_COLUMNS = {"time": "time_ms", "memory": "memory_mib"}


# --- interval arithmetic ----------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """The numbers from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def around(cls, center: float, reach: float) -> Interval:
        """Return the interval of half-width ``reach`` around ``center``."""
        return cls(center - reach, center + reach)

    @classmethod
    def printed(cls, text: str) -> Interval:
        """Return the values that can be rounded or truncated to the digits of ``text``; the paper's tables do both."""
        value, step = float(text), unit(text)
        return cls(value - step / 2, value + step) if value >= 0 else cls(value - step, value + step / 2)

    @classmethod
    def mean(cls, intervals: Sequence[Interval]) -> Interval:
        """Return the range of the mean of values in ``intervals``."""
        return cls(*(float(np.mean(bounds)) for bounds in zip(*intervals, strict=True)))


def unit(text: str) -> float:
    """Return one unit in the last printed digit: 0.01 for ``3.40``."""
    return 10.0 ** -len(text.partition(".")[2])


def normalized(value: Interval, mean: Interval, std: Interval, *, higher_is_better: bool) -> Interval:
    """Return the range of (value - mean) / std, with the sign changed if lower is better."""
    above = (value.low - mean.high, value.high - mean.low)
    low, high = above if higher_is_better else (-above[1], -above[0])
    return Interval(low / (std.high if low >= 0 else std.low), high / (std.low if high >= 0 else std.high))


def deviation_of(values: Sequence[Interval]) -> Interval:
    """Return bounds of the sample standard deviation (ddof 1).

    Errors of at most h in n values change it by at most their own sample standard deviation, h * sqrt(n / (n - 1)).
    """
    centers = [(value.low + value.high) / 2 for value in values]
    reach = max(value.high - value.low for value in values) / 2 * math.sqrt(len(values) / (len(values) - 1))
    std = float(np.std(centers, ddof=1))
    return Interval(max(std - reach, 0.0), std + reach)


def range_of(function: Callable[[np.ndarray], float], values: np.ndarray, reach: np.ndarray) -> Interval:
    """Return the range of a smooth ``function`` for inputs within ``reach`` of ``values``, to first order."""
    steps = np.diag(reach)
    slope = np.array([function(values + step) - function(values - step) for step in steps])
    corner = np.sign(slope) * reach
    return Interval(function(values - corner), function(values + corner))


def agreement(printed: str, recomputed: float, possible: Interval, *, tolerance: float) -> str:
    """Compare a printed number with the recomputed one, whose range is ``possible`` by the digits of its inputs."""
    if abs(float(printed) - recomputed) <= tolerance:
        return AGREES
    low, high = Interval.printed(printed)
    return EXPLAINED if possible.low <= high and low <= possible.high else CONTRADICTS


# --- rows of the audit ------------------------------------------------------------------------------------------------


class AuditRow(NamedTuple):
    """A printed number, its recomputed value, and the range of values consistent with the printed digits."""

    table: str
    pattern: str
    task: str
    attention: str
    printed: str
    recomputed: float
    low: float
    high: float
    agreement: str
    note: str = ""


class Term(NamedTuple):
    """A metric of Table 3, corresponding to a column."""

    pattern: str
    task: str
    backbone: str
    dataset: str
    metric: str

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Term:
        """Return the metric of a row of a published table."""
        return cls(*(str(row[name]) for name in cls._fields))


AUDIT_COLUMNS = list(AuditRow._fields[:-1])
Key = tuple[str, str, str]
"""Pattern, task, attention."""
Index = dict[Key, tuple[float, Interval]]


def audit(*, normalization: str = OFFICIAL) -> pd.DataFrame:
    """Recompute the published tables from the raw metrics of Table 3 and the published costs.

    Returns the fields of :class:`AuditRow`. ``low`` and ``high`` bound the recomputed value if every input was rounded
    or truncated to its printed digits: the paper does both (MSD 2.199 in Table 3a is 2.198 in 3b). Table ``script``
    lists constants of the official scoring script that contradict Table 3; Table 3 with ``task=all`` is the average.

    Args:
        normalization: of the indices, see :func:`cab.results.index.index_table`.
    """
    import pandas as pd

    indices = _indices(normalization)
    parts = (_index_rows(indices), _constant_rows(), _length_rows(), _benefit_rows(indices))
    return pd.DataFrame(itertools.chain.from_iterable(parts), columns=AuditRow._fields)


def _row(table: str, key: Key, printed: str, made: float, possible: Interval, tolerance: float = SLACK) -> AuditRow:
    return AuditRow(table, *key, printed, made, *possible, agreement(printed, made, possible, tolerance=tolerance))


def _unknown(table: str, key: Key, printed: str, note: str) -> AuditRow:
    return AuditRow(table, *key, printed, math.nan, math.nan, math.nan, NOT_RECOMPUTED, note)


def _indices(normalization: str) -> Index:
    """Return the index of each pattern, task and attention recomputed from Table 3, and its possible range."""
    scales = _scales(normalization)
    terms: dict[Key, list[Interval]] = {}
    for term, values in _raw_metrics().items():
        for attention, text in values.items():
            bounds = normalized(Interval.printed(text), *scales[term], higher_is_better=_directions()[term])
            terms.setdefault((term.pattern, term.task, attention), []).append(bounds)
    of_tasks = {key: Interval.mean(intervals) for key, intervals in terms.items()}
    table = index_table(load_results(PAPER_DIR / "results.csv"), normalization=normalization).dropna(subset=["index"])
    indices = {}
    for pattern, task, attention, index in table[["pattern", "task", "attention", "index"]].itertuples(index=False):
        tasks = [bounds for (p, _, a), bounds in of_tasks.items() if (p, a) == (pattern, attention)]
        possible = Interval.mean(tasks) if task == AVERAGE else of_tasks[pattern, task, attention]
        indices[pattern, task, attention] = index, possible
    return indices


def _index_rows(indices: Index) -> Iterator[AuditRow]:
    """Yield the rows of Table 6 and the averages of Table 3."""
    printed = rows("compositional_index.csv")
    for line in printed:
        key = (line["pattern"], line["task"], line["attention"])
        row = _row("3" if line["task"] == AVERAGE else "6", key, line["index"], *indices[key])
        if row.agreement == CONTRADICTS and row.task == AVERAGE:
            same = [x for x in printed if (x["pattern"], x["attention"]) == (row.pattern, row.attention)]
            mean = np.mean([float(x["index"]) for x in same if x["task"] != AVERAGE])
            row = row._replace(note=f"the mean of the indices printed in Table 6 is {mean:.3f}")
        yield row


def _constant_rows() -> Iterator[AuditRow]:
    """Yield the rows of Tables 7-10, and the known errors of the official script."""
    for scale in rows("normalization.csv"):
        term = Term.of(scale)
        values = _members(term)
        for name in ("mean", "std"):
            row = _constant_row(term, name, scale[f"{name}_table"], values)
            if row.agreement == CONTRADICTS:
                fitting = _fitting(term, name, row.printed, values)
                row = row._replace(note=f"agrees when {fitting} is excluded" if fitting else "")
            yield row
    for line in corrections().to_dict("records"):
        term, name, printed = Term.of(line), str(line["column"]), str(line["published"])
        row = _constant_row(term, name, printed, _members(term))
        exact = Interval.around(row.recomputed, SCRIPT_DIGITS)  # the script computes from the printed numbers
        key = (row.pattern, row.task, "")
        yield _row("script", key, printed, row.recomputed, exact, SCRIPT_DIGITS)._replace(note=str(line["reason"]))


def _fitting(term: Term, name: str, printed: str, values: dict[str, str]) -> str:
    """Return the attentions without one of which the printed constant agrees."""
    others = {one: {other: text for other, text in values.items() if other != one} for one in values}
    made = {one: _constant_row(term, name, printed, of_others) for one, of_others in others.items()}
    return " or ".join(one for one, row in made.items() if row.agreement != CONTRADICTS)


def _constant_row(term: Term, name: str, printed: str, values: dict[str, str]) -> AuditRow:
    """Compare a printed mean or standard deviation with that of ``values``."""
    numbers, intervals = [float(text) for text in values.values()], list(map(Interval.printed, values.values()))
    if name == "mean":
        recomputed, possible = float(np.mean(numbers)), Interval.mean(intervals)
    else:
        recomputed, possible = float(np.std(numbers, ddof=1)), deviation_of(intervals)
    key = (term.pattern, " ".join([*term[1:], name]), "")
    return _row(TABLE_OF_PATTERN[term.pattern], key, printed, recomputed, possible, unit(printed) / 2)


def _length_rows() -> Iterator[AuditRow]:
    """Yield the rows of Table 11 (efficiency length and R2); raw costs were published for a single method."""
    costs = rows("efficiency_cost.csv")
    measured = {row["attention"] for row in costs}
    for line in rows("efficiency_length.csv"):
        for resource in PUBLISHED_COST_COLUMNS:
            for quantity in ("length", "r2"):
                key = ("NS", f"{resource} {quantity}", line["attention"])
                printed = line[f"{resource}_{quantity}"]
                if line["attention"] in measured:
                    tolerance = SLACK if quantity == "r2" else unit(printed) / 2
                    yield _row("11", key, printed, *_length(costs, line["attention"], resource, quantity), tolerance)
                elif reading := line.get(f"{resource}_{quantity}_figure2b"):
                    possible = Interval.around(float(reading), float(line[f"{resource}_error"]))
                    yield _row("11", key, printed, float(reading), possible, unit(printed) / 2)
                else:
                    yield _unknown("11", key, printed, "raw costs are not published")


def _length(costs: Sequence[dict[str, str]], attention: str, resource: str, quantity: str) -> tuple[float, Interval]:
    """Return the length or R2 of an attention, and its range for costs within their printed digits."""
    column = PUBLISHED_COST_COLUMNS[resource]
    ours, theirs = ([row for row in costs if row["attention"] == name] for name in (attention, "vanilla"))
    lengths = [np.array([float(row["length"]) for row in of]) for of in (ours, theirs)]
    values = np.array([float(row[column]) for row in (*ours, *theirs)])
    reach = np.full(len(values), min(unit(row[column]) for row in costs) / 2)  # the file omits trailing zeros

    def answer(moved: np.ndarray) -> float:
        curves = (lengths[0], moved[: len(ours)]), (lengths[1], moved[len(ours) :])
        length, r2, *_ = published_length(*curves, resource=resource)
        return float(length if quantity == "length" else r2)

    return answer(values), range_of(answer, values, reach)


def _benefit_rows(indices: Index) -> Iterator[AuditRow]:
    """Yield the rows of Table 12: indices of the best efficient attention, softmax attention and no attention in NS."""
    for line in rows("benefit_of_attention.csv"):
        of_task = {key[2]: index for key, index in indices.items() if key[:2] == ("NS", line["task"])}
        efficient = {name: index for name, index in of_task.items() if name not in (*SOFTMAX_VARIANTS, NO_ATTENTION)}
        best = max(efficient, key=lambda name: efficient[name][0], default="")
        for column, name in (("efficient", best), ("vanilla", "vanilla"), ("without", NO_ATTENTION)):
            key = ("NS", line["task"], column)
            if name in of_task:
                row = _row("12", key, line[column], *of_task[name])
                yield row._replace(note=f"the best in Table 3 is {name}" if row.agreement == CONTRADICTS else "")
            elif line[column]:
                yield _unknown("12", key, line[column], "raw metrics are not published")


# --- printed digits ---------------------------------------------------------------------------------------------------


@functools.cache
def _raw_metrics() -> dict[Term, dict[str, str]]:
    """Return the printed values of each metric of Table 3, by attention, without its slips."""
    table: dict[Term, dict[str, str]] = {}
    for row in rows("results.csv"):
        if row["value"]:
            table.setdefault(Term.of(row), {})[row["attention"]] = row["value"]
    for slip in corrections("results.csv").to_dict("records"):
        table[Term.of(slip)][slip["attention"]] = str(slip["corrected"])
    return table


@functools.cache
def _directions() -> dict[Term, bool]:
    """Return whether higher is better, for each metric."""
    return {Term.of(row): row["higher_is_better"] == "1" for row in rows("results.csv")}


def _members(term: Term) -> dict[str, str]:
    """Return the printed values over which mean and standard deviation are computed (Appendix E), by attention."""
    raw = _raw_metrics()
    of_pattern = {name for other, values in raw.items() if other.pattern == term.pattern for name in values}
    return {name: raw[term][name] for name in population(of_pattern) if name in raw[term]}


def _scales(normalization: str) -> dict[Term, tuple[Interval, Interval]]:
    """Return mean and standard deviation of each metric, as wide as their printed digits allow."""
    if normalization == OF_RESULTS:
        ranges = {term: list(map(Interval.printed, _members(term).values())) for term in _raw_metrics()}
        return {term: (Interval.mean(values), deviation_of(values)) for term, values in ranges.items()}
    if normalization == PAPER:
        printed = rows("normalization.csv")
        return {Term.of(r): (Interval.printed(r["mean_table"]), Interval.printed(r["std_table"])) for r in printed}
    script, half = constants(normalization).to_dict("records"), SCRIPT_DIGITS
    return {Term.of(r): (Interval.around(r["mean"], half), Interval.around(r["std"], half)) for r in script}
