"""The core cells: all stop when they are solved, at a loss that follows from their data alone; and their command."""

from __future__ import annotations

import math

import pytest

from cab.cli.main import main
from cab.errors import UserError
from cab.registry.registries import TASKS
from cab.suite.cells import suite_cells
from cab.suite.overrides import cell_overrides, suite_sweeps
from tasks.lstf.synthetic import CHANNELS, NOISE, synthetic_series

CORE = [cell for cell in suite_cells() if cell.core]


def test_every_core_cell_stops_when_solved_at_a_constant_rate() -> None:
    assert {cell.pattern for cell in CORE} == {"NS", "CS", "NC", "CC"}
    for cell in suite_cells():
        options = {".".join(path): value for path, value in cell.option_values.items()}
        assert ("trainer.stop_at" in options) == cell.core
        if cell.core:
            assert options["trainer.schedule"] == "constant"
            assert options["trainer.max_steps"] % options["trainer.validate_every"] == 0


@pytest.mark.parametrize(
    ("task", "pattern", "without_attention"),
    [("lm", "CS", math.log(16)), ("probe", "CC", math.log(32)), ("mlm", "NS", 2.53)],
)
def test_solved_is_99_5_percent_of_the_way_to_no_error(task: str, pattern: str, without_attention: float) -> None:
    [cell] = [cell for cell in CORE if (cell.task, cell.pattern) == (task, pattern)]
    assert cell.option_values["trainer", "stop_at"] == pytest.approx(0.005 * without_attention, abs=5e-5)


@pytest.mark.parametrize(("pattern", "hours", "without_attention"), [("CS", 12, 0.71), ("NC", 6, 1.0)])
def test_the_optimum_of_a_forecast_is_its_noise(pattern: str, hours: int, without_attention: float) -> None:
    [cell] = [cell for cell in CORE if (cell.task, cell.pattern) == ("lstf", pattern)]
    assert cell.option_values.get(("task", "hours"), 6) == hours
    series = synthetic_series(hours)
    variance = series.values[: series.split[0], 2:].var(axis=0)
    optimum = (NOISE**2 / variance).sum() / CHANNELS  # the channels of colors are 0 in the rows to forecast
    expected = optimum + 0.005 * (without_attention - optimum)
    assert cell.option_values["trainer", "stop_at"] == pytest.approx(expected, abs=1e-4)


def test_what_the_suite_stands_for() -> None:
    assert suite_sweeps(["task=lstf", "attention=abc"]) is None
    sweeps = suite_sweeps(["suite=core", "attention=abc", "pattern=CS,causal_cross", "task=lstf,probe"])
    expected = [cell for cell in CORE if cell.task in ("lstf", "probe") and cell.pattern in ("CS", "CC")]
    assert sweeps == [[*cell_overrides(cell), "attention=abc", "seed=1,2,3"] for cell in expected]
    assert [sweep[4] for sweep in sweeps] == ["preset=mini"] * 3
    assert len(suite_sweeps(["suite=mini", "attention=abc", "seed=4"]) or []) == len(suite_cells())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["suite=paper", "attention=abc"], "unknown suite 'paper'"),
        (["suite=mini", "attention=abc", "preset=paper"], "sets the preset"),
        (["suite=mini", "attention=abc", "dataset=etth1"], "sets the dataset"),
        (["suite=mini", "pattern=CS"], "requires an attention"),
        (["suite=core", "attention=abc", "task=tts"], "unknown task of suite=core 'tts'"),
    ],
)
def test_a_suite_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        suite_sweeps(overrides)


def test_the_command_runs_every_cell_that_the_attention_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "suite=mini", "attention=probsparse", "seed=1", "--dry-run"]) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if "cab run" in line]
    assert len(commands) == sum(cell.pattern == "NS" for cell in suite_cells())
    assert all("preset=mini" in line for line in commands)


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
