"""Requests of cells follow from their expected hours; own values win."""

import functools

import pytest

from cab.config.compose import compose
from cab.config.run_config import SlurmConfig
from cab.runner.cell import Cell
from cab.runner.slurm_request import by_request, request_of, time_warnings

CELLS = {
    "mlm": ["task=mlm", "dataset=pg19", "pattern=NS", "preset=paper"],
    "lstf": ["task=lstf", "dataset=etth1", "pattern=NS", "preset=paper"],
    "smoke": ["task=lstf", "dataset=synthetic", "pattern=NC", "preset=smoke"],
}


@functools.cache
def cell(name: str) -> Cell:
    return Cell.from_config(compose([*CELLS[name], "attention=vanilla"]))


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("mlm", {}, (1440, 2, 64)),  # 880 hours, more than 21 days
        ("mlm", {"nodes": 2}, (1440, 1, 64)),
        ("mlm", {"gpus": 1, "memory": 100}, (1440, 1, 100)),
        ("mlm", {"max_requeues": 0}, (1440, 8, 64)),
        ("lstf", {}, (135, 1, 64)),  # 1.5 hours
        ("lstf", {"time": 30, "gpus": 0}, (30, 0, 64)),
        ("lstf", {"memory": 0}, (135, 1, 0)),
        ("mlm", {"time": 0, "nodes": 0}, (0, 2, 64)),
        ("lstf", {"extra": {"mem-per-cpu": "4G"}}, (135, 1, 0)),  # which excludes --mem
        ("lstf", {"extra": {"mem-bind": "local"}}, (135, 1, 64)),
        ("smoke", {}, (60, 1, 16)),
    ],
)
def test_requests(name, own, expected):
    request = request_of(cell(name), SlurmConfig(**own))
    assert (request.time, request.gpus, request.memory) == expected


def test_warnings_and_groups():
    cells = [cell("mlm"), cell("lstf"), cell("mlm")]
    assert not list(time_warnings(cells, SlurmConfig()))
    [warning] = time_warnings(cells, SlurmConfig(gpus=1))
    assert warning.startswith("warning: mlm takes 880 hours on 1 GPU; Slurm stops it after 504 (cluster.time=1440")
    assert [len(group) for _, group in by_request(cells, lambda cell: cell, SlurmConfig())] == [2, 1]
