"""Tables of pages."""

from __future__ import annotations

from collections.abc import Iterable


def table(header: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; header cells are separated by vertical bars."""
    lines = [header, " | ".join(["---"] * len(header.split("|"))), *(" | ".join(map(str, row)) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)
