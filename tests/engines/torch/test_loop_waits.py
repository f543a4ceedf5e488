"""A training step waits for no GPU: counted for every task on a simulated device, in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.runs.processes import run_module
from tests.helpers.runs.step_waits import CELLS, PLANTED, STEPS


def counted(*arguments: str) -> dict[str, dict[str, Any]]:
    process = run_module("tests.helpers.runs.step_waits", *arguments)
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout)


@pytest.mark.slow
def test_a_read_in_ten_steps_and_no_blocking_copy():
    table = counted(*CELLS)
    assert [*table] == [*CELLS]
    for name, counts in table.items():
        assert sum(counts["reads"].values()) <= STEPS // 10, (name, counts["reads"])
        assert counts["copies"] == {}, name
        assert counts["device"] == pytest.approx(counts["cpu"], rel=1e-5), name


def test_every_kind_of_wait_is_counted():
    """In two steps of two micro-batches."""
    table = counted("planted lm")
    found = {name: (sum(x["reads"].values()), sum(x["copies"].values())) for name, x in table.items()}
    kinds = {name: "copies" if any(word in name for word in ("copy", "index")) else "reads" for name in PLANTED}
    expected = {name: (4, 0) if kind == "reads" else (0, 4) for name, kind in kinds.items()}
    assert found == expected | {"nothing": (0, 0)}
