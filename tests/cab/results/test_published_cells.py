"""`cab paper differences`: one row per cell of Table 3, and every known difference belongs to one."""

from __future__ import annotations

import csv

import pytest

from cab.cli.main import main
from cab.records.results import PAPER_DIR
from cab.registry.tables import tuned_options
from cab.results.published_cells import DIRECTIONS, KEYS, published_cells

CELLS = list(published_cells())


def test_a_row_for_every_published_cell() -> None:
    with (PAPER_DIR / "results.csv").open(newline="") as file:
        keys = ("pattern", "task", "backbone", "dataset", "attention")
        cells = {tuple(row[key] for key in keys) for row in csv.DictReader(file)}
    assert {tuple(cell[:5]) for cell in CELLS} == cells
    assert len(CELLS) == len(cells)
    assert all(cell.differs for cell in CELLS)
    assert {cell.direction for cell in CELLS} == {"either", "better", "worse", "better or worse"}


def test_every_difference_is_one_of_a_cell() -> None:
    with (PAPER_DIR / "differences.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert row["direction"] in DIRECTIONS
            assert any(all(row[key] in ("", getattr(cell, key)) for key in KEYS) for cell in CELLS), row


def test_options_are_those_of_preset_paper(capsys: pytest.CaptureFixture[str]) -> None:
    [cell] = [
        c for c in CELLS if (c.task, c.backbone, c.pattern, c.attention) == ("mlm", "roberta", "NS", "probsparse")
    ]
    assert cell.options == "mean_over=length sampled=per_query"
    assert tuned_options("mlm", "roberta", "NS", "probsparse")["mean_over"] == "length"
    assert main(["paper", "differences", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CELLS) + 1
