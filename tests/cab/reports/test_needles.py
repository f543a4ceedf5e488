"""Needles stand beside the index: their table, their grid, their section of the page."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.results import load_results
from cab.reports.sections import finished_runs
from tasks.needle.report import grid_figure, grids, needle_table
from tasks.needle.task import Needle
from tests.cab.reports.test_page import page_of

TASK = Needle(dataset="synthetic", length=32, depths=2)


@pytest.fixture
def needles(tmp_path: Path, add: Callable[..., Path]) -> Path:
    """Vanilla with two seeds; a window that finds the end of the shortest text alone, and cannot read the longest."""

    def measured(attention: str, seed: int, values: list[float]) -> None:
        found = dict(zip([name for length in TASK.lengths for name in TASK._by_depth(length)], values, strict=True))
        place = {
            "task": "needle",
            "dataset": "synthetic",
            "config_variant": TASK.config_variant,
            "backbone": "gpt2",
            "pattern": "CS",
        }
        add(
            [metric.measured(found.get(metric.name, 0.5)) for metric in TASK.metrics],
            **{**place, "attention": attention, "seed": seed},
        )

    measured("vanilla", 1, [1.0, 1.0, 0.8, 0.6, 0.4, 0.2])
    measured("vanilla", 2, [1.0, 1.0, 0.6, 0.6, 0.4, 0.2])
    measured("local", 1, [0.0, 1.0, 0.0, 0.1, math.nan, math.nan])
    return tmp_path / "results"


def test_a_row_an_attention_length_and_depth(needles: Path) -> None:
    table = needle_table(finished_runs(load_results(needles), "needle")).set_index(["attention", "length", "depth"])
    assert len(table) == 12
    assert table.loc[("vanilla", 64, 25), "accuracy"] == pytest.approx(0.7)
    assert table.loc[("vanilla", 64, 25), "deviation"] == pytest.approx(0.02**0.5)
    assert table.loc[("vanilla", 64, 25), "seeds"] == 2
    assert table.loc[("local", 32, 75), "accuracy"] == 1.0
    assert math.isnan(table.loc[("local", 128, 75), "accuracy"])
    assert needle_table(finished_runs(load_results(needles).iloc[:0], "needle")).empty


def test_the_grid_has_a_panel_an_attention(needles: Path) -> None:
    [(heading, own)] = grids(needle_table(finished_runs(load_results(needles), "needle")))
    assert heading == "Needles, synthetic, preset mini: 8 facts, learned at 32 tokens"
    vanilla, local, empty = grid_figure(own).axes
    assert (vanilla.get_title(loc="left"), local.get_title(loc="left"), empty.axison) == ("vanilla", "local", False)
    assert [text.get_text() for text in vanilla.texts] == ["1.00", "0.70", "0.40", "1.00", "0.60", "0.20"]
    assert [text.get_text() for text in local.texts] == ["0.00", "0.00", "", "1.00", "0.10", ""]
    assert [label.get_text() for label in vanilla.get_xticklabels()] == ["32", "64", "128"]


def test_the_page_has_a_section(needles: Path, tmp_path: Path) -> None:
    page, elements = page_of(needles, tmp_path / "board")
    assert {"needles", "needle-0-table"} <= {attributes.get("id") for _, attributes in elements.found}
    assert page.count('<img alt="Needles, synthetic, preset mini') == 1
    with (tmp_path / "board/needles.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12
    assert not (tmp_path / "board/leaderboard.csv").exists()
    assert main(["leaderboard", str(needles), "--out", str(tmp_path / "board"), "--figures"]) == 0
    assert len(list((tmp_path / "board/figures").glob("needles-*.png"))) == 1
