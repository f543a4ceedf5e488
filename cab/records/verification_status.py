"""Mark attentions in tables of results whose code has not passed `cab verify`.

The code of each run is looked up by its hash when a table is made, so verifying an attention later removes its mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cab.files.disk import listed
from cab.records.results import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd

UNVERIFIED_MARK = "†"
"""Precedes the name of an unverified attention."""
LEGEND = f"{UNVERIFIED_MARK} not verified: the code has not passed `cab verify` in this pattern"
_VERDICTS = ("no", "unknown", "yes")
"""Ordered from worst to best."""


def verdicts(results: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the worst verdict of the runs of each (pattern, attention): ``no``, ``unknown`` or ``yes``."""
    found: dict[tuple[str, str], str] = {}
    rows = results[["pattern", "attention", "verified"]].itertuples(index=False, name=None)
    for pattern, attention, own in dict.fromkeys(rows):
        found[pattern, attention] = min(own, found.get((pattern, attention), own), key=_VERDICTS.index)
    return found


def legend(results: pd.DataFrame) -> list[str]:
    """Return notes on unverified names in a table of ``results``; published results are excluded."""
    found = verdicts(results[results["preset"] != PUBLISHED])
    unknown = _names(found, "unknown")
    lines = [LEGEND] if _names(found, "no") else []
    return lines + ([f"the results do not record whether these are verified: {listed(unknown)}"] if unknown else [])


def _names(found: dict[tuple[str, str], str], wanted: str) -> list[str]:
    return sorted({attention for (_, attention), each in found.items() if each == wanted})


def mark_unverified(name: str, own: str) -> str:
    """Return the name, after a dagger if the verdict ``own`` is ``no``."""
    return f"{UNVERIFIED_MARK} {name}" if own == "no" else name
