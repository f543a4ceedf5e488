"""Results that may be compared with each other: one preset, and the same real data or the same synthetic data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cab.files.sanitize import printable
from cab.patterns import pattern_rank
from cab.records.record import PLACE
from cab.records.results import PUBLISHED
from cab.scoring.selection import data_ranks, is_synthetic, other_data, rows_in_index
from cab.suite.cells import PRESET
from cab.suite.check import cells_that_fail

if TYPE_CHECKING:
    import pandas as pd

_TEXT = (*PLACE, "pattern", "attention", "preset", "metric", "unit", "revision")


@dataclass(frozen=True)
class Suite:
    """The results of one preset; ``synthetic`` says that they come from generated data.

    Nothing is ever averaged or ranked over two suites: a small preset and a full one, generated and real data, or
    different data under one name, measure different things. ``data_rank`` is 0 for the data of most runs, and where
    it is not, ``apart`` says what differs. ``uncounted`` says which cells are in no index, and why.
    """

    preset: str
    synthetic: bool
    results: pd.DataFrame
    data_rank: int = 0
    apart: str = ""
    uncounted: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        name = "Published numbers" if self.preset == PUBLISHED else f"Preset {self.preset}"
        apart = f", other data under the same name ({self.apart})" if self.apart else ""
        return name + (", synthetic data" if self.synthetic else "") + apart

    @property
    def data(self) -> str:
        """``real`` or ``synthetic``, and whether these are others than those of most runs."""
        return ("synthetic" if self.synthetic else "real") + (f", other {self.data_rank}" if self.data_rank else "")

    @property
    def key(self) -> str:
        other = f"-other{self.data_rank}" if self.data_rank else ""
        return self.preset + ("-synthetic" if self.synthetic else "") + other

    @property
    def datasets(self) -> list[str]:
        return sorted(self.results["dataset"].unique())

    @property
    def patterns(self) -> list[str]:
        """Patterns with results, in their order."""
        return sorted(self.results["pattern"].unique(), key=pattern_rank)


def split_suites(results: pd.DataFrame) -> list[Suite]:
    """The suites in ``results``: real data before synthetic, the largest preset first, other data last.

    Tasks that are no part of the index are in none.
    """
    suites = []
    results = rows_in_index(results)
    for (preset, synthetic), part in results.groupby(["preset", is_synthetic(results)], sort=False):
        ranks = data_ranks(part)
        for number, rows in part.groupby(ranks):
            rank = int(str(number))
            apart = printable(other_data(part, ranks, rank)) if rank else ""
            uncounted: tuple[str, ...] = ()
            if synthetic and preset == PRESET:
                rows, uncounted = without_cells_that_fail(rows)
            suites.append(Suite(str(preset), bool(synthetic), rows, rank, apart, uncounted))
    order = {preset: place for place, preset in enumerate(("paper", "mini", "smoke"))}
    return sorted(suites, key=lambda s: (s.synthetic, order.get(s.preset, len(order)), s.preset, s.data_rank))


def without_cells_that_fail(results: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """``results`` with no primary metric in cells that do not measure attention, and a line for each of these.

    A cell with no other one in its pattern stays as it is: it is averaged with nothing.
    """
    lines = []
    for (task, backbone, pattern), reason in cells_that_fail().items():
        of_pattern = results["pattern"] == pattern
        of_cell = of_pattern & (results["task"] == task) & (results["backbone"] == backbone)
        if of_cell.any() and (of_pattern & ~of_cell).any():
            results = results.assign(primary=results["primary"].astype(bool) & ~of_cell)
            lines.append(f"{task} {backbone} {pattern} is in no index: {reason}")
    return results, tuple(lines)


def printable_results(results: pd.DataFrame) -> pd.DataFrame:
    """``results`` with every name fit for a page, a table and a picture (see :func:`printable`)."""
    fit = {name: results[name].map({text: printable(text) for text in results[name].unique()}) for name in _TEXT}
    return results.assign(**fit)
