"""Sanitize untrusted text for HTML pages, tables, terminals and spreadsheets."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


CONTROL = ("Cc", "Cs", "Cf", "Cn", "Zl", "Zp")
"""Unicode categories of characters that are replaced: control and format characters, surrogates, line separators."""


def sanitize_text(value: object) -> str:
    """Return ``value`` as text that is valid in XML, UTF-8 and a terminal; other characters become U+FFFD.

    Names in result files can contain anything that JSON can encode.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(char) in CONTROL else char for char in text)


def sanitize_csv_cell(value: object) -> object:
    """Sanitize text, and put a quote before text that a spreadsheet would execute as a formula.

    >>> sanitize_csv_cell("=HYPERLINK(1)"), sanitize_csv_cell("-0.5"), sanitize_csv_cell("abc")
    ("'=HYPERLINK(1)", '-0.5', 'abc')
    """
    if not isinstance(value, str):
        return value
    text = sanitize_text(value)
    if len(text) < 2 or text[0] not in "=+-@":
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def sanitize_table(table: pd.DataFrame) -> pd.DataFrame:
    """Apply :func:`sanitize_csv_cell` to all texts and column names of a table."""
    texts = table.select_dtypes(include=["object", "string"]).columns
    safe = table.assign(**{name: table[name].map(sanitize_csv_cell, na_action="ignore") for name in texts})
    return safe.rename(columns={name: sanitize_csv_cell(name) for name in table.columns})


def listed(names: Iterable[str], *, shown: int = 3) -> str:
    """Return the first ``shown`` names, and the number of the others.

    >>> listed(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    names = list(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
