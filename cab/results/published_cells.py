"""The cells of Table 3: configuration under preset `paper`, known differences, and their expected effect on the score.

The differences are listed in results/paper/differences.csv, where an empty key applies to all values, and explained in
`docs/paper/discrepancies.md`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from cab.registry.registries import ATTENTIONS
from cab.registry.tables import tuned_options
from cab.results.published import rows

KEYS = ("task", "pattern", "backbone", "attention")
DIRECTIONS = ("better", "worse", "either")


class TableCell(NamedTuple):
    """A cell of Table 3: the results of one attention on one published data set."""

    pattern: str
    task: str
    backbone: str
    dataset: str
    attention: str

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The data sets and variants that the published value averages, such as ``etth1`` in ``M`` and ``S``."""
        of_set = [row for row in rows("parts.csv") if (row["task"], row["dataset"]) == (self.task, self.dataset)]
        return [(row["part"], row["config_variant"]) for row in of_set] or [(self.dataset, "")]


@functools.cache
def table3() -> tuple[TableCell, ...]:
    """Return the cells of Table 3 in its order: the list from which suite, plan and side-by-side table are made."""
    return tuple(dict.fromkeys(TableCell(*(row[name] for name in TableCell._fields)) for row in rows("results.csv")))


class PublishedCell(NamedTuple):
    """A cell of Table 3: its options that differ from the constructor's defaults, and known differences of the setup.

    ``direction`` is the expected effect of the differences on the score.
    """

    pattern: str
    task: str
    backbone: str
    dataset: str
    attention: str
    printed: str
    options: str
    differs: str
    direction: str


def published_cells() -> Iterator[PublishedCell]:
    """Yield the cells in the order of Table 3."""
    printed = {TableCell(*(row[name] for name in TableCell._fields)) for row in rows("results.csv") if row["value"]}
    differences = rows("differences.csv")
    for published in table3():
        pattern, task, backbone, dataset, attention = published
        cell = {"task": task, "pattern": pattern, "backbone": backbone, "attention": attention}
        differs = [row for row in differences if all(row[key] in ("", value) for key, value in cell.items())]
        directions = [name for name in DIRECTIONS[:2] if name in {row["direction"] for row in differs}]
        yield PublishedCell(
            *(pattern, task, backbone, dataset, attention, "yes" if published in printed else "no"),
            options=_options(task, backbone, pattern, attention),
            differs="; ".join(row["what"] for row in differs),
            direction=" or ".join(directions) or "either",
        )


def _options(task: str, backbone: str, pattern: str, attention: str) -> str:
    entry = ATTENTIONS.get(attention)
    if pattern not in entry.patterns:
        return "not supported"
    tuned = tuned_options(task, backbone, pattern, attention)
    return " ".join(f"{name}={value}" for name, value in tuned.items() if value != entry.options[name])
