"""The verdict on a cell of the suite, from scores by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.results import MINI_DIR
from cab.registry.registries import TASKS
from cab.suite.cells import CellScores, collect, read_scores, suite_cells
from cab.suite.check import cells_that_fail, check_cell, check_suite, distance, seed_sd_ratio, significant_pairs
from cab.suite.summary import summarize_suite

GOOD = {
    "vanilla": [-0.10, -0.11, -0.12],
    "abc": [-0.40, -0.41, -0.42],
    "linear": [-0.50, -0.52, -0.51],
    "local": [-0.80, -0.82, -0.81],
    "none": [-0.90, -0.91, -0.92],
}


def scores(changes: dict[str, list[float]] | None = None, *, trivial_baseline: float | None = -1.0) -> CellScores:
    [cell] = [cell for cell in suite_cells() if (cell.task, cell.pattern) == ("lstf", "CS")]
    return CellScores(cell, {**GOOD, **(changes or {})}, trivial_baseline, None)


def test_a_cell_that_measures_attention() -> None:
    verdict = check_cell(scores())
    assert verdict.failures == ()
    assert verdict.effect_size == pytest.approx(80.0)
    assert verdict.gap_fraction == pytest.approx(0.8 / 0.89)
    assert verdict.leads["local"] == pytest.approx(70.0)
    assert verdict.significant_pairs == 1.0
    assert check_suite([verdict]) == [
        "no cell of pattern CC in which a constant-size state is clearly worse than vanilla"
    ]


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"none": [-0.10, -0.25, -0.20]}, "vanilla over none is"),
        ({"none": [-0.20, -0.201, -0.202], "vanilla": [-0.10, -0.101, -0.102]}, "of the range"),
        ({"none": [-0.9, -0.91]}, "fewer than 3 seeds"),
        ({"local": [-0.11, -0.10, -0.12]}, "vanilla over local is 0.0 SD"),
        ({"abc": [-0.1, -0.5, -0.9], "linear": [-0.2, -0.5, -0.8]}, "of attention pairs differ significantly"),
        ({"abc": [-0.2, -0.5, -0.6]}, "seed SD is"),
    ],
)
def test_why_a_cell_does_not(changes: dict[str, list[float]], failure: str) -> None:
    assert any(failure in line for line in check_cell(scores(changes)).failures)


def test_without_its_baseline_nothing_is_known_of_the_way() -> None:
    assert check_cell(scores(trivial_baseline=None)).failures == ("no record contains baseline ridge",)


def test_distance_is_in_pooled_deviations() -> None:
    assert distance([3.0, 4.0, 5.0], [0.0, 2.0, 4.0]) == pytest.approx(2.0 / math.sqrt((1 + 4) / 2))
    assert distance([1.0, 1.0], [1.0, 1.0]) == 0.0
    assert distance([2.0, 2.0], [1.0, 1.0]) == math.inf
    assert distance([1.0, 1.0], [2.0, 2.0]) == -math.inf


def test_pairs_and_spread() -> None:
    three = {"a": [0.0, 0.1, 0.2], "b": [0.05, 0.15, 0.25], "c": [9.0, 9.1, 9.2]}
    assert significant_pairs(three) == pytest.approx(2 / 3)
    assert seed_sd_ratio({"a": [0.0, 2.0], "b": [4.0, 6.0]}) == pytest.approx(math.sqrt(2.0) / math.sqrt(8.0))


def test_the_cells_are_those_that_the_tasks_are_tested_in() -> None:
    named = {(cell.task, cell.backbone, cell.pattern) for cell in suite_cells()}
    tested = {
        (task.name, backbone, str(pattern))
        for task in TASKS
        if "synthetic" in task.datasets or task.name == "probe"
        for backbone, patterns in task.backbones.items()
        for pattern in patterns
    }
    assert named <= tested
    assert len(named) == len(suite_cells()) == 19


def test_every_cell_is_judged_by_a_primary_metric_of_its_task() -> None:
    for cell in suite_cells():
        metrics = TASKS.get(cell.task).build(dataset=cell.dataset).metrics
        assert cell.metric in {metric.name for metric in metrics if metric.primary}, cell


def test_committed_records_name_no_folder() -> None:
    folders = {json.loads(path.read_text())["config"]["data_root"] for path in MINI_DIR.glob("*.json")}
    assert folders == {None}


def test_cells_are_judged_where_both_ends_are_known(tmp_path: Path) -> None:
    """A cell without three seeds of none and of vanilla is not judged, so it does not fail."""
    failing = cells_that_fail(MINI_DIR)
    for scores in read_scores(MINI_DIR):
        verdict = check_cell(scores)
        judged = all(len(scores.scores[name]) >= 3 for name in ("none", "vanilla"))
        assert (scores.cell.key in failing) == (judged and bool(verdict.failures)), verdict
    assert cells_that_fail(tmp_path) == {}


def test_no_records_are_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [len(found.scores) for found in collect([])] == [0] * 19
    assert main(["suite", "validate", str(tmp_path)]) == 1
    assert "0 of 19 cells" in capsys.readouterr().out
    assert main(["suite", "validate", str(tmp_path / "nowhere")]) == 2


def test_lessons_say_what_attention_brings_and_what_is_kept_of_it() -> None:
    cell = scores({"local": [-0.86, -0.86], "vanilla": [-0.11, -0.11], "none": [-0.91, -0.91]}, trivial_baseline=-2.0)
    cell.sign = -1.0
    [paragraph] = summarize_suite([cell])
    lines = paragraph.splitlines()
    assert lines[0] == "lstf, informer, pattern CS: mse (lower is better)"
    assert lines[1] == "  vanilla: 0.11"
    assert "  with a window (local): 0.86, 6% of vanilla's gain" in lines
    assert lines[-2] == "  without attention: 0.91"
    assert lines[-1].endswith("(trivial baseline): 2")


def test_nothing_is_told_of_a_cell_without_its_ablation() -> None:
    cell = scores()
    del cell.scores["none"]
    assert summarize_suite([cell]) == []


def test_telling_nothing_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "report", str(tmp_path)]) == 2
    assert "results of both vanilla and none" in capsys.readouterr().err
