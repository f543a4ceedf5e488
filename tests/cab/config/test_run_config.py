"""The checked configuration of a run, and the committed records that were made from one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from cab import UserError
from cab.config.compose import compose
from cab.config.run_config import RunConfig
from cab.patterns import Pattern
from cab.records.files import REFERENCE_DIRS, record_paths
from cab.records.record import Record, records_in
from cab.runner.cell import Cell
from cab.spec import Spec

CELL = ["task=lm", "dataset=synthetic", "backbone=gpt2", "attention=abc", "pattern=causal_self", "preset=smoke"]


def config(**changes: Any) -> RunConfig:
    return RunConfig.from_dict(compose(CELL) | changes)


def test_values_are_parsed_once():
    checked = config(other_attention={"NS": {"name": "local", "window_size": 8}}, force="yes", data_root="~/data")
    assert checked.pattern is Pattern.CS
    assert checked.attention.name == "abc"
    assert checked.other_attention[Pattern.NS] == Spec("local", {"window_size": 8})
    assert checked.other_attention[Pattern.CC] == Spec("vanilla")
    assert checked.data_root == Path.home() / "data"
    assert checked.force is checked.resolved["force"] is True
    assert checked.resolved["pattern"] == "CS"
    assert checked.trainer.batch_size == checked.resolved["trainer"]["batch_size"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sed": 1}, "unknown option 'sed': did you mean 'seed'"),
        ({"seed": 2**31}, "seed: Input should be less than or equal to 2147483647, got 2147483648; for example seed=1"),
        ({"cluster": {"name": "slurmm"}}, "unknown cluster 'slurmm': did you mean 'slurm'"),
        ({"cluster": {"name": "local", "wokers": 2}}, "did you mean 'cluster.workers'"),
        ({"cluster": {"name": "slurm", "time": -1}}, "cluster.time: Input should be greater than or equal to 0"),
    ],
)
def test_a_wrong_value_is_one_line(changes, message):
    with pytest.raises(UserError, match=message) as error:
        config(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("task", "attention"), [("lstf", "abc"), ("mlm", "local")])
def test_a_new_run_has_the_hash_of_the_committed_record(task, attention):
    record = next(
        record
        for _, record in records_in(REFERENCE_DIRS[1], [])
        if (record.cell["task"], record.cell["attention"]) == (task, attention)
    )
    overrides = shlex.split(record.command.removeprefix("cab run "))
    assert Cell.from_config(compose(overrides)).hash == record.hash


def test_records_are_ordered_by_cell(tmp_path):
    records = [Record.read(path) for path in record_paths(REFERENCE_DIRS[1])[:12]]
    for number, record in enumerate(reversed(records)):
        record.write(tmp_path, f"{number:02}")
    expected = sorted(records, key=lambda record: list(record.cell.values()))
    assert [record.hash for _, record in records_in(tmp_path, [])] == [record.hash for record in expected]
