"""Audit of the paper: recomputes its tables from its raw metrics and compares every printed number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cab.records.results import PAPER_DIR, load_results
from cab.results import published
from cab.results.efficiency_length import published_length
from cab.results.index import AVERAGE, score_table
from cab.results.normalization import NO_ATTENTION, SOFTMAX_VARIANTS, corrections
from cab.results.published import SCRIPT_DIGITS, Term
from cab.results.rounding import CONTRADICTS, UNKNOWN, Interval, deviation_of, normalized, range_of, unit, verdict

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 0.0015
"""Absolute tolerance for indices and R2; constants must agree in all digits, lengths exactly."""
TABLE_OF_PATTERN = {"NS": "7", "CS": "8", "NC": "9", "CC": "10"}
COST_COLUMNS = {"time": "time_ms", "memory": "memory_mib"}


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


COLUMNS = list(AuditRow._fields[:-1])
Key = tuple[str, str, str]
"""Pattern, task, attention."""
Index = dict[Key, tuple[float, Interval]]
Required = dict[tuple[Term, str], str]
"""Value of Table 3 that a contradicting index requires, by metric and attention."""


def audit(*, normalization: str = "official") -> pd.DataFrame:
    """Recompute the published tables from the raw metrics of Table 3 and the published costs.

    Returns the fields of :class:`AuditRow`. ``low`` and ``high`` bound the recomputed value if every input was rounded
    or truncated to its printed digits: the paper does both (MSD 2.199 in Table 3a is 2.198 in 3b). Table ``script``
    lists constants of the official scoring script that contradict Table 3; Table 3 with ``task=all`` is the average.

    Args:
        normalization: of the indices, see :func:`cab.results.index.score_table`.
    """
    import pandas as pd

    indices = _indices(normalization)
    required = _required_values(indices, normalization)
    rows = [
        *_index_rows(indices, required),
        *_constant_rows(required),
        *_length_rows(),
        *_benefit_rows(indices),
    ]
    return pd.DataFrame(rows, columns=AuditRow._fields)


def _row(
    table: str, key: Key, printed: str, recomputed: float, possible: Interval, tolerance: float = TOLERANCE
) -> AuditRow:
    judgment = verdict(printed, recomputed, possible, tolerance=tolerance)
    return AuditRow(table, *key, printed, recomputed, *possible, judgment)


def _unknown(table: str, key: Key, printed: str, note: str) -> AuditRow:
    return AuditRow(table, *key, printed, math.nan, math.nan, math.nan, UNKNOWN, note)


def _indices(normalization: str) -> Index:
    """Return the index of each pattern, task and attention recomputed from Table 3, and its possible range."""
    scales, better = published.scales(normalization), published.directions()
    terms: dict[Key, list[Interval]] = {}
    for term, values in published.raw_metrics().items():
        for attention, text in values.items():
            bounds = normalized(Interval.printed(text), *scales[term], higher_is_better=better[term])
            terms.setdefault((term.pattern, term.task, attention), []).append(bounds)
    of_tasks = {key: Interval.mean(intervals) for key, intervals in terms.items()}
    table = score_table(load_results(PAPER_DIR / "results.csv"), normalization=normalization).dropna(subset=["index"])
    indices = {}
    for pattern, task, attention, index in table[["pattern", "task", "attention", "index"]].itertuples(index=False):
        tasks = [bounds for (p, _, a), bounds in of_tasks.items() if (p, a) == (pattern, attention)]
        possible = Interval.mean(tasks) if task == AVERAGE else of_tasks[pattern, task, attention]
        indices[pattern, task, attention] = index, possible
    return indices


def _required_values(indices: Index, normalization: str) -> Required:
    """Return the values that the contradicting indices of Table 6 require, for tasks with a single metric."""
    raw, better, scales = published.raw_metrics(), published.directions(), published.scales(normalization)
    required: Required = {}
    for line in published.rows("compositional_index.csv"):
        key = (line["pattern"], line["task"], line["attention"])
        terms = [term for term in raw if (term.pattern, term.task) == key[:2]]
        if len(terms) == 1 and _row("6", key, line["index"], *indices[key]).verdict == CONTRADICTS:
            [term] = terms
            mean, std = (sum(bounds) / 2 for bounds in scales[term])
            needed = mean + (1 if better[term] else -1) * float(line["index"]) * std
            required[term, line["attention"]] = f"{needed:.2f}"
    return required


def _index_rows(indices: Index, required: Required) -> Iterator[AuditRow]:
    """Yield the rows of Table 6 and the averages of Table 3."""
    raw = published.raw_metrics()
    printed = published.rows("compositional_index.csv")
    for line in printed:
        key = (line["pattern"], line["task"], line["attention"])
        row = _row("3" if line["task"] == AVERAGE else "6", key, line["index"], *indices[key])
        if row.verdict == CONTRADICTS and row.task == AVERAGE:
            same = [x for x in printed if (x["pattern"], x["attention"]) == (row.pattern, row.attention)]
            mean = np.mean([float(x["index"]) for x in same if x["task"] != AVERAGE])
            row = row._replace(note=f"the mean of the indices printed in Table 6 is {mean:.3f}")
        elif row.verdict == CONTRADICTS:
            for (term, attention), needed in required.items():
                if (term.pattern, term.task, attention) == key:
                    text = f"the printed index requires {term.metric} {needed}; Table 3 has {raw[term][attention]}"
                    row = row._replace(note=text)
        yield row


def _constant_rows(required: Required) -> Iterator[AuditRow]:
    """Yield the rows of Tables 7-10, and the known errors of the official script."""
    raw = published.raw_metrics()
    for term, texts in published.printed_scales().items():
        values = published.members(term, raw)
        needed = {attention: text for (of, attention), text in required.items() if of == term}
        for name, printed in texts.items():
            row = _constant_row(term, name, printed, values)
            if row.verdict == CONTRADICTS:
                fitting = _fitting(term, name, printed, values | needed)
                also = "".join(f" and {one} has {text}, which Table 6 requires" for one, text in needed.items())
                row = row._replace(note=f"agrees when {fitting} is excluded{also}" if fitting else "")
            yield row
    for line in corrections().to_dict("records"):
        term, name, printed = Term.of(line), str(line["column"]), str(line["published"])
        row = _constant_row(term, name, printed, published.members(term, raw))
        exact = Interval.around(row.recomputed, SCRIPT_DIGITS)  # the script computes from the printed numbers
        key = (row.pattern, row.task, "")
        yield _row("script", key, printed, row.recomputed, exact, SCRIPT_DIGITS)._replace(note=str(line["reason"]))


def _fitting(term: Term, name: str, printed: str, values: dict[str, str]) -> str:
    """Return the attentions without one of which the printed constant agrees."""
    others = {one: {other: text for other, text in values.items() if other != one} for one in values}
    rows = {one: _constant_row(term, name, printed, of_others) for one, of_others in others.items()}
    return " or ".join(one for one, row in rows.items() if row.verdict != CONTRADICTS)


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
    costs = published.rows("efficiency_cost.csv")
    measured = {row["attention"] for row in costs}
    for line in published.rows("efficiency_length.csv"):
        for resource in COST_COLUMNS:
            for quantity in ("length", "r2"):
                key = ("NS", f"{resource} {quantity}", line["attention"])
                printed = line[f"{resource}_{quantity}"]
                if line["attention"] in measured:
                    tolerance = TOLERANCE if quantity == "r2" else unit(printed) / 2
                    yield _row("11", key, printed, *_length(costs, line["attention"], resource, quantity), tolerance)
                else:
                    yield _unknown("11", key, printed, "raw costs are not published")


def _length(costs: Sequence[dict[str, str]], attention: str, resource: str, quantity: str) -> tuple[float, Interval]:
    """Return the length or R2 of an attention, and its range for costs within their printed digits."""
    column = COST_COLUMNS[resource]
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
                row = _row("12", key, line[column], *of_task[name])
                yield row._replace(note=f"the best in Table 3 is {name}" if row.verdict == CONTRADICTS else "")
            elif line[column]:
                yield _unknown("12", key, line[column], "raw metrics are not published")
