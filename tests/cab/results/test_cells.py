"""The core cells: all stop when they are solved, at a loss that follows from their data alone."""

from __future__ import annotations

import json
import math

import pytest

from cab.results.cells import SuiteCell, suite_cells, suite_settings
from tasks.lstf.synthetic import CHANNELS, NOISE, synthetic_series
from tools.suite.suite_anchors import composed_settings

CORE = [cell for cell in suite_cells() if cell.core]


def test_every_core_cell_stops_when_solved_at_a_constant_rate() -> None:
    assert {cell.pattern for cell in CORE} == {"NS", "CS", "NC", "CC"}
    for cell in suite_cells():
        options = suite_settings()[str(cell)]
        assert (options["trainer.stop_at"] is not None) == cell.core
        if cell.core:
            assert options["trainer.schedule"] == "constant"
            assert options["trainer.max_steps"] % options["trainer.validate_every"] == 0


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, marks=() if cell.core or cell.pattern == "NS" else pytest.mark.slow) for cell in suite_cells()],
    ids=str,
)
def test_the_table_of_settings_is_what_is_run(cell: SuiteCell) -> None:
    assert json.loads(json.dumps(composed_settings(cell))) == suite_settings()[str(cell)], (
        "tools/suite/suite_anchors.py"
    )


@pytest.mark.parametrize(
    ("task", "pattern", "without_attention"),
    [("lm", "CS", math.log(16)), ("probe", "CC", math.log(64)), ("mlm", "NS", 2.53)],
)
def test_solved_is_99_5_percent_of_the_way_to_no_error(task: str, pattern: str, without_attention: float) -> None:
    [cell] = [cell for cell in CORE if (cell.task, cell.pattern) == (task, pattern)]
    assert suite_settings()[str(cell)]["trainer.stop_at"] == pytest.approx(0.005 * without_attention, abs=5e-5)


@pytest.mark.parametrize(("pattern", "hours", "without_attention"), [("CS", 18, 0.71), ("NC", 6, 1.0)])
def test_the_optimum_of_a_forecast_is_its_noise(pattern: str, hours: int, without_attention: float) -> None:
    [cell] = [cell for cell in CORE if (cell.task, cell.pattern) == ("lstf", pattern)]
    assert suite_settings()[str(cell)]["task.hours"] == hours
    series = synthetic_series(hours)
    variance = series.values[: series.split[0], 2:].var(axis=0)
    optimum = (NOISE**2 / variance).sum() / CHANNELS  # the channels of colors are 0 in the rows to forecast
    expected = optimum + 0.005 * (without_attention - optimum)
    assert suite_settings()[str(cell)]["trainer.stop_at"] == pytest.approx(expected, abs=1e-4)
