"""Text of other people's files and commands, fit for a page, a table, a terminal and a spreadsheet."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def sanitize_text(value: object) -> str:
    """``value`` as text that XML, UTF-8 and a terminal take: control and broken characters become U+FFFD.

    Result files come from other people's jobs; a name in them may hold anything that JSON can spell.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(char) in ("Cc", "Cs", "Cf", "Cn") else char for char in text)


def sanitize_csv_cell(value: object) -> object:
    """``value``; a text printable, and after a quote where a spreadsheet would run it.

    It would run what begins like a formula and is no number.

    >>> csv_cell("=HYPERLINK(1)"), csv_cell("-0.5"), csv_cell("abc")
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
    """``table`` with :func:`sanitize_csv_cell` of every text in it and of the names of its columns."""
    texts = table.select_dtypes(include=["object", "string"]).columns
    safe = table.assign(**{name: table[name].map(sanitize_csv_cell, na_action="ignore") for name in texts})
    return safe.rename(columns={name: sanitize_csv_cell(name) for name in table.columns})


def listed(names: Iterable[str], *, shown: int = 3) -> str:
    """Return the first ``shown`` names, and how many more there are.

    >>> listed(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    names = list(names)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
