"""The core cells: all stop when they are solved, at a loss that follows from their data alone."""

import math
from typing import Any

import pytest

from cab.errors import UserError
from cab.records.files import REFERENCE_DIRS
from cab.records.identity import plain
from cab.records.record import Record, records_in
from cab.results.cells import ANCHORS_FILE, read_anchors, suite_cells
from tasks.lstf.synthetic import CHANNELS, NOISE, synthetic_series
from tests.helpers.suite_records import CELLS, value_record, with_config
from tools.suite.tables import composed_settings, write_anchors

CORE = [cell for cell in suite_cells() if cell.core]
ANCHORED = [pytest.param(cell, marks=() if cell.core else pytest.mark.slow) for cell in suite_cells() if cell.settings]


def test_every_core_cell_stops_when_solved_at_a_constant_rate():
    assert {cell.pattern for cell in CORE} == {"NS", "CS", "NC", "CC"}
    for cell in suite_cells():
        if options := cell.settings:  # empty without anchors
            assert (options["trainer.stop_at"] is not None) == cell.core
        if options and cell.core:
            assert options["trainer.schedule"] == "constant"
            assert options["trainer.max_steps"] % options["trainer.validate_every"] == 0


ABSENT = [f"task.{name}" for name in ("limit", "source", "source_config", "source_revision", "source_target")]
UNCHANGED = {
    **dict.fromkeys([*ABSENT, "trainer.kernels"], (None,)),
    "task.source_splits": [["train", "validation", "test"]],
    "task.source_columns": [["text"], ["document", "summary"], []],
    "task.source_split": [[0.7, 0.1, 0.2]],
    "task.source_date": ["date"],
    "backbone.norm": ["layer"],
}
"""Options that were added, each with the values that change nothing."""


@pytest.mark.parametrize("cell", ANCHORED, ids=str)
def test_the_anchors_have_the_settings_that_are_run(cell):
    """Options that were removed since are not run; those that were added since change nothing by default."""
    composed = plain(composed_settings(cell))
    for name, value in composed.items():
        assert value == cell.settings[name] if name in cell.settings else value in UNCHANGED[name], name


@pytest.mark.parametrize(
    ("task", "pattern", "without_attention"),
    [("lm", "CS", math.log(16)), ("probe", "CC", math.log(64)), ("mlm", "NS", 2.53)],
)
def test_solved_is_99_5_percent_of_the_way_to_no_error(task, pattern, without_attention):
    [cell] = [cell for cell in CORE if (cell.task, cell.pattern) == (task, pattern)]
    assert cell.settings["trainer.stop_at"] == pytest.approx(0.005 * without_attention, abs=5e-5)


@pytest.mark.parametrize(("pattern", "hours", "without_attention"), [("CS", 18, 0.71), ("NC", 6, 1.0)])
def test_the_optimum_of_a_forecast_is_its_noise(pattern, hours, without_attention):
    [cell] = [cell for cell in CORE if (cell.task, cell.pattern) == ("lstf", pattern)]
    assert cell.settings["task.hours"] == hours
    series = synthetic_series(hours)
    variance = series.values[: series.split[0], 2:].var(axis=0)
    optimum = (NOISE**2 / variance).sum() / CHANNELS  # the channels of colors are 0 in the rows to forecast
    expected = optimum + 0.005 * (without_attention - optimum)
    assert cell.settings["trainer.stop_at"] == pytest.approx(expected, abs=1e-4)


def test_anchors_are_written(tmp_path):
    path, cell = tmp_path / "anchors.csv", CELLS["lstf"]
    values = {"vanilla": 0.1, "none": 0.9}
    records = [with_settings(value_record(cell, name, values[name], seed)) for name in values for seed in (1, 2)]
    other = with_settings(value_record(cell, "abc", 0.1))
    changed = with_settings(value_record(cell, "none", 0.8, 7), **{"trainer.max_steps": 9})
    assert write_anchors([*records, other, changed], path) == 4
    written = read_anchors(path)[cell.key]
    assert written.test == {name: [value, value] for name, value in values.items()}
    assert written.run == records[0].hash
    strange = with_settings(value_record(cell, "none", 0.9, 3, data={"rows": 3}))
    with pytest.raises(UserError, match="different data"):
        write_anchors([*records, strange], path)
    with pytest.raises(UserError, match="no cell of the suite has results of vanilla and none"):
        write_anchors([], path)


def with_settings(record: Record, **others: Any) -> Record:
    config = {**record.config}
    for name, value in {**composed_settings(CELLS["lstf"]), **others}.items():
        group, _, option = name.partition(".")
        config[group] = {**config[group], option: value} if option else value
    return with_config(record, **config)


@pytest.mark.slow
def test_committed_anchors_are_of_committed_results(tmp_path):
    written = tmp_path / "anchors.csv"
    write_anchors([record for folder in REFERENCE_DIRS for _, record in records_in(folder, [])], written)
    assert set(ANCHORS_FILE.read_text().splitlines()) <= set(written.read_text().splitlines())
