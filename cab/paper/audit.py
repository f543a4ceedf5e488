"""Audit of the paper: recomputes its tables from its raw metrics and compares every printed number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cab.paper import published
from cab.paper.published import SCRIPT_DIGITS, Scale, Term
from cab.paper.rounding import CONTRADICTS, UNKNOWN, Interval, deviation_of, normalized, range_of, unit, verdict
from cab.records.results import PAPER_DIR, load_results
from cab.scoring.efficiency_length import published_length
from cab.scoring.index import AVERAGE, score_table
from cab.scoring.normalization import NO_ATTENTION, SOFTMAX_VARIANTS, corrections, population

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["table", "pattern", "task", "attention", "printed", "recomputed", "low", "high", "verdict"]
TOLERANCE = 0.0015
"""Absolute tolerance for indices and R2; constants must agree in all digits, lengths exactly."""

_TABLE_OF_PATTERN = {"NS": "7", "CS": "8", "NC": "9", "CC": "10"}


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
    verdict: str
    note: str = ""


def audit(*, normalization: str = "official") -> pd.DataFrame:
    """Recompute Tables 3, 6-10, 11 and 12 from the raw metrics of Table 3 and the published costs.

    Tables 6 (index of a task), 3 (``task=all``: the average) and 12 (index of the best efficient attention and of
    softmax attention) are recomputed under ``normalization``. Tables 7-10 (mean and standard deviation of a metric) are
    recomputed over the attentions named in Appendix E, and Table 11 (efficiency length) from the published costs.

    Args:
        normalization: see :func:`cab.scoring.score_table`.

    Returns:
        Columns table, pattern, task, attention, printed, recomputed, low, high, verdict, note. ``low`` and ``high``
        bound the recomputed value if every input was rounded or truncated to its printed digits. The paper does both:
        one network has MSD 2.199 in Table 3a and 2.198 in 3b, and standard deviation 0.2750 is 0.274 in Table 7.
        ``verdict`` is ``agrees`` (indices and R2 within 0.0015, constants in all digits), ``explained by rounding``
        (printed number between low and high), ``contradicts`` or ``cannot be recomputed``. Table ``script`` lists
        constants of the official scoring script that contradict Table 3.
    """
    import pandas as pd

    indices = _indices(normalization)
    rows = [*_index_rows(indices, normalization), *_constant_rows(), *_length_rows(), *_benefit_rows(indices)]
    return pd.DataFrame(rows, columns=AuditRow._fields)


Key = tuple[str, str, str]
"""Pattern, task, attention."""
Index = dict[Key, tuple[float, Interval]]


def _indices(normalization: str) -> Index:
    """Return the index of each pattern, task and attention recomputed from Table 3, and its possible range."""
    table = score_table(load_results(PAPER_DIR / "results.csv"), normalization=normalization).dropna(subset=["index"])
    exact = {tuple(key): ci for *key, ci in table[["pattern", "task", "attention", "index"]].itertuples(index=False)}
    scales, better = published.scales(normalization), published.directions()
    terms: dict[tuple[str, str, str], list[Interval]] = {}
    for term, values in published.raw_metrics().items():
        scale = scales[term]
        for attention, text in values.items():
            bounds = normalized(Interval.printed(text), scale.mean, scale.std, higher_is_better=better[term])
            terms.setdefault((term.pattern, term.task, attention), []).append(bounds)
    possible = {key: Interval.mean(intervals) for key, intervals in terms.items()}
    for pattern, task, attention in exact:
        if task == AVERAGE:
            parts = [possible[key] for key in terms if (key[0], key[2]) == (pattern, attention)]
            possible[(pattern, AVERAGE, attention)] = Interval.mean(parts)
    return {key: (ci, possible[key]) for key, ci in exact.items()}


def _row(table: str, key: Key, printed: str, recomputed: float, possible: Interval, tolerance: float) -> AuditRow:
    return AuditRow(
        table, *key, printed, recomputed, *possible, verdict(printed, recomputed, possible, tolerance=tolerance)
    )


def _unknown(table: str, key: Key, printed: str, note: str) -> AuditRow:
    return AuditRow(table, *key, printed, math.nan, math.nan, math.nan, UNKNOWN, note)


def _index_rows(indices: Index, normalization: str) -> Iterator[AuditRow]:
    """Yield the rows of Table 6 and the averages of Table 3."""
    printed = published.rows("compositional_index.csv")
    scales = published.scales(normalization)
    raw = published.raw_metrics()
    for line in printed:
        key = (line["pattern"], line["task"], line["attention"])
        row = _row("3" if line["task"] == AVERAGE else "6", key, line["index"], *indices[key], TOLERANCE)
        if row.verdict == CONTRADICTS:
            row = row._replace(note=_average_note(key, printed) or _needed_note(row, raw, scales))
        yield row


def _average_note(key: tuple[str, str, str], printed: list[dict[str, str]]) -> str:
    pattern, task, attention = key
    if task != AVERAGE:
        return ""
    parts = [
        float(line["index"])
        for line in printed
        if (line["pattern"], line["attention"]) == (pattern, attention) and line["task"] != AVERAGE
    ]
    return f"the mean of the indices printed in Table 6 is {np.mean(parts):.3f}"


def _needed_note(row: AuditRow, raw: dict[Term, dict[str, str]], scales: dict[Term, Scale]) -> str:
    """Return, for a task with a single metric, the raw value that the printed index requires."""
    terms = [term for term in raw if (term.pattern, term.task) == (row.pattern, row.task)]
    if len(terms) != 1:
        return ""
    mean, std = (sum(bounds) / 2 for bounds in (scales[terms[0]].mean, scales[terms[0]].std))
    sign = 1 if published.directions()[terms[0]] else -1
    needed = mean + sign * float(row.printed) * std
    return f"the printed index requires {terms[0].metric} {needed:.2f}; Table 3 has {raw[terms[0]][row.attention]}"


def _constant_rows() -> Iterator[AuditRow]:
    """Yield the rows of Tables 7-10, and the known errors of the official script."""
    raw = published.raw_metrics()
    for term, texts in published.printed_scales().items():
        for name, printed in texts.items():
            row = _constant_row(term, name, printed, raw[term])
            if row.verdict == CONTRADICTS:
                others = [_constant_row(term, name, printed, raw[term], without=one) for one in population(raw[term])]
                fitting = [other.attention for other in others if other.verdict != CONTRADICTS]
                row = row._replace(note=f"agrees when {' or '.join(fitting)} is excluded" if fitting else "")
            yield row._replace(attention="")
    for line in corrections().to_dict("records"):
        term, name, reason = Term(*(str(line[name]) for name in Term._fields)), str(line["column"]), str(line["reason"])
        recomputed = _constant_row(term, name, str(line["published"]), raw[term]).recomputed
        key = (term.pattern, _place(term, name), "")
        exact = Interval.around(recomputed, SCRIPT_DIGITS)  # the script computes its constants from the printed numbers
        yield _row("script", key, str(line["published"]), recomputed, exact, SCRIPT_DIGITS)._replace(note=reason)


def _constant_row(term: Term, name: str, printed: str, values: dict[str, str], *, without: str = "") -> AuditRow:
    members = published.members(values, without=without)
    numbers, intervals = [float(text) for text in members], [Interval.printed(text) for text in members]
    if name == "mean":
        recomputed, possible = float(np.mean(numbers)), Interval.mean(intervals)
    else:
        recomputed, possible = float(np.std(numbers, ddof=1)), deviation_of(intervals)
    key = (term.pattern, _place(term, name), without)
    return _row(_TABLE_OF_PATTERN[term.pattern], key, printed, recomputed, possible, unit(printed) / 2)


def _place(term: Term, name: str) -> str:
    return f"{term.task} {term.backbone} {term.dataset} {term.metric} {name}"


def _length_rows() -> Iterator[AuditRow]:
    """Yield the rows of Table 11 (efficiency length and R2); raw costs were published for a single method."""
    costs = published.rows("efficiency_cost.csv")
    measured = {row["attention"] for row in costs}
    columns = {"time": "time_ms", "memory": "memory_mib"}
    for line in published.rows("efficiency_length.csv"):
        for resource, quantity in itertools.product(columns, ("length", "r2")):
            key = ("NS", f"{resource} {quantity}", line["attention"])
            printed = line[f"{resource}_{quantity}"]
            if line["attention"] in measured:
                recomputed, possible = _length(costs, line["attention"], resource, columns[resource], quantity)
                yield _row(
                    "11", key, printed, recomputed, possible, TOLERANCE if quantity == "r2" else unit(printed) / 2
                )
            else:
                yield _unknown("11", key, printed, "raw costs are not published")


def _length(
    costs: list[dict[str, str]], attention: str, resource: str, column: str, quantity: str
) -> tuple[float, Interval]:
    """Return the length or R2 of an attention, and its range for costs within their printed digits."""
    ours, theirs = ([row for row in costs if row["attention"] == name] for name in (attention, "vanilla"))
    lengths = [np.array([float(row["length"]) for row in rows]) for rows in (ours, theirs)]
    values = np.array([float(row[column]) for row in (*ours, *theirs)])
    reach = np.full(len(values), min(unit(row[column]) for row in costs) / 2)  # the file omits trailing zeros

    def answer(moved: np.ndarray) -> float:
        curves = (lengths[0], moved[: len(ours)]), (lengths[1], moved[len(ours) :])
        length, r2, *_ = published_length(*curves, resource=resource)
        return float(length if quantity == "length" else r2)

    return answer(values), range_of(answer, values, reach)


def _benefit_rows(indices: Index) -> Iterator[AuditRow]:
    """Yield the rows of Table 12: indices of the best efficient attention, softmax attention and no attention in NS."""
    for line in published.rows("benefit_of_attention.csv"):
        of_task = {key[2]: index for key, index in indices.items() if key[:2] == ("NS", line["task"])}
        efficient = {name: index for name, index in of_task.items() if name not in (*SOFTMAX_VARIANTS, NO_ATTENTION)}
        best = max(efficient, key=lambda name: efficient[name][0], default="")
        for column, name in (("efficient", best), ("vanilla", "vanilla"), ("without", NO_ATTENTION)):
            key = ("NS", line["task"], column)
            if name in of_task:
                row = _row("12", key, line[column], *of_task[name], TOLERANCE)
                yield row._replace(note=f"the best in Table 3 is {name}" if row.verdict == CONTRADICTS else "")
            elif line[column]:
                yield _unknown("12", key, line[column], "raw metrics are not published")
