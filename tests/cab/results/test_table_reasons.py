"""Why values of a table are missing."""

from __future__ import annotations

from cab.results.formats import Cell
from cab.results.table import Column, Row, Table


def test_each_reason_is_given_once_with_all_that_it_concerns() -> None:
    hints = [
        "not given in the paper",
        "not given in the paper: lm ppl",
        "no index",
        "not given in the paper: sum rouge1",
    ]
    table = Table([*map(Row, "abcd")], [Column("index", [Cell(hint=hint) for hint in hints])])
    assert table.reasons == ["-: not given in the paper: lm ppl, sum rouge1; no index"]
