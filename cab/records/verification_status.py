"""Whether the attention behind a number was verified, and how a table says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cab.files.sanitize import listed
from cab.records.results import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

UNVERIFIED_MARK = "†"
"""Stands behind the name of an attention that was not verified."""
LEGEND = f"{UNVERIFIED_MARK} its code had not passed `cab verify` in this pattern"
_VERDICTS = ("no", "unknown", "yes")
"""The worst first."""


def verdicts(results: pd.DataFrame) -> dict[tuple[str, str], str]:
    """By pattern and name: ``no`` where a run was not verified, ``unknown`` where one does not say, or ``yes``."""
    found: dict[tuple[str, str], str] = {}
    rows = results[["pattern", "attention", "verified"]].itertuples(index=False, name=None)
    for pattern, attention, verified in dict.fromkeys(rows):
        verdict = {True: "yes", False: "no"}.get(verified, "unknown")
        found[pattern, attention] = min(verdict, found.get((pattern, attention), verdict), key=_VERDICTS.index)
    return found


def legend(results: pd.DataFrame) -> list[str]:
    """What a reader must know of the names in a table of ``results``; of published numbers nothing is known."""
    found = verdicts(results[results["preset"] != PUBLISHED])
    unknown = _names(found, "unknown")
    lines = [LEGEND] if _names(found, "no") else []
    return lines + ([f"not recorded whether their code had passed `cab verify`: {listed(unknown)}"] if unknown else [])


def _names(found: dict[tuple[str, str], str], verdict: str) -> list[str]:
    return sorted({attention for (_, attention), said in found.items() if said == verdict})


def mark_unverified(name: str, verdict: str) -> str:
    """The name, with the sign of one that was not verified."""
    return f"{name} {UNVERIFIED_MARK}" if verdict == "no" else name
