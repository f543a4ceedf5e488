"""Results that may be compared with each other: one preset, and either real data or synthetic data."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cab.patterns import pattern_rank
from cab.record import PLACE
from cab.results import PUBLISHED
from cab.scoring.selection import is_synthetic

if TYPE_CHECKING:
    import pandas as pd

_TEXT = (*PLACE, "pattern", "attention", "preset", "metric", "unit", "revision")


@dataclass(frozen=True)
class Suite:
    """The results of one preset; ``synthetic`` says that they come from generated data.

    Nothing is ever averaged or ranked over two suites: a small preset and a full one, or generated and real data,
    measure different things.
    """

    preset: str
    synthetic: bool
    results: pd.DataFrame

    @property
    def heading(self) -> str:
        name = "Published numbers" if self.preset == PUBLISHED else f"Preset {self.preset}"
        return name + (", synthetic data" if self.synthetic else "")

    @property
    def key(self) -> str:
        return self.preset + ("-synthetic" if self.synthetic else "")

    @property
    def datasets(self) -> list[str]:
        return sorted(self.results["dataset"].unique())

    @property
    def patterns(self) -> list[str]:
        """Patterns with results, in their order."""
        return sorted(self.results["pattern"].unique(), key=pattern_rank)


def split_suites(results: pd.DataFrame) -> list[Suite]:
    """The suites in ``results``: real data before synthetic, the largest preset first."""
    parts = results.groupby(["preset", is_synthetic(results)], sort=False)
    suites = [Suite(str(preset), bool(synthetic), part) for (preset, synthetic), part in parts]
    rank = {preset: place for place, preset in enumerate(("paper", "mini", "smoke"))}
    return sorted(suites, key=lambda suite: (suite.synthetic, rank.get(suite.preset, len(rank)), suite.preset))


def printable_results(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` with every name fit for a page, a table and a picture (see :func:`printable`)."""
    fit = {name: results[name].map({text: printable(text) for text in results[name].unique()}) for name in _TEXT}
    return results.assign(**fit)


def printable(value: object) -> str:
    """``value`` as text that XML, UTF-8 and a terminal take: control and broken characters become U+FFFD.

    Result files come from other people's jobs; a name in them may hold anything that JSON can spell.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(char) in ("Cc", "Cs", "Cf", "Cn") else char for char in text)
