"""Partition of results into comparable suites: one preset with the same real or synthetic data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_text
from cab.patterns import pattern_rank
from cab.records.record import COMPARISON_KEY
from cab.records.results import PUBLISHED
from cab.scoring.selection import data_ranks, is_synthetic, other_data, rows_in_index
from cab.suite.check import without_invalid_cells

if TYPE_CHECKING:
    import pandas as pd

_TEXT = (*COMPARISON_KEY, "pattern", "attention", "preset", "metric", "unit", "revision")


@dataclass(frozen=True)
class Suite:
    """The results of one preset on one version of the data.

    Scores are never averaged or ranked across suites, because presets, real and synthetic data, and different data
    under one name are not comparable.

    Attributes:
        preset: name of the preset.
        synthetic: whether the data are generated.
        results: the results.
        data_rank: 0 for the data of most runs, larger for other data under the same name.
        apart: difference from the data of most runs.
        uncounted: cells excluded from the index, with reasons.
    """

    preset: str
    synthetic: bool
    results: pd.DataFrame
    data_rank: int = 0
    apart: str = ""
    uncounted: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """Heading on the page."""
        name = "Published numbers" if self.preset == PUBLISHED else f"Preset {self.preset}"
        apart = f", other data under the same name ({self.apart})" if self.apart else ""
        return name + (", synthetic data" if self.synthetic else "") + apart

    @property
    def data(self) -> str:
        """``real`` or ``synthetic``, with the rank of other data under the same name."""
        return ("synthetic" if self.synthetic else "real") + (f", other {self.data_rank}" if self.data_rank else "")

    @property
    def key(self) -> str:
        """Identifier of the suite."""
        other = f"-other{self.data_rank}" if self.data_rank else ""
        return self.preset + ("-synthetic" if self.synthetic else "") + other

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets."""
        return sorted(self.results["dataset"].unique())

    @property
    def patterns(self) -> list[str]:
        """Patterns with results, in the order of the paper."""
        return sorted(self.results["pattern"].unique(), key=pattern_rank)


def split_suites(results: pd.DataFrame) -> list[Suite]:
    """Return the suites in ``results``: real data before synthetic, the largest preset first, other data last.

    Tasks outside the index are excluded.
    """
    suites = []
    results = rows_in_index(results)
    for (preset, synthetic), part in results.groupby(["preset", is_synthetic(results)], sort=False):
        ranks = data_ranks(part)
        for number, rows in part.groupby(ranks):
            rank = int(str(number))
            apart = sanitize_text(other_data(part, ranks, rank)) if rank else ""
            rows, uncounted = without_invalid_cells(rows)
            suites.append(Suite(str(preset), bool(synthetic), rows, rank, apart, uncounted))
    order = {preset: place for place, preset in enumerate(("paper", "mini", "smoke"))}
    return sorted(suites, key=lambda s: (s.synthetic, order.get(s.preset, len(order)), s.preset, s.data_rank))


def printable_results(results: pd.DataFrame) -> pd.DataFrame:
    """Return ``results`` with all names sanitized for page, table and figure (see :func:`sanitize_text`)."""
    fit = {name: results[name].map({text: sanitize_text(text) for text in results[name].unique()}) for name in _TEXT}
    return results.assign(**fit)
