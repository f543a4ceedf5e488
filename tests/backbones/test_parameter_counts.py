"""The networks of preset `paper` have exactly the parameters behind Tables 16 to 19."""

from __future__ import annotations

import pytest

from cab import Pattern
from cab.config import read_table
from cab.parameters import count_parameters
from cab.registry import ATTENTIONS
from cab.scoring.published import rows

CELLS = {
    (row["pattern"], row["backbone"], row["attention"]): int(row["params"]) for row in rows("parameters_reproduced.csv")
}


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_counts(cell: tuple[str, str, str]) -> None:
    assert count_parameters([cell]) == {cell: CELLS[cell]}


def test_table5_names_attentions_patterns_and_options_that_exist() -> None:
    for row in read_table("table5"):
        entry = ATTENTIONS.get(row["attention"])
        assert row["option"] in entry.options, row
        assert Pattern(row["pattern"]) in entry.patterns, row
