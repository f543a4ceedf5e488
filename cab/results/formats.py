"""Cells of tables: the text of each kind of number, which is the same in every form, and five signs of scores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cab.files.disk import sanitize_text
from cab.files.numbers import is_finite
from cab.files.text_table import ABSENT
from cab.records.verified import UNVERIFIED_LEGEND, UNVERIFIED_MARK
from cab.results.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK, Verdict

Fields = Mapping[Any, Any]
"""A row of a data frame."""
WORSE, UNDECIDED, LEARNING = "▼", "?", "≥"
SIGN_LEGEND = {
    WORSE: f"{WORSE} worse than softmax attention: the bound is below 98",
    UNDECIDED: f"{UNDECIDED} undecided",
    ONE_SEED_MARK: ONE_SEED_LEGEND,
    LEARNING: f"{LEARNING} still learning when the budget ended",
    UNVERIFIED_MARK: UNVERIFIED_LEGEND,
}
"""The five signs, with their only explanation."""
VERDICT_SIGNS = {
    Verdict.WORSE: (f" {WORSE}", "worse"),
    Verdict.UNDECIDED: (f" {UNDECIDED}", ""),
    Verdict.ONE_SEED: (ONE_SEED_MARK, "single"),
    **dict.fromkeys((Verdict.SOLVED, Verdict.EQUIVALENT, Verdict.BETTER), ("", "match")),
}
"""Sign and tint of each verdict."""
INFINITY_KEY = 1e18
"""Sort key of infinity."""
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {char: f"\\{char}" for char in "&%$#_{}"}
LATEX |= {WORSE: r"$\bigtriangledown$", UNVERIFIED_MARK: r"\dag{}", "≥": r"$\geq$", "≤": r"$\leq$", "±": r"$\pm$"}
LATEX |= {"∞": r"$\infty$", "²": "$^2$", "<": r"\textless{}", ">": r"\textgreater{}"}


@dataclass(frozen=True)
class TableCell:
    """A cell of a table.

    Attributes:
        value: sort key; None for a text or a missing value.
        hint: remark on the value, or why it is missing.
        signs: those of :data:`SIGN_LEGEND` in the text.
        style: tint of the page, and ``best`` for bold text; words separated by spaces.
    """

    text: str = ABSENT
    value: float | None = None
    hint: str = ""
    signs: str = ""
    style: str = ""


def plain(value: float, decimals: int = 3) -> str:
    """Format a number with thousands separators, without a negative zero."""
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def number(value: float | None, decimals: int = 3, reason: str = "") -> TableCell:
    """Return the cell of a number; one that is None or NaN is missing for a reason."""
    if value == math.inf:
        return TableCell("∞", INFINITY_KEY)
    if not is_finite(value):
        return TableCell(hint=reason)
    return TableCell(plain(value, decimals), float(value))


def numbers(values: Iterable[float | None], decimals: int = 3, reason: str = "") -> list[TableCell]:
    """Return the cells of numbers."""
    return [number(value, decimals, reason) for value in values]


def texts(values: Iterable[object]) -> list[TableCell]:
    """Return the cells of texts."""
    return [TableCell(sanitize_text(value) or ABSENT) for value in values]


def mean(value: float | None, deviation: float | None = None, reason: str = "", *, note: str = "") -> TableCell:
    """Return the cell of a metric: mean ± standard deviation over seeds, which is NaN for a single seed."""
    if not is_finite(value):
        return TableCell(hint=reason)
    spread = f" ± {deviation:.2g}" if is_finite(deviation) else ""
    return TableCell(f"{value:.5g}{spread}{note}", float(value))


def index(value: float, low: float, high: float, reason: str = "", *, is_single: bool = False) -> TableCell:
    """Return the cell of an index with its interval, or with the sign of a single seed."""
    cell = number(value, reason=reason)
    if cell.value is None:
        return cell
    if is_single:
        return replace(cell, text=cell.text + ONE_SEED_MARK, signs=ONE_SEED_MARK)
    return replace(cell, text=f"{cell.text} {interval(low, high)}".rstrip())


def interval(low: float, high: float, decimals: int = 3) -> str:
    """Format an interval; empty if it is undefined."""
    return f"[{plain(low, decimals)}, {plain(high, decimals)}]" if is_finite(low + high) else ""


def gain(row: Fields) -> TableCell:
    """Return the cell of K in a row of :func:`cab.results.retained.gains_table`, with bound and signs.

    A solved cell shows in how many seeds, and a bound above 100 is not shown.
    """
    if not is_finite(row["K"]):
        return TableCell(hint=row["note"] if isinstance(row["note"], str) else "")
    sign, tint = VERDICT_SIGNS.get(row["verdict"], ("", ""))
    style = " ".join(filter(None, (tint, "best" * bool(row.get("best")))))
    if row["verdict"] == Verdict.SOLVED:
        return TableCell(f"{row['reached_90']:.0f} of {row['seeds']:.0f} solved", row["K"], row["note"], style=style)
    lower = f"{LEARNING} " if "unfinished" in row["note"] else ""
    bound = f" (≤ {row['bound']:.0f})" if row["bound"] <= 100 else ""
    return TableCell(f"{lower}{plain(row['K'], 0)}{bound}{sign}", row["K"], row["note"], f"{lower}{sign}", style)


def decimals_for(values: Iterable[float]) -> int:
    """Return the number of decimals that shows four digits of the largest value."""
    largest = max((abs(value) for value in values if is_finite(value)), default=0)
    return min(max(3 - math.floor(math.log10(largest)), 0), 6) if largest else 3


def markdown(text: str) -> str:
    """Escape the special characters of Markdown outside of code."""
    pieces = re.split(r"(`[^`|]+`)", text)
    pieces[::2] = [re.sub(r"([\\`*_{}\[\]<>#|$])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def latex(text: str) -> str:
    """Escape the special characters of LaTeX, and replace signs by commands and the minus of a number by math."""
    escaped = "".join(LATEX.get(char, char) for char in sanitize_text(text))
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)
