"""Table 13 of the paper compared with this implementation: claim and verdict for each model and pattern.

The claims are those of results/paper/taxonomy.csv, as printed. configs/taxonomy.csv maps each model to an attention and
explains claims that do not hold; everything else follows from the registry and results/verified.csv.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from cab.files.config_folders import CONFIGS
from cab.patterns import Pattern
from cab.records.results import PAPER_DIR
from cab.records.verified import COMMITTED, read_rows
from cab.registry.registries import ATTENTIONS

UNSOUND, UNDEFINED, LEFT_OUT = "unsound", "undefined", "left out"
"""Verdicts on a pattern that no attention supports, each with a reason."""
REPAIRED = "unsound as published"
"""Verdict on a published form that violates the pattern and is implemented in a corrected form."""
NOTE = "note"


@dataclass(frozen=True)
class Verdict:
    """One model in one pattern.

    Attributes:
        attention: its registered name, empty if it is not registered.
        claimed: ``yes`` or ``no``, as in Table 13.
        verdict: ``verified`` (passed `cab verify`), ``built`` (not verified), ``unsound as published`` (verified in a
            corrected form), ``unsound``, ``undefined``, ``left out``, ``not built``; empty without a claim. A pattern
            without a claim has the suffix ``, not claimed``.
        complexity_claimed, complexity: complexity in Table 13 and in the registry.
        reason: explanation of the verdict.
    """

    model: str
    attention: str
    pattern: str
    claimed: str
    verdict: str
    complexity_claimed: str
    complexity: str
    reason: str


COLUMNS = tuple(field.name for field in fields(Verdict))


def taxonomy() -> Iterator[Verdict]:
    """Yield every model of Table 13 in every pattern, in the order of the table."""
    names, reasons = _known()
    verified = {(row.attention, row.pattern) for row in read_rows(COMMITTED)}
    for row in read_table():
        model, name = row["model"], names[row["model"]]
        entry = ATTENTIONS.get(name) if name in ATTENTIONS.names() else None
        built = {str(pattern) for pattern in entry.patterns} if entry else set()
        for pattern in map(str, Pattern):
            verdict, reason = reasons.get((model, pattern), ("", ""))
            claimed = row[pattern] == "1"
            if pattern in built:
                passed = "verified" if (name, pattern) in verified else "built"
                verdict = REPAIRED if verdict == REPAIRED and passed == "verified" else passed
                verdict += "" if claimed else ", not claimed"
            elif verdict in ("", NOTE, REPAIRED):
                verdict = "not built" if claimed else ""
            yield Verdict(
                *(model, name if entry else "", pattern, "yes" if claimed else "no", verdict),
                *(row["complexity"], entry.complexity if entry else "", reason),
            )


def read_table() -> list[dict[str, str]]:
    """Read Table 13 as printed."""
    with (PAPER_DIR / "taxonomy.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _known(path: Path = CONFIGS / "taxonomy.csv") -> tuple[dict[str, str], dict[tuple[str, str], tuple[str, str]]]:
    """Return the attention of each model, and verdict and reason of models in patterns."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["model"]: row["attention"] for row in rows}
    return names, {(r["model"], r["pattern"]): (r["verdict"], r["reason"]) for r in rows if r["pattern"]}


def rows() -> list[list[str]]:
    """Return the table of `cab paper taxonomy`, header first."""
    return [list(COLUMNS), *(list(astuple(verdict)) for verdict in taxonomy())]
