"""Probes stand beside the index, never in it: their table, their curves, their section of the page."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.records.results import load_results
from cab.reports.sections import finished_runs
from tasks.probe.report import capacity_curves, curve_figure, probe_table
from tests.cab.reports.test_page import page_of, record_data


@pytest.fixture
def probes(tmp_path: Path, add: Callable[..., Path]) -> Path:
    """Recall in CS: two attentions at three numbers of pairs, two seeds; one width more; and NC once."""

    def measured(accuracy: float, pairs: int, width: int = 64, **changes: Any) -> None:
        place = {"task": "probe", "dataset": "recall", "config_variant": f"pairs {pairs}", "backbone": "mixer"}
        config = {"task": {"pairs": pairs, "distance": 8, "noise": 0.0}, "backbone": {"embed_dim": width}}
        add(
            {"accuracy": accuracy, "sequences": accuracy / 2},
            beside=["sequences"],
            baselines={"commonest": {"accuracy": 0.05, "sequences": 0.0}},
            config={**config, "trainer": {"max_steps": 300}},
            **{"pattern": "CS", **place, **changes},
        )

    for pairs, linear in ((8, 1.0), (16, 0.9), (32, 0.4)):
        for seed in (1, 2):
            measured(1.0, pairs, attention="vanilla", seed=seed)
            measured(linear + 0.01 * seed, pairs, attention="linear", seed=seed)
    measured(0.3, 16, 16, attention="linear", seed=1)
    measured(1.0, 16, attention="vanilla", seed=1, pattern="NC")
    return tmp_path / "results"


def test_a_row_a_setting_and_attention(probes: Path) -> None:
    table = probe_table(finished_runs(load_results(probes), "probe"))
    assert len(table) == 2 * 3 + 1 + 1
    row = table[(table["attention"] == "linear") & (table["pairs"] == 16) & (table["embed_dim"] == 64)].iloc[0]
    assert row["accuracy"] == pytest.approx(0.915)
    assert (row["seeds"], row["commonest"]) == (2, 0.05)
    assert list(table["pattern"].unique()) == ["CS", "NC"]


def test_a_curve_needs_two_values_of_one_setting_and_the_same_of_all_others(probes: Path) -> None:
    curves = list(capacity_curves(probe_table(finished_runs(load_results(probes), "probe"))))
    assert [curve.knob for curve in curves] == ["pairs", "embed_dim"]
    assert curves[0].title == "CS, recall: accuracy against pairs; distance 8, width 64"
    assert set(curves[0].points["attention"]) == {"vanilla", "linear"}
    axes = curve_figure(curves[0]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16", "32"]
    vanilla, linear = (line.get_ydata().tolist() for line in axes.lines[:2])
    assert vanilla == [1.0, 1.0, 1.0]
    assert linear == pytest.approx([1.015, 0.915, 0.415])


def test_the_page_has_a_section_and_the_index_has_nothing_of_it(
    probes: Path, tmp_path: Path, add: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    page, elements = page_of(probes, tmp_path / "alone", "--figures")
    assert {"probes", "probe-curve-0-table"} <= {attributes.get("id") for _, attributes in elements.found}
    assert len(record_data(page)["records"]) == 14
    with (tmp_path / "alone/probes.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
    assert not (tmp_path / "alone/leaderboard.csv").exists()
    assert len(list((tmp_path / "alone/figures").glob("probe-*.png"))) == 2
    assert main(["score", str(probes)]) == 2
    assert "no results to score" in capsys.readouterr().err

    for attention in ("vanilla", "linear"):
        add({"mse": 1.0 + len(attention)}, attention=attention)
    page, elements = page_of(probes, tmp_path / "both")
    assert "probes" in {attributes.get("id") for _, attributes in elements.found}
    assert "probe" not in (tmp_path / "both/leaderboard.csv").read_text()
    capsys.readouterr()
    assert main(["score", str(probes), "--csv"]) == 0
    assert "probe" not in capsys.readouterr().out
