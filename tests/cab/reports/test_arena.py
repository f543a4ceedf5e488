"""Long Range Arena stands beside the index, among the trivial answers: its table and its section of the page."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cab.records.results import load_results
from cab.reports.sections import finished_runs
from tasks.lra.report import arena_table
from tests.cab.reports.test_page import page_of


@pytest.fixture
def arena(tmp_path: Path, add: Callable[..., Path]) -> Path:
    """ListOps: two attentions, one of two seeds; and once without brackets."""

    def measured(accuracy: float, **changes: Any) -> None:
        place = {
            "task": "lra",
            "dataset": "listops_synthetic",
            "config_variant": "",
            "backbone": "encoder",
            "pattern": "NS",
        }
        add(
            {"accuracy": accuracy},
            baselines={"majority": {"accuracy": 17.0}, "root_and_digits": {"accuracy": 48.0}},
            **{**place, **changes},
        )

    for seed in (1, 2):
        measured(50.0 + seed, attention="vanilla", seed=seed)
    measured(30.0, attention="local", seed=1)
    measured(20.0, attention="vanilla", seed=1, config_variant="brackets dropped")
    return tmp_path / "results"


def test_attentions_and_trivial_answers_are_in_one_order(arena: Path) -> None:
    table = arena_table(finished_runs(load_results(arena), "lra"))
    whole = table[table["config_variant"] == ""]
    assert whole["name"].tolist() == ["vanilla", "root_and_digits", "local", "majority"]
    assert whole["kind"].tolist() == ["attention", "trivial", "attention", "trivial"]
    assert whole["accuracy"].tolist() == pytest.approx([51.5, 48.0, 30.0, 17.0])
    assert whole["deviation"].iloc[0] == pytest.approx(0.5**0.5)
    assert table[table["config_variant"] != ""]["name"].tolist() == ["root_and_digits", "vanilla", "majority"]
    assert arena_table(finished_runs(load_results(arena).iloc[:0], "lra")).empty


def test_the_page_has_a_section(arena: Path, tmp_path: Path) -> None:
    page, elements = page_of(arena, tmp_path / "board")
    assert {"lra", "lra-0", "lra-1"} <= {attributes.get("id") for _, attributes in elements.found}
    assert "root and digits" in page
    with (tmp_path / "board/lra.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 7
    assert not (tmp_path / "board/leaderboard.csv").exists()
