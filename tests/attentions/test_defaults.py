"""The table of defaults against published layers: its rows are unique, and options have the defaults it states."""

from __future__ import annotations

import csv
import inspect
from pathlib import Path

from cab.registry.registries import ATTENTIONS

ROWS = list(csv.DictReader((Path(__file__).parents[2] / "attentions" / "defaults.csv").open(encoding="utf-8")))


def test_every_row_names_a_part_of_a_registered_attention() -> None:
    assert len(ROWS) > 50
    assert {row["attention"] for row in ROWS} <= {entry.name for entry in ATTENTIONS}
    parts = [(row["attention"], row["part"]) for row in ROWS]
    assert len(set(parts)) == len(parts)
    assert all(row["default"] and row["published"] and row["source"] for row in ROWS)


def test_stated_defaults_are_those_of_the_constructors() -> None:
    """An option whose default is computed (None) is described in words."""
    compared = 0
    for row in ROWS:
        parameter = inspect.signature(ATTENTIONS.get(row["attention"]).cls).parameters.get(row["part"])
        if parameter is not None and parameter.default is not None and row["part"] != "dropout":
            assert row["default"] == str(parameter.default), row
            compared += 1
    assert compared > 20
