"""Results that may be compared with each other: one preset, and either real data or synthetic data."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SYNTHETIC = "synthetic"
PUBLISHED = "published"
_TEXT = ("task", "dataset", "variant", "backbone", "pattern", "attention", "preset", "metric", "unit", "revision")
_PRESET_ORDER = ("paper", "mini", "smoke")


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
        """Patterns with results, in the order NS, CS, NC, CC; whatever else a record may claim comes last."""
        known = ["NS", "CS", "NC", "CC"]
        return sorted(
            self.results["pattern"].unique(), key=lambda name: (known.index(name) if name in known else 9, name)
        )


def split_suites(results: pd.DataFrame) -> list[Suite]:
    """The suites in ``results``: real data before synthetic, the largest preset first."""
    synthetic = results["dataset"] == SYNTHETIC
    suites = [
        Suite(str(preset), bool(generated), part)
        for (preset, generated), part in results.groupby(["preset", synthetic], sort=False)
    ]
    return sorted(suites, key=lambda suite: (suite.synthetic, _preset_rank(suite.preset), suite.preset))


def _preset_rank(preset: str) -> int:
    return _PRESET_ORDER.index(preset) if preset in _PRESET_ORDER else len(_PRESET_ORDER)


def printable_results(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` with every name fit for a page, a table and a picture (see :func:`printable`)."""
    return results.assign(**{column: _mapped(results[column]) for column in _TEXT})


def _mapped(column: pd.Series) -> pd.Series:
    return column.map({value: printable(value) for value in column.unique()})


def printable(value: object) -> str:
    """``value`` as text that XML, UTF-8 and a terminal take: control and broken characters become U+FFFD.

    Result files come from other people's jobs; a name in them may hold anything that JSON can spell.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(char) in ("Cc", "Cs", "Cf", "Cn") else char for char in text)
