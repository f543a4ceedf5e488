"""Table 13 of the paper compared with this implementation: claim and verdict for each model and pattern.

The claims are those of results/paper/taxonomy.csv, as printed. configs/taxonomy.csv maps each model to an attention and
explains claims that do not hold; everything else follows from the registry and results/verified.csv.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cab.files.text_table import read_csv
from cab.patterns import Pattern
from cab.records.verified import COMMITTED, read_rows
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import CONFIGS
from cab.results.published import rows

UNSOUND, UNDEFINED, LEFT_OUT = "unsound", "undefined", "left out"
"""Verdicts on a pattern that no attention supports, each with a reason."""
REPAIRED = "unsound as published"
"""Verdict on a published form that violates the pattern and is implemented in a corrected form."""
NOTE = "note"


class TaxonomyRow(NamedTuple):
    """One model in one pattern.

    Attributes:
        attention: its registered name, empty if it is not registered.
        claimed: ``yes`` or ``no``, as in Table 13.
        verdict: ``verified`` (passed `cab verify`), ``built`` (not verified), ``unsound as published`` (verified in a
            corrected form), ``unsound``, ``undefined``, ``left out``, ``not built``; empty without a claim. A pattern
            without a claim has the suffix ``, not claimed``.
        complexity_claimed: complexity in Table 13.
        complexity: complexity in the registry.
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


def taxonomy() -> Iterator[TaxonomyRow]:
    """Yield every model of Table 13 in every pattern, in the order of the table."""
    names, reasons = known_verdicts()
    verified = {(row.attention, row.pattern) for row in read_rows(COMMITTED)}
    for row in rows("taxonomy.csv"):
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
            yield TaxonomyRow(
                *(model, name if entry else "", pattern, "yes" if claimed else "no", verdict),
                *(row["complexity"], entry.complexity if entry else "", reason),
            )


def known_verdicts() -> tuple[dict[str, str], dict[tuple[str, str], tuple[str, str]]]:
    """Return the attention of each model, and verdict and reason of models in patterns (configs/taxonomy.csv)."""
    table = read_csv(CONFIGS / "taxonomy.csv")
    reasons = {(row["model"], row["pattern"]): (row["verdict"], row["reason"]) for row in table if row["pattern"]}
    return {row["model"]: row["attention"] for row in table}, reasons
