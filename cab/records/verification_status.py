"""Mark attentions in tables of results whose code has not passed `cab verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cab.files.sanitize import listed
from cab.records.results import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

UNVERIFIED_MARK = "†"
"""Follows the name of an unverified attention."""
LEGEND = f"{UNVERIFIED_MARK} not verified: the code had not passed `cab verify` in this pattern"
_VERDICTS = ("no", "unknown", "yes")
"""Ordered from worst to best."""


def verdicts(results: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the worst verdict of the runs of each (pattern, attention): ``no``, ``unknown`` or ``yes``."""
    found: dict[tuple[str, str], str] = {}
    rows = results[["pattern", "attention", "verified"]].itertuples(index=False, name=None)
    for pattern, attention, verified in dict.fromkeys(rows):
        verdict = {True: "yes", False: "no"}.get(verified, "unknown")
        found[pattern, attention] = min(verdict, found.get((pattern, attention), verdict), key=_VERDICTS.index)
    return found


def legend(results: pd.DataFrame) -> list[str]:
    """Return notes on unverified names in a table of ``results``; published results are excluded."""
    found = verdicts(results[results["preset"] != PUBLISHED])
    unknown = _names(found, "unknown")
    lines = [LEGEND] if _names(found, "no") else []
    return lines + ([f"the results do not record whether these are verified: {listed(unknown)}"] if unknown else [])


def _names(found: dict[tuple[str, str], str], verdict: str) -> list[str]:
    return sorted({attention for (_, attention), each in found.items() if each == verdict})


def mark_unverified(name: str, verdict: str) -> str:
    """Return the name, with a dagger if the verdict is ``no``."""
    return f"{name} {UNVERIFIED_MARK}" if verdict == "no" else name
